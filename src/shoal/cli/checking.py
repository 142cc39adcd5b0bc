"""Manifests before a server that lives for this one command: the server of `shoal up`, in memory, with all its rules.

What it refuses, `shoal up` refuses with the same text. Queues, quotas and classes of the same files are created there,
gangs are tried and not created, and the planning loop says whether their queue could ever hold them. Pod templates are
tried as pods. Nothing leaves this process.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.labels import KUEUE_QUEUE
from shoal.api.meta import Json
from shoal.errors import BadInput, ShoalError
from shoal.kube.client import Client
from shoal.kube.discovery import Discovery
from shoal.kube.errors import AlreadyExists, ApiError, NotFound
from shoal.sdk import asking, submitting

NEAR = 0.75
"""How alike a kind or group is that was probably meant."""


class CheckedManifest(msgspec.Struct, frozen=True):
    source: str
    obj: Json


class CheckProblem(msgspec.Struct, frozen=True):
    manifest: CheckedManifest
    problem: str


@asynccontextmanager
async def check_server() -> AsyncIterator[Client]:
    """The embedded server in memory with our kinds, judges and queues; no nodes: quota alone says what can run."""
    from shoal.api.crds import load_crds
    from shoal.cli.local_admission import judges, preparers, status_judges, updaters
    from shoal.controllers.planning import PlanningLoop, PlanningSettings
    from shoal.controllers.queues import QueueController, QueueSettings
    from shoal.local.apiserver import Server

    server = Server(None)
    quiet = logging.getLogger("shoal.kube.feed")
    told = quiet.level
    quiet.setLevel(logging.ERROR)  # kinds of others that this server does not have are no news
    await server.start()
    tasks: list[asyncio.Future[Any]] = []
    try:
        client = Client(server.transport(), manager="shoal-check")
        await asyncio.gather(*(client.create(kinds.CRD, one) for one in load_crds()))
        server.admission.judges.update(judges(client))
        server.admission.status_judges.update(status_judges())
        server.admission.preparers.update(preparers(client))
        server.admission.updaters.update(updaters())
        settings = QueueSettings(supply="off")
        loop = PlanningLoop(client, PlanningSettings(queues=settings.decisions))
        QueueController(loop, settings)
        tasks.append(asyncio.ensure_future(loop.run()))
        ready = asyncio.ensure_future(loop.ready.wait())
        tasks.append(ready)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            tasks[0].result()  # it ended before it was ready, and says why
        yield client
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop()
        quiet.setLevel(told)


async def judged(client: Client, manifests: list[CheckedManifest]) -> list[CheckProblem]:
    """What the server and the queues of these files say. Those of a namespace that is not among them count as there."""
    found: list[CheckProblem] = []
    known: list[tuple[CheckedManifest, Kind]] = []
    discovery = Discovery(client)
    # Definitions and namespaces first, then what gangs refer to, whatever the order in the files.
    for one in sorted(manifests, key=lambda one: _turn(one.obj)):
        kind = await discovery.kind_of(str(one.obj.get("apiVersion")), str(one.obj.get("kind")))
        if kind is None:
            if said := await _unknown(client, one.obj):
                found.append(CheckProblem(one, said))
            continue
        known.append((one, kind))
        await _namespace(client, _namespace_of(one.obj))
        gang = submitting.is_gang(kind)
        try:
            where = _namespace_of(one.obj) if kind.namespaced else None
            made = await client.create(kind, one.obj, where, dry_run=gang or _turn(one.obj) > 2)
        except AlreadyExists:
            continue  # a namespace, or what the same files have twice: that is said below
        except ApiError as error:
            found.append(CheckProblem(one, str(error)))
            continue
        pods = [said async for said in _pods(client, one.obj)] if _turn(one.obj) > 2 else []
        found += [CheckProblem(one, said) for said in pods]
        if gang and not pods and (said := await _never(client, made, manifests)):
            found.append(CheckProblem(one, said))
    return found + list(_twice(known))


def _turn(obj: Json) -> int:
    kind, group = str(obj.get("kind")), str(obj.get("apiVersion")).rpartition("/")[0]
    if kind in ("CustomResourceDefinition", "Namespace"):
        return 0
    if group in ("kueue.x-k8s.io", "quota.codeflare.dev", "ibm.com", "scheduling.k8s.io") or kind == "LimitRange":
        return 2 if kind in ("LocalQueue", "QuotaSubtree") else 1
    return 3


def _namespace_of(obj: Json) -> str:
    metadata = obj.get("metadata")
    return str((metadata.get("namespace") if isinstance(metadata, dict) else "") or "default")


async def _namespace(client: Client, name: str) -> None:
    try:
        await client.get(kinds.NAMESPACE, name)
    except NotFound:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        try:
            await client.create(kinds.NAMESPACE, body)
        except ApiError:
            pass  # a name that is none: the object itself is refused for it


async def _unknown(client: Client, obj: Json) -> str:
    """A kind or version that is not served, where one that is served was probably meant; else it is another's."""
    api_version, name = str(obj.get("apiVersion")), str(obj.get("kind"))
    group = api_version.rpartition("/")[0]
    discovery = Discovery(client)
    beside = [one.kind for one in await discovery.kinds_in(api_version)]
    if beside:
        near = difflib.get_close_matches(name, beside, n=1, cutoff=0.5)
        return f"there is no kind {name} in {api_version}{f'; did you mean {near[0]}?' if near else ''}"
    served = await _served(client)
    versions = [f"{group}/{one}" if group else one for one in served.get(group, ())]
    if versions:
        return f"there is no version {api_version}; did you mean {' or '.join(versions)}?"
    near = difflib.get_close_matches(group, served, n=1, cutoff=NEAR)
    if near and group:
        return f"there is no group {group}; did you mean {near[0]}/{served[near[0]][0]}?"
    return ""


