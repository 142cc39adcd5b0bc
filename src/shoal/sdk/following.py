"""One gang, followed until its end: a view of it now, and one for every change that a person would see.

Watches wake it, the objects are read again, and only what differs is passed on. A watch that breaks, or that the caller
may not open, is replaced by a look now and then, so that nothing is missed for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.labels import KUEUE_JOB_UID
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.errors import ApiError, Forbidden, KubeError, NotFound, Unsent
from shoal.sdk import alone, queued, rows
from shoal.sdk.outcomes import GangOutcome, outcome_of

SHORTEST_PAUSE = 0.2
"""Between two looks, in seconds: what comes together is one change."""
LONGEST_PAUSE = 5.0
"""Without any news: pods are not watched."""
TROUBLE_PAUSE = 1.0


class GangView(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind
    obj: Json
    workload: Json | None
    state: str
    reason: str
    outcome: GangOutcome
    gone: bool = False
    trouble: str = ""
    """The server does not answer; everything else is as it was last seen."""

    @property
    def name(self) -> str:
        return str(self.obj["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.obj["metadata"]["namespace"])


async def look(client: Client, kind: Kind, obj: Json) -> GangView:
    """What is stored of this gang now."""
    workload = await _workload(client, obj)
    outcome, pods = outcome_of(kind, obj, workload), []
    if kind in alone.KINDS and outcome.stage == "starting" and (cluster := alone.cluster_of(kind, obj)):
        pods = alone.below(kind, obj, await alone.pods(client, obj["metadata"]["namespace"], cluster))
    row = rows.row(kind, obj, workload, pods)
    return GangView(kind=kind, obj=obj, workload=workload, state=row["state"], reason=row["reason"], outcome=outcome)


async def follow(client: Client, kind: Kind, obj: Json) -> AsyncIterator[GangView]:
    """The gang as it is, then after every change, until it has ended or is gone; the last view says which."""
    metadata = obj["metadata"]
    name, namespace, uid = metadata["name"], metadata["namespace"], metadata["uid"]
    news = asyncio.Event()
    watched: list[tuple[Kind, dict[str, str]]] = [(kind, {"field_selector": f"metadata.name={name}"})]
    if queued.queue_of(obj):
        watched.append((kinds.WORKLOAD, {"label_selector": f"{KUEUE_JOB_UID}={uid}"}))
    watchers = [asyncio.ensure_future(rows.wake(client, one, namespace, how, news)) for one, how in watched]
    last: GangView | None = None
    try:
        while True:
            news.clear()
            view = await _seen(client, kind, name, namespace, uid, obj, last)
            if last is None or _told(view) != _told(last):
                yield view
            last, obj = view, view.obj
            if view.gone or view.outcome.has_ended:
                return
            await asyncio.sleep(SHORTEST_PAUSE)
            try:
                async with asyncio.timeout(LONGEST_PAUSE if not view.trouble else TROUBLE_PAUSE):
                    await news.wait()
            except TimeoutError:
                pass
    finally:
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)


def _told(view: GangView) -> tuple[Any, ...]:
    return (view.state, view.reason.partition("\n")[0], view.outcome, view.gone, view.trouble)


async def _seen(
    client: Client, kind: Kind, name: str, namespace: str, uid: str, obj: Json, last: GangView | None
) -> GangView:
    try:
        found = await client.get(kind, name, namespace)
        if found["metadata"]["uid"] == uid:
            return await look(client, kind, found)
    except NotFound:
        pass
    except KubeError as error:
        if last is None or not _passes(error):
            raise
        return msgspec.structs.replace(last, trouble=str(error))
    before = last or await look(client, kind, obj)
    return msgspec.structs.replace(before, gone=True, trouble="")


def _passes(error: KubeError) -> bool:
    """May it be over by the next look? What the server refused will be refused again."""
    return isinstance(error, Unsent) or not isinstance(error, ApiError) or error.code in (408, 429, 500, 502, 503, 504)


async def _workload(client: Client, obj: Json) -> Json | None:
    if not queued.queue_of(obj):
        return None
    uid = obj["metadata"]["uid"]
    try:
        found = await client.list(kinds.WORKLOAD, obj["metadata"]["namespace"], label_selector=f"{KUEUE_JOB_UID}={uid}")
    except (NotFound, Forbidden):
        return None
    return queued.by_owner(found).get(uid)
