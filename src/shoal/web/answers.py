"""Answers about one gang: what it is, its events and pods, its log, why it waits and in which place.

Each is made by the same functions as the commands', with the visitor's client. What the visitor may not read is refused
by the API server, or counted by the leading controller.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.errors import BadInput
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.errors import Forbidden
from shoal.sdk import asking, explaining, gangs, happened, queued
from shoal.web import views
from shoal.web.replies import reply
from shoal.web.sessions import PageSession

MOST_EVENTS = 200
TAIL_LINES = 2000
MOST_LOGS = 12
"""Of one session, followed together."""
ASKED_AT_ONCE = 4
POSITION_KEPT = 10.0


async def me(request: web.Request, session: PageSession) -> web.Response:
    return reply({"user": session.visitor.user, "namespace": session.visitor.namespace, "now": SystemClock().now()})


async def gang(request: web.Request, session: PageSession) -> web.Response:
    """Everything that its own page shows, but for the log and the explanation."""
    client = session.visitor.client
    kind, obj = await _found(client, request)
    below = await happened.made_by(client, obj)
    workload = queued.by_owner(below.get(kinds.WORKLOAD, [])).get(obj["metadata"]["uid"])
    pods = below.get(kinds.POD, [])
    try:
        made = {one["metadata"]["uid"] for found in below.values() for one in found}
        events = await happened.events_about(client, kind, obj, made)
    except Forbidden:
        events = []
    told = [{"kind": kind.kind, **obj}, *([workload] if workload is not None else [])]
    conditions = [row for one in told for row in views.condition_rows(one)]
    shown = pods if kind in (kinds.RAY_JOB, kinds.RAY_CLUSTER) else []
    clusters = [obj] if kind == kinds.RAY_CLUSTER else below.get(kinds.RAY_CLUSTER, [])
    return reply(
        {
            "row": views.gang_row(kind, obj, workload, shown),
            "conditions": sorted(conditions, key=lambda one: str(one["at"]), reverse=True),
            "events": events[-MOST_EVENTS:][::-1],
            "pods": [views.pod_row(one) for one in sorted(pods, key=lambda one: str(one["metadata"]["name"]))],
            "dashboard": [one["metadata"]["name"] for one in clusters if (one.get("status") or {}).get("head")],
            "readsPods": kinds.POD in below,
            "asks": _asks(obj),
        }
    )  # fmt: skip


def _asks(obj: Json) -> dict[str, str]:
    """What its user wrote that a person asks for first."""
    spec = obj.get("spec") or {}
    found = {
        "entrypoint": spec.get("entrypoint"),
        "Ray version": (spec.get("rayClusterSpec") or spec).get("rayVersion"),
    }
    return {name: str(value)[:500] for name, value in found.items() if value}


async def why(request: web.Request, session: PageSession) -> web.Response:
    client = session.visitor.client
    kind, name, namespace = await _named(client, request)
    async with _turn(session):
        return reply(await explaining.explain_to(client, (kind,), name, namespace))


async def position(request: web.Request, session: PageSession) -> web.Response:
    """Its place in the line, asked of the leading controller; kept for a moment, and few at once."""
    client = session.visitor.client
    kind, name, namespace = await _named(client, request)
    kept: dict[tuple[str, ...], tuple[float, dict[str, Any]]] = session.kept.setdefault("positions", {})
    key, now = (kind.group_kind, namespace, name), SystemClock().monotonic()
    for old in [one for one, (until, _) in kept.items() if until <= now]:
        del kept[old]
    if key not in kept:
        async with _turn(session):
            try:
                answer = await asking.ask(client, kind, name, namespace, fresh=False)
            except asking.NoAnswer as error:
                answer = {"notAnswered": str(error)}
        wanted = (
            "position",
            "queueLength",
            "clusterQueue",
            "localPosition",
            "localQueueLength",
            "reason",
            "message",
            "estimate",
        )
        told = {one: answer[one] for one in (*wanted, "notAnswered") if answer.get(one)}
        kept[key] = (SystemClock().monotonic() + POSITION_KEPT, told)
    return reply(kept[key][1])


async def log(request: web.Request, session: PageSession) -> web.StreamResponse:
    """The end of a container's log, then what it goes on to say while the tab listens."""
    query, client = request.query, session.visitor.client
    pod, namespace = _plain(query.get("pod", "")), _plain(query.get("namespace", ""))
    if session.kept.setdefault("logs", 0) >= MOST_LOGS:
        raise BadInput("this session follows too many logs; close some tabs")
    session.kept["logs"] += 1
    chunks = client.logs(
        pod, namespace, container=query.get("container", ""), follow=query.get("follow") == "1", tail_lines=TAIL_LINES
    )
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
    begun = False
    try:
        async for chunk in chunks:
            if not begun:
                begun = True
                await response.prepare(request)
            await response.write(chunk)
        if not begun:
            await response.prepare(request)
        await response.write_eof()
    except ConnectionError:
        pass  # the tab is gone
    finally:
        session.kept["logs"] -= 1
        await chunks.aclose()  # type: ignore[attr-defined]
    return response


async def kept_log(request: web.Request, session: PageSession) -> web.Response:
    """What the controller kept of a gang whose pods, or which itself, is gone."""
    query = request.query
    choice = {"kind": query.get("kind", "").partition(".")[0], "name": _plain(query.get("name", ""))}
    known = {one.kind.lower(): one.kind for one in (*gangs.KINDS, *gangs.QUEUED)}
    choice["kind"] = known.get(choice["kind"].lower(), "")
    async with _turn(session):
        try:
            found = await asking.kept_logs(session.visitor.client, _plain(query.get("namespace", "")), choice)
        except asking.NoAnswer as error:
            return reply({"notAnswered": str(error)})
    return reply({"logs": found})


async def named_gang(client: Client, request: dict[str, Any]) -> tuple[Kind, Json]:
    kind = await _kind(client, str(request.get("kind") or ""), _plain(str(request.get("namespace") or "")))
    return await explaining.find(client, (kind,), _plain(str(request.get("name") or "")), str(request["namespace"]))


async def _found(client: Client, request: web.Request) -> tuple[Kind, Json]:
    return await named_gang(client, dict(request.query))


async def _named(client: Client, request: web.Request) -> tuple[Kind, str, str]:
    query = request.query
    name, namespace = _plain(query.get("name", "")), _plain(query.get("namespace", ""))
    return await _kind(client, query.get("kind", ""), namespace), name, namespace


async def _kind(client: Client, word: str, namespace: str) -> Kind:
    """As rows call it: `rayjob.ray.io`."""
    for one in (*gangs.KINDS, *gangs.QUEUED):
        if one.group_kind.lower() == word.lower():
            return one
    if not word:
        raise BadInput("kind is missing")
    try:
        return next(iter(await explaining.searched_kinds(client, word, namespace)))
    except StopIteration:
        raise BadInput(f"there is no kind {word[:80]!r}") from None


def _plain(name: str) -> str:
    """A name as Kubernetes has them; nothing else gets into a path."""
    if not name or len(name) > 253 or not all(letter.isalnum() or letter in "-._" for letter in name):
        raise BadInput(f"{name[:80]!r} is no name of an object")
    return name


def _turn(session: PageSession) -> asyncio.Semaphore:
    """Questions cost the controller time: a session asks few at once."""
    found: asyncio.Semaphore = session.kept.setdefault("asking", asyncio.Semaphore(ASKED_AT_ONCE))
    return found
