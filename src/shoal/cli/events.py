"""`shoal events NAME`: what happened to a gang and to everything that it made, oldest first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shoal.api.times import parse_time
from shoal.cli import show, telling
from shoal.cli.reach import cluster_options, gang_argument, namespace_option, output_option, reach
from shoal.kube.clock import SystemClock
from shoal.sdk.happened import events_of


@click.command(epilog="\b\nExamples:\n  shoal events train\n  shoal events rayjob/train -o json")
@gang_argument
@namespace_option
@output_option
@cluster_options
def command(
    gang: str, namespace: str, output: str, kubeconfig: Path | None, context: str | None, name: str | None
) -> None:
    """List the events of a gang, its Workload, Ray cluster, Jobs and pods."""
    rows = telling.run(_gather(gang, namespace, (kubeconfig, context, name)))
    if output != "table":
        show.document(rows, output)
        return
    if not rows:
        click.echo("no events; the server keeps them for an hour", err=True)
        return
    now = SystemClock().now()
    show.table(
        ("AGE", "TYPE", "REASON", "OBJECT", "MESSAGE"),
        [
            (show.age(parse_time(row["at"]), now), row["type"], row["reason"], row["object"], row["message"])
            for row in rows
        ],
    )


async def _gather(text: str, namespace: str, where: tuple[Any, ...]) -> list[dict[str, Any]]:
    async with reach(*where) as client:
        kind, obj = await telling.gang(client, text, namespace)
        return await events_of(client, kind, obj)
