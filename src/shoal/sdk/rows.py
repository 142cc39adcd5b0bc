"""Every gang as one row: name, state, the reason it waits, as its own controller and its pods tell of it.

Shared by `shoal get` and the commands that follow one gang. Reads with the caller's rights and decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec

from shoal.api import kinds, ray_gang
from shoal.api.kind import Kind
from shoal.api.labels import KUEUE_PRIORITY_CLASS
from shoal.api.log_text import headline
from shoal.api.meta import Json
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.discovery import Discovery
from shoal.kube.errors import Forbidden, KubeError, NotFound
from shoal.sdk import alone, gangs, queued
from shoal.sdk.listed import Listed

PAUSE = 1.0
"""Between two looks at everything, in seconds."""
AT_ONCE = 2
"""Lists under way: each more is another connection to be secured, which takes longer than a short list."""
LONGEST_PAUSE = 5.0
"""Without any news: pods are not watched."""


class Listing(msgspec.Struct, frozen=True):
    """Rows of what the asker may list, and the resources that they may not."""

    rows: list[dict[str, Any]]
    refused: list[str]


async def rows_of(client: Client, namespace: str | None, selector: str = "") -> list[dict[str, Any]]:
    """Every gang, as its own controller and its pods tell of it; `selector` is for labels."""
    return (await listing(client, namespace, selector)).rows


async def listing(client: Client, namespace: str | None, selector: str = "") -> Listing:
    """What the asker may list of it. Raises when that is nothing."""
    refusals: dict[Kind, Forbidden] = {}
    slots = asyncio.Semaphore(AT_ONCE)

    async def listed(kind: Kind, selector: str) -> list[Json]:
        async with slots:
            return await _listed(client, kind, namespace, selector, refusals)

    known = (*gangs.KINDS, *gangs.QUEUED)
    held, *found = await asyncio.gather(listed(kinds.WORKLOAD, ""), *(listed(kind, selector) for kind in known))
    others = await queued.other_kinds(client, held)
    found += await asyncio.gather(*(listed(kind, selector) for kind in others))
    every = (*known, *others)
    if all(kind in refusals for kind in every):
        error = refusals[every[0]]
        raise ShoalError(f"{error}; ask for that right, or name a namespace with -n") from error
    refused = [kind for kind in (*every, kinds.WORKLOAD) if kind in refusals]
    missing = await _not_served(client, refused)
    workloads = queued.by_owner(held)
    pods = await alone.pods(client, namespace) if any(found[every.index(one)] for one in alone.KINDS) else {}
    rows = [
        row(kind, obj, workloads.get(obj["metadata"]["uid"]), alone.below(kind, obj, pods))
        for kind, objects in zip(every, found, strict=True)
        for obj in objects
        if ray_gang.stands_alone(obj) or obj["metadata"]["uid"] in workloads
    ]
    rows.sort(key=lambda row: (row["namespace"], row["created"], row["kind"], row["name"]))
    return Listing(rows, [kind.resource for kind in refused if kind not in missing])


async def changes(client: Client, namespace: str | None, selector: str = "") -> AsyncIterator[list[dict[str, Any]]]:
    """All rows now, and again after every change, for ever."""
    news = asyncio.Event()
    watched = (*gangs.KINDS, *gangs.QUEUED, kinds.WORKLOAD)
    watchers = [asyncio.ensure_future(wake(client, kind, namespace, {}, news)) for kind in watched]
    try:
        while True:
            news.clear()
            yield await rows_of(client, namespace, selector)
            await asyncio.sleep(PAUSE)
            try:
                async with asyncio.timeout(LONGEST_PAUSE):
                    await news.wait()
            except TimeoutError:
                pass
    finally:
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)


async def wake(client: Client, kind: Kind, namespace: str | None, how: dict[str, str], news: asyncio.Event) -> None:
    """Set `news` whenever something of this kind changes; a watch that may not be opened is left to the clock."""
    while True:
        try:
            selectors = (how.get("label_selector", ""), how.get("field_selector", ""))
            events = client.watch(kind, namespace, label_selector=selectors[0], field_selector=selectors[1])
            async with aclosing(events):
                async for event in events:
                    if event.type != "BOOKMARK":
                        news.set()
        except (Forbidden, NotFound):
            return
        except KubeError:
            pass
        news.set()
        await asyncio.sleep(PAUSE)


async def _listed(
    client: Client, kind: Kind, namespace: str | None, selector: str, refusals: dict[Kind, Forbidden]
) -> list[Json]:
    """A kind that is not installed has no gangs; one that may not be listed is noted."""
    every = kind in gangs.KINDS or kind == kinds.WORKLOAD
    labels = ",".join(filter(None, ("" if every else queued.QUEUE, selector)))
    try:
        return await client.list(kind, namespace, label_selector=labels, type=Listed)
    except NotFound:
        return []
    except Forbidden as error:
        refusals[kind] = error
        return []


async def _not_served(client: Client, refused: list[Kind]) -> list[Kind]:
    """A server refuses before it looks whether there is such a kind; nothing is missed of one that is not served."""
    discovery = Discovery(client)
    try:
        return [kind for kind in refused if await discovery.kind_of(kind.api_version, kind.kind) is None]
    except Forbidden:
        return []


def row(kind: Kind, obj: Json, workload: Json | None, pods: list[Json]) -> dict[str, Any]:
    """`pods` are those below a Ray cluster or Ray job."""
    held = queued.told(workload) if workload is not None else None
    if workload is None or gangs.is_known(kind):
        state, reason = held or gangs.state_of(kind, obj)
        ended = gangs.ended_at(kind, obj)
    else:
        state, reason = held or queued.ran(workload)
        ended = queued.ended_at(workload)
    cluster = queued.cluster_of(workload) or queued.given_cluster(obj)
    if pods and held is None and not ended:
        pending = headline(alone.why_pending(pods), gangs.LONGEST_REASON)
        reason = f"{reason}; {pending}" if pending and state == "Incomplete" else reason or pending
    metadata = obj["metadata"]
    made = {
        "namespace": metadata.get("namespace", ""),
        "kind": kind.kind,
        "name": metadata["name"],
        "state": state,
        "reason": reason,
        "created": metadata["creationTimestamp"],
        "uid": metadata["uid"],
        "resource": kind.group_kind.lower(),
    }
    further = {"queue": queued.queue_of(obj), "priority": _priority(obj, workload), "cluster": cluster, "ended": ended}
    made.update({name: value for name, value in further.items() if value})
    return made


def _priority(obj: Json, workload: Json | None) -> str:
    """The class that it names, or the number that its controller works with."""
    named = (obj["metadata"].get("labels") or {}).get(KUEUE_PRIORITY_CLASS)
    return str(named or ((workload or obj).get("spec") or {}).get("priority") or "")
