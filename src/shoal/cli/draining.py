"""`shoal cluster cordon`, `uncordon` and `drain`: a member that takes no new gangs, and the wait for those it has.

The mark is an annotation of the MultiKueueCluster; the hub's controller obeys it. Draining stops nothing: it waits.
"""

from __future__ import annotations

import asyncio
from typing import Any

import click

from shoal.api import kinds
from shoal.api.kueue_told import holds
from shoal.api.meta import Json
from shoal.api.objects import annotation, controller_of
from shoal.api.times import seconds_text
from shoal.cli.reach import reach
from shoal.errors import ShoalError
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.errors import NotFound

SHOWN = 5


async def cordon(member: str, hub: tuple[Any, ...], *, cordoned: bool) -> None:
    async with reach(*hub) as client:
        await _mark(client, member, cordoned=cordoned)


async def drain(member: str, timeout: float | None, hub: tuple[Any, ...]) -> None:
    async with reach(*hub) as client:
        await _mark(client, member, cordoned=True)
        click.echo(f"cluster {member} cordoned")
        workloads: Cache[Json] = Cache(client, kinds.WORKLOAD)
        feeding = asyncio.create_task(workloads.run())
        try:
            async with asyncio.timeout(timeout):
                await _until_empty(workloads, member)
        except TimeoutError:
            left = _gangs_in(workloads, member)
            raise ShoalError(
                f"{len(left)} gangs are still in {member} after {timeout:g} s: {_listed(left)}; it stays cordoned"
            ) from None
        finally:
            feeding.cancel()
            await asyncio.wait({feeding})
    click.echo(f"cluster {member} drained: no gang is in it; shoal cluster remove {member} takes it away")


async def _mark(client: Client, member: str, *, cordoned: bool) -> None:
    from shoal.controllers.multicluster.words import CORDONED

    try:
        found = await client.get(kinds.MULTIKUEUE_CLUSTER, member)
        if bool(annotation(found, CORDONED)) == cordoned:
            return
        since = seconds_text(SystemClock().now()) if cordoned else None
        await client.patch(kinds.MULTIKUEUE_CLUSTER, member, None, {"metadata": {"annotations": {CORDONED: since}}})
    except NotFound:
        raise ShoalError(f"there is no cluster {member}; shoal cluster list names those that there are") from None


async def _until_empty(workloads: Cache[Json], member: str) -> None:
    changed = asyncio.Event()
    workloads.subscribe(lambda change: changed.set())
    await workloads.synced.wait()
    told = -1
    while left := _gangs_in(workloads, member):
        if len(left) != told:
            click.echo(f"{len(left)} gangs are in {member}: {_listed(left)}", err=True)
            told = len(left)
        await changed.wait()
        changed.clear()


def cluster_of(workload: Json) -> str:
    """The member that runs it or may still start it; empty where there is none, or it has ended."""
    return "" if holds(workload, "Finished") else str((workload.get("status") or {}).get("clusterName") or "")


def _gangs_in(workloads: Cache[Json], member: str) -> list[str]:
    """Names of the gangs that this member runs or may still start."""
    found = []
    for workload in workloads.list():
        if cluster_of(workload) == member:
            owner = controller_of(workload)
            name = owner["name"] if owner else workload["metadata"]["name"]
            found.append(f"{workload['metadata'].get('namespace', '')}/{name}")
    return sorted(found)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
