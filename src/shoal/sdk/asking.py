"""How the commands ask the leading controller: a Question is created beside the gang, and its status is the answer.

Used by `shoal why`, `shoal submit --check` and `shoal free`. Where the kind is not installed, may not be created, or no
controller answers in time, the caller gets the reason instead.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden, KubeError, NotFound

ANSWER_SECONDS = 8.0
FRESH_SECONDS = 20.0
"""A fresh answer is made after the controller has compared what it knows with the server."""
LOOK_AGAIN = 0.2
NO_ANSWER = ("NotFound", "UnknownQuestion")


class NoAnswer(Exception):
    """Why there is none, in words that end a sentence."""


async def ask(client: Client, kind: Kind, name: str, namespace: str, *, fresh: bool, about: str = "Why") -> Json:
    """About a gang, or what `about` is asked of. The answer's status. Raises NoAnswer."""
    target = {"group": kind.group, "kind": kind.kind, "name": name}
    return await _asked(client, namespace, {"question": about, "target": target, "fresh": fresh})


async def would_start(client: Client, manifest: Json, namespace: str, *, largest: str = "") -> Json:
    """Would the gang of this manifest start now, were it created? `largest`: and with how many pods of this pod set at
    most. The answer's status. Raises NoAnswer."""
    spec = {"question": "WouldStart", "manifest": manifest, "fresh": True, **({"largest": largest} if largest else {})}
    return await _asked(client, namespace, spec)


async def history(client: Client, namespace: str, window: Json) -> Json:
    """What gangs did: `window` as `api.questions.HistoryWindow` has it. Runs, totals, how many are hidden. Raises
    NoAnswer."""
    answer = await _asked(client, namespace, {"question": "History", "history": window})
    return answer.get("history") or {}


async def kept_logs(client: Client, namespace: str, choice: Json) -> list[Json]:
    """What is kept of the logs of a gang whose pods are gone: `choice` as `api.questions.LogChoice` has it. Raises
    NoAnswer."""
    answer = await _asked(client, namespace, {"question": "Logs", "logs": choice})
    return answer.get("logs") or []


async def _asked(client: Client, namespace: str, spec: Json) -> Json:
    body: Json = {
        "apiVersion": kinds.QUESTION.api_version,
        "kind": kinds.QUESTION.kind,
        "metadata": {"name": f"ask-{secrets.token_hex(8)}", "namespace": namespace},
        "spec": spec,
    }
    try:
        made: Json = await client.create(kinds.QUESTION, body, namespace)
    except NotFound:
        raise NoAnswer("this cluster does not have the kind Question; run `shoal install` again") from None
    except Forbidden:
        raise NoAnswer(f"you may not create questions.shoal.dev in namespace {namespace}") from None
    except KubeError as error:
        raise NoAnswer(f"the question could not be asked: {error}") from None
    try:
        async with asyncio.timeout(FRESH_SECONDS if spec.get("fresh") else ANSWER_SECONDS):
            answer = await _answer(client, made)
    except TimeoutError:
        raise NoAnswer("no controller answered in time") from None
    except KubeError as error:
        raise NoAnswer(f"the answer could not be read: {error}") from None
    if answer.get("reason") in NO_ANSWER:
        raise NoAnswer(f"the controller says: {answer.get('message') or answer['reason']}")
    return answer


async def _answer(client: Client, made: Json) -> Json:
    metadata = made["metadata"]
    name, namespace = metadata["name"], metadata["namespace"]
    watch = client.watch(
        kinds.QUESTION,
        namespace,
        field_selector=f"metadata.name={name}",
        resource_version=metadata["resourceVersion"],
    )
    try:
        async for event in watch:
            if event.type == "MODIFIED" and (status := _status(msgspec.json.decode(event.object))):
                return status
    except Forbidden:
        pass  # `get` is enough
    while True:
        if status := _status(await client.get(kinds.QUESTION, name, namespace)):
            return status
        await asyncio.sleep(LOOK_AGAIN)


def _status(question: Json) -> Json:
    status: Any = question.get("status") or {}
    return status if status.get("answeredAt") else {}