async def _served(client: Client) -> dict[str, list[str]]:
    """Versions by group, the preferred first."""
    answer = await client.request("GET", "/apis")
    groups = msgspec.json.decode(answer.body, type=dict[str, Any]).get("groups") or []
    found = {str(one["name"]): [str(each["version"]) for each in one["versions"]] for one in groups}
    return {"": ["v1"], **found}


async def _pods(client: Client, obj: Json) -> AsyncIterator[str]:
    """Refusals of the pods that its templates will make, each once."""
    from shoal.controllers.demand import templates
    from shoal.controllers.demand.app_wrapper import UNREADABLE

    try:
        found = templates(obj)
    except UNREADABLE:
        return  # the check of its shape says so
    said: set[str] = set()
    for one in found:
        written = _at(obj, one.path) if one.is_inside and one.path else None
        if not isinstance(written, dict) or not isinstance(written.get("spec"), dict):
            continue
        spec = {**written["spec"], "restartPolicy": written["spec"].get("restartPolicy") or "Never"}
        metadata = written.get("metadata")
        labels = metadata.get("labels") if isinstance(metadata, dict) else None
        pod: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "template", "labels": labels or {}}}
        try:
            await client.create(kinds.POD, {**pod, "spec": spec}, _namespace_of(obj), dry_run=True)
        except ApiError as error:
            text = str(error).partition("is invalid: ")[2] or str(error)
            if text not in said:
                said.add(text)
                yield f"{one.name}: {text}"


def _at(obj: Any, path: tuple[Any, ...]) -> Any:
    """What stands there as it was written, without what an operator adds."""
    for step in path:
        obj = obj[step] if isinstance(obj, (dict, list)) else None
    return obj


async def _never(client: Client, made: Json, manifests: list[CheckedManifest]) -> str:
    """Whether its queue, which these files have, can never hold it."""
    queue = (made["metadata"].get("labels") or {}).get(KUEUE_QUEUE)
    where = made["metadata"].get("namespace", "default")
    here = any(
        (str(one.obj.get("kind")), _namespace_of(one.obj), (one.obj.get("metadata") or {}).get("name"))
        == ("LocalQueue", where, queue)
        for one in manifests
    )
    if not queue or not here:
        return ""
    made["metadata"].pop("managedFields", None)
    try:
        answer = await asking.would_start(client, made, where)
    except asking.NoAnswer:
        return ""
    return f"can never run: {_limits(answer)}" if answer.get("verdict") == "Never" else ""


def _limits(answer: Json) -> str:
    """What is asked and what the queue has, where that is the reason."""
    short = [one for one in answer.get("shortfalls") or () if one.get("resource") and one.get("needed")]
    parts = [
        f"{one['needed']} {one['resource']} asked, {one.get('available') or 0} is the queue's limit" for one in short
    ]
    return "; ".join(dict.fromkeys(parts)) or str(answer.get("message") or "")


def _twice(known: list[tuple[CheckedManifest, Kind]]) -> Iterator[CheckProblem]:
    """Two gangs that create one name: themselves, or what AppWrappers create."""
    first: dict[tuple[str, str, str, str], str] = {}
    for one, kind in known:
        if not submitting.is_gang(kind):
            continue
        for group, name, called in ((kind.group, kind.kind, _name(one.obj)), *_wrapped(one.obj)):
            mine = f"{kind.kind} {_name(one.obj)} in {one.source}"
            other = first.setdefault((group, name, _namespace_of(one.obj), called), mine) if called else mine
            if other != mine:
                yield CheckProblem(one, f"{name} {called} is also created by {other}")


def _name(obj: Json) -> str:
    metadata = obj.get("metadata")
    return str((metadata.get("name") or "") if isinstance(metadata, dict) else "")


def _wrapped(obj: Json) -> list[tuple[str, str, str]]:
    if obj.get("kind") != "AppWrapper":
        return []
    from shoal.api.appwrapper import AppWrapper
    from shoal.api.codec import typed
    from shoal.controllers.appwrapper.wrapped import wrapped_names

    try:
        wrapper: AppWrapper = typed(obj, AppWrapper)
        return [(version.rpartition("/")[0], kind, name) for version, kind, name in wrapped_names(wrapper)]
    except (msgspec.MsgspecError, BadInput, ShoalError):
        return []
