"""`shoal cluster cordon`, `uncordon`, `drain` and `forget`: a member that takes no new gangs, and the wait for those it
has; one that is gone for good.

The marks are annotations of the MultiKueueCluster; the hub's controller obeys them. Draining stops nothing unless it
moves gangs, and then only what has room elsewhere.
"""

from __future__ import annotations

import asyncio
from typing import Any

import click

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.kueue_told import holds
from shoal.api.meta import Json
from shoal.api.objects import annotation, controller_of
from shoal.api.times import seconds_text
from shoal.cli.reach import reach
from shoal.errors import ShoalError
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.discovery import Discovery
from shoal.kube.errors import NotFound
from shoal.sdk import queued

SHOWN = 5
GANGS = (kinds.WORKLOAD, kinds.APP_WRAPPER, kinds.APP_WRAPPER_LEGACY)


async def cordon(member: str, hub: tuple[Any, ...], *, cordoned: bool) -> None:
    async with reach(*hub) as client:
        await mark(client, member, cordoned=cordoned)


async def drain(member: str, timeout: float | None, hub: tuple[Any, ...], *, move: bool = False) -> None:
    async with reach(*hub) as client:
        await mark(client, member, cordoned=True, move=move)
        click.echo(f"cluster {member} cordoned" + ("; its gangs move where there is room for them" if move else ""))
        gangs: list[Cache[Json]] = [Cache(client, kind) for kind in await served(client)]
        feeding = [asyncio.create_task(one.run()) for one in gangs]
        try:
            async with asyncio.timeout(timeout):
                await _until_empty(gangs, member)
        except TimeoutError:
            left = _gangs_in(gangs, member)
            raise ShoalError(
                f"{len(left)} gangs are still in {member} after {timeout:g} s: {_listed(left)}; it stays cordoned"
            ) from None
        finally:
            for task in feeding:
                task.cancel()
            await asyncio.wait(feeding)
    click.echo(f"cluster {member} drained: no gang is in it; shoal cluster remove {member} takes it away")


async def mark(client: Client, member: str, *, cordoned: bool, move: bool = False) -> None:
    from shoal.controllers.multicluster.words import CORDONED, DRAINING

    found = await _cluster(client, member)
    since = annotation(found, CORDONED) or seconds_text(SystemClock().now())
    change = {CORDONED: since if cordoned else None, DRAINING: "move" if move else None}
    await client.patch(kinds.MULTIKUEUE_CLUSTER, member, None, {"metadata": {"annotations": change}})


async def forget(member: str, hub: tuple[Any, ...]) -> None:
    """A person's word that nothing of the hub runs there any more."""
    from shoal.controllers.multicluster.words import FORGOTTEN

    async with reach(*hub) as client:
        found = await _cluster(client, member)
        if holds(found, "Active"):
            raise ShoalError(
                f"cluster {member} answers, so its gangs are not gone: shoal cluster drain {member} --move moves them"
            )
        change = {"metadata": {"annotations": {FORGOTTEN: seconds_text(SystemClock().now())}}}
        await client.patch(kinds.MULTIKUEUE_CLUSTER, member, None, change)


async def _cluster(client: Client, member: str) -> Json:
    try:
        found: Json = await client.get(kinds.MULTIKUEUE_CLUSTER, member)
    except NotFound:
        raise ShoalError(f"there is no cluster {member}; shoal cluster list names those that there are") from None
    return found


async def why(member: str, hub: tuple[Any, ...]) -> tuple[Json, list[tuple[str, str]]]:
    """The MultiKueueCluster, and what it says of every gang that waits: names and reasons."""
    async with reach(*hub) as client:
        found = await _cluster(client, member)
        gangs = [one for kind in await served(client) for one in await client.list(kind)]
    rows = [(_name(one), reason) for one in gangs if (reason := reason_of(one, member))]
    return found, sorted(rows)


def reason_of(gang: Json, member: str) -> str:
    """Why this member does not take a gang that waits, as the gang's status says it; empty where it says nothing."""
    status = gang.get("status") or {}
    texts = [str(status.get("message") or "")]
    texts += [str(one.get("message") or "") for one in status.get("conditions") or () if one.get("status") == "False"]
    texts += [str(one.get("message") or "") for one in status.get("admissionChecks") or ()]
    if cluster_of(gang) or holds(gang, "Finished"):
        return ""
    for text in texts:
        for part in text.removeprefix("no cluster takes it now: ").split("; "):
            name, colon, reason = part.partition(": ")
            if colon and name == member:
                return reason
    return ""


async def served(client: Client) -> list[Kind]:
    """Kinds of gangs that a hub sends, as far as they are installed here."""
    found = Discovery(client)
    return [one for one in GANGS if await found.kind_of(one.api_version, one.kind) is not None]


async def _until_empty(gangs: list[Cache[Json]], member: str) -> None:
    changed = asyncio.Event()
    for cache in gangs:
        cache.subscribe(lambda change: changed.set())
        await cache.synced.wait()
    told = -1
    while left := _gangs_in(gangs, member):
        if len(left) != told:
            click.echo(f"{member} still has gangs ({len(left)}): {_listed(left)}", err=True)
            told = len(left)
        await changed.wait()
        changed.clear()


def cluster_of(gang: Json) -> str:
    """The member that runs it or may still start it; empty where there is none, or it has ended. Of a Workload, or of
    an AppWrapper of v1beta1."""
    status = gang.get("status") or {}
    if holds(gang, "Finished") or status.get("state") in ("Completed", "Failed", "Deleted"):
        return ""
    return queued.cluster_of(gang) or queued.given_cluster(gang)


def _gangs_in(gangs: list[Cache[Json]], member: str) -> list[str]:
    """Names of the gangs that this member runs or may still start."""
    found = []
    for gang in (one for cache in gangs for one in cache.list()):
        if cluster_of(gang) == member:
            found.append(_name(gang))
    return sorted(found)


def _name(gang: Json) -> str:
    owner = controller_of(gang)
    return f"{gang['metadata'].get('namespace', '')}/{owner['name'] if owner else gang['metadata']['name']}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
