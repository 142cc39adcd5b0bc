"""The same requests to the embedded server and to kube-apiserver, and what differs in their answers."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec

from shoal.kube.transport import Request, Transport
from tests.patience import PATIENCE

Json = dict[str, Any]
JSON, MERGE = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"

NAMESPACE = "exchange"
CORE = f"/api/v1/namespaces/{NAMESPACE}"
APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}"
BATCH = f"/apis/batch/v1/namespaces/{NAMESPACE}"
THINGS = f"/apis/exchange.example/v1/namespaces/{NAMESPACE}/things"

# What is random or depends on the moment; descriptions of columns are prose.
_MOVING = frozenset(("uid", "resourceVersion", "creationTimestamp", "time", "clusterIP", "clusterIPs", "description",
                     "lastTransitionTime", "batch.kubernetes.io/controller-uid", "controller-uid"))  # fmt: skip
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_AGE = re.compile(r"\d+(m\d*s?|s)")


class Step(msgspec.Struct, frozen=True):
    """One request. `words` false: the two servers may word their refusal differently."""

    method: str
    path: str
    body: Any = None
    media: str = "application/json"
    query: dict[str, str] = {}
    accept: str = "application/json"
    words: bool = True
    owners: bool = True  # whether managedFields are compared, too


def post(path: str, body: Json, **options: Any) -> Step:
    return Step("POST", path, body, **options)


def patch(path: str, media: str, body: Any, manager: str = "", **options: Any) -> Step:
    query = {**options.pop("query", {}), **({"fieldManager": manager} if manager else {})}
    return Step("PATCH", path, body, media=media, query=query, **options)


async def send(transport: Transport, step: Step) -> tuple[int, Any]:
    headers = {"accept": step.accept, "user-agent": "exchange/1"}
    body = b"" if step.body is None else msgspec.json.encode(step.body)
    if body:
        headers["content-type"] = step.media
    request = Request(method=step.method, path=step.path, query=step.query, headers=headers, body=body)
    answer = await transport.send(request, timeout=30)
    return answer.status, msgspec.json.decode(answer.body)


async def until_served(transport: Transport, collection: str) -> None:
    """A real server serves a new kind a moment after its definition is stored, and does not tell when."""
    async with asyncio.timeout(PATIENCE):
        while (await transport.send(Request(method="GET", path=collection))).status != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def differences(step: Step, real: tuple[int, Any], ours: tuple[int, Any]) -> list[str]:
    if real[0] != ours[0]:
        return [f"the real server answers {real[0]}, ours {ours[0]}: {real[1]} / {ours[1]}"]
    left, right = _settled(real[1], step), _settled(ours[1], step)
    if real[0] >= 400 and not step.words:
        left, right = left.get("reason"), right.get("reason")
    return _compare(left, right, "")


def _settled(value: Any, step: Step) -> Any:
    if isinstance(value, dict):
        return {name: _settled(_by_name(item) if name == "managedFields" else item, step)
                for name, item in value.items()
                if name not in _MOVING and (step.owners or name != "managedFields")}  # fmt: skip
    if isinstance(value, list):
        return [_settled(item, step) for item in value]
    if isinstance(value, str):
        return "AGE" if _AGE.fullmatch(value) else _UUID.sub("UID", value)
    return value


def _by_name(owners: Any) -> Any:
    """Those of one second are listed by name, the others by time, and the two servers are not equally fast."""
    if not isinstance(owners, list):
        return owners
    return sorted(owners, key=lambda one: (one["operation"], one["manager"], one.get("subresource", "")))


def _compare(real: Any, ours: Any, path: str) -> list[str]:
    if isinstance(real, dict) and isinstance(ours, dict):
        found = [f"{path}.{name}: only in ours: {ours[name]}" for name in ours if name not in real]
        found += [f"{path}.{name}: only in the real one: {real[name]}" for name in real if name not in ours]
        return found + [
            line for name in real if name in ours for line in _compare(real[name], ours[name], f"{path}.{name}")
        ]
    if isinstance(real, list) and isinstance(ours, list) and len(real) == len(ours):
        return [
            line for i, (a, b) in enumerate(zip(real, ours, strict=True)) for line in _compare(a, b, f"{path}[{i}]")
        ]
    return [] if real == ours else [f"{path}: the real one {real!r}, ours {ours!r}"]
