"""The last lines of a gang, for `shoal why`: of the log that Ray kept of a job, of failed containers, or of the driver.

Read with the asker's rights; what may not be read is left out. Lines come without terminal codes.
"""

from __future__ import annotations

from typing import Any

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.log_text import MOST_LINES, last_lines, without_codes
from shoal.api.meta import Json
from shoal.api.objects import controller_of
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.sdk import logs

BETWEEN = (kinds.RAY_JOB, kinds.RAY_CLUSTER, kinds.JOB)
"""Kinds that stand between a gang and its pods, the upper first."""
MOST_CONTAINERS = 2
MOST_BYTES = 64 << 10


async def last_words(client: Client, kind: Kind, obj: Json, ended: bool = False) -> list[dict[str, Any]]:
    """Each with what it is `of`, and its `lines`. `ended`: where nothing failed, those of its log."""
    found = []
    if kind == kinds.RAY_JOB and (lines := last_lines(str((obj.get("status") or {}).get("message") or ""))):
        found.append({"of": "the Ray job", "lines": lines})
    for pod, container, previous in (await _failed(client, obj))[:MOST_CONTAINERS]:
        name = pod["metadata"]["name"]
        if lines := await _log(client, pod, container, previous):
            found.append({"of": f"pod {name}, container {container}", "lines": lines})
    return found or (await _of_the_log(client, kind, obj) if ended else [])


async def _of_the_log(client: Client, kind: Kind, obj: Json) -> list[dict[str, Any]]:
    """Of its driver, or what was kept of it."""
    end: list[tuple[str, bytes]] = []

    def write(source: logs.LogSource, chunk: bytes) -> None:
        end[:] = [(source.pod, ((end[0][1] if end else b"") + chunk)[-MOST_BYTES:])]

    try:
        await logs.read(client, kind, obj, write)
    except (KubeError, ShoalError):
        return []
    return [{"of": f"pod {pod}", "lines": lines} for pod, text in end if (lines := _lines(text))]


async def _failed(client: Client, obj: Json) -> list[tuple[Json, str, bool]]:
    """Pods below the gang with a container that failed; True where it runs again, so that its log is the previous."""
    namespace, owners = obj["metadata"]["namespace"], {obj["metadata"]["uid"]}
    for kind in BETWEEN:
        owners |= {one["metadata"]["uid"] for one in await _listed(client, kind, namespace) if _owner(one) in owners}
    failed = []
    for pod in await _listed(client, kinds.POD, namespace):
        if _owner(pod) not in owners:
            continue
        status = pod.get("status") or {}
        for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
            now, before = (((one.get(name) or {}).get("terminated") or {}) for name in ("state", "lastState"))
            if now.get("exitCode") or before.get("exitCode"):
                failed.append((pod, str(one.get("name")), not now))
    return sorted(failed, key=lambda one: str(one[0]["metadata"].get("creationTimestamp")), reverse=True)


def _owner(obj: Json) -> str:
    return str((controller_of(obj) or {}).get("uid") or "")


async def _listed(client: Client, kind: Kind, namespace: str) -> list[Json]:
    try:
        return await client.list(kind, namespace)
    except KubeError:
        return []


async def _log(client: Client, pod: Json, container: str, previous: bool) -> list[str]:
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    text = b""
    try:
        async for chunk in client.logs(name, namespace, container=container, previous=previous, tail_lines=MOST_LINES):
            text = (text + chunk)[-MOST_BYTES:]
    except KubeError:
        return []
    return _lines(text)


def _lines(text: bytes) -> list[str]:
    lines = without_codes(text.decode(errors="replace")).split("\n")
    return [line[:400] for line in lines if line.strip()][-MOST_LINES:]
