"""`shoal get`: every gang in one table, whatever its kind, with the reason it waits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.cli import alone, gangs, queued, show
from shoal.cli.reach import cluster_options, namespace_options, output_option, reach
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.errors import Forbidden, NotFound


@click.command(epilog="\b\nExamples:\n  shoal get\n  shoal get -A\n  shoal get -n team-a -o json")
@namespace_options
@output_option
@cluster_options
def command(
    namespace: str, all_namespaces: bool, output: str, kubeconfig: Path | None, context: str | None, name: str | None
) -> None:
    """List gangs: AppWrappers, RayJobs, RayClusters, Rays and queued jobs of every other kind that have no owner."""
    rows = asyncio.run(_gather(None if all_namespaces else namespace, kubeconfig, context, name))
    if output != "table":
        show.document(rows, output)
        return
    if not rows:
        where = "any namespace" if all_namespaces else f"namespace {namespace}"
        click.echo(f"no gangs in {where}", err=True)
        return
    now = SystemClock().now()
    elsewhere = any("cluster" in row for row in rows)
    show.table(
        ("NAMESPACE", "KIND", "NAME", *(["CLUSTER"] if elsewhere else []), "STATE", "AGE", "REASON"),
        [
            (
                row["namespace"],
                row["kind"],
                row["name"],
                *([row.get("cluster", "")] if elsewhere else []),
                row["state"],
                show.age(parse_time(row["created"]), now),
                _reason(row, now),
            )
            for row in rows
        ],
    )


def _reason(row: dict[str, Any], now: int) -> str:
    """Of what has ended, also when."""
    ended = f"ended {show.age(parse_time(row['ended']), now)} ago" if row.get("ended") else ""
    return "; ".join(part for part in (ended, row["reason"]) if part)


async def _gather(namespace: str | None, *where: Any) -> list[dict[str, Any]]:
    async with reach(*where) as client:
        return await rows_of(client, namespace)


async def rows_of(client: Client, namespace: str | None) -> list[dict[str, Any]]:
    """Every gang without an owner, as its own controller and its pods tell of it."""
    held = await queued.workloads(client, namespace)
    every = (*gangs.KINDS, *gangs.QUEUED, *await queued.other_kinds(client, held))
    found = await asyncio.gather(*(_listed(client, kind, namespace) for kind in every))
    workloads = queued.by_owner(held)
    pods = await alone.pods(client, namespace) if any(found[every.index(one)] for one in alone.KINDS) else {}
    rows = [
        row(kind, obj, workloads.get(obj["metadata"]["uid"]), alone.below(kind, obj, pods))
        for kind, objects in zip(every, found, strict=True)
        for obj in objects
        if gangs.owner(obj) is None
    ]
    return sorted(rows, key=lambda row: (row["namespace"], row["created"], row["kind"], row["name"]))


async def _listed(client: Client, kind: Kind, namespace: str | None) -> list[Json]:
    """A kind that is not installed has no gangs; one that may not be read is said."""
    try:
        return await client.list(kind, namespace, label_selector="" if kind in gangs.KINDS else queued.QUEUE)
    except NotFound:
        return []
    except Forbidden as error:
        raise ShoalError(f"{error}; ask for that right, or name a namespace with -n") from error


def row(kind: Kind, obj: Json, workload: Json | None, pods: list[Json]) -> dict[str, Any]:
    """`pods` are those below a Ray cluster or Ray job."""
    held = queued.told(workload) if workload is not None else None
    if workload is None or gangs.is_known(kind):
        state, reason = held or gangs.state_of(kind, obj)
        ended = gangs.ended_at(kind, obj)
    else:
        state, reason = held or queued.ran(workload)
        ended = queued.ended_at(workload)
    cluster = queued.cluster_of(workload)
    if held is None and not ended:
        pending = alone.why_pending(pods)
        reason = f"{reason}; {pending}" if pending and state == "Incomplete" else reason or pending
    return {
        "namespace": obj["metadata"].get("namespace", ""),
        "kind": kind.kind,
        "name": obj["metadata"]["name"],
        "state": state,
        "reason": reason,
        "created": obj["metadata"]["creationTimestamp"],
        **({"cluster": cluster} if cluster else {}),
        **({"ended": ended} if ended else {}),
    }
