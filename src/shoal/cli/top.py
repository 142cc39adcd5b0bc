"""`shoal top`: what runs and waits, queues and nodes, drawn again after every change until Ctrl-C.

Everything is read with the asker's rights, and shown as it is stored. Without a terminal it is printed once.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click

from shoal.api.times import parse_time
from shoal.cli import show, telling
from shoal.cli.free import usage_bar
from shoal.cli.reach import cluster_options, namespace_options, reach
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.sdk import places
from shoal.sdk.rows import changes

CLEAR = "\x1b[H\x1b[2J"
FEWEST_LINES = 10


@click.command(epilog="\b\nExamples:\n  shoal top\n  shoal top -A\n  shoal top -n team-a --once")
@click.option("--once", is_flag=True, help="Print once and end.")
@namespace_options
@cluster_options
def command(
    once: bool, namespace: str, all_namespaces: bool, kubeconfig: Path | None, context: str | None, name: str | None
) -> None:
    """Show gangs, queues and nodes, live."""
    live = sys.stdout.isatty() and not once
    telling.run(_top(None if all_namespaces else namespace, live, (kubeconfig, context, name)))


async def _top(namespace: str | None, live: bool, where: tuple[Any, ...]) -> None:
    async with reach(*where) as client:
        async for rows in changes(client, namespace):
            width, height = shutil.get_terminal_size() if live else (0, 0)
            lines = screen(rows, await _places(client, namespace), SystemClock().now(), height)
            text = "\n".join(show.cut(line, width) for line in lines)
            click.echo(f"{CLEAR}{text}" if live else text)
            if not live:
                return


async def _places(client: Client, namespace: str | None) -> dict[str, list[dict[str, Any]]]:
    """What the asker may list of it."""
    found: dict[str, list[dict[str, Any]]] = {"queues": [], "nodes": []}
    try:
        found["queues"] = await places.queues(client, namespace)
    except ShoalError:
        pass
    try:
        found["nodes"] = await places.nodes(client)
    except ShoalError:
        pass
    return found


def screen(rows: list[dict[str, Any]], found: dict[str, list[dict[str, Any]]], now: int, height: int) -> list[str]:
    """At most so many lines, 0 for all; what waits or runs comes before what has ended."""
    states = Counter(row["state"] for row in rows)
    head = [f"{len(rows)} gangs: " + (", ".join(f"{count} {state}" for state, count in states.most_common()) or "none")]
    for queue in found["queues"]:
        head.append(
            f"queue {queue['namespace']}/{queue['name']} ({queue['state']}): {queue['pending']} wait, "
            f"{queue['admitted']} admitted"
        )
    for node in found["nodes"]:
        parts = [f"{resource} {usage_bar(resource, one)}" for resource, one in node["amounts"].items()]
        head.append(f"node {node['name']} ({node['state']}): {'  '.join(parts)}")
    if height:
        head = head[: max(1, height - FEWEST_LINES)]
    ordered = sorted(rows, key=lambda row: (bool(row.get("ended")), row["created"]))
    body = [
        f"{row['namespace']}/{row['name']}  {row['kind']}  {row['state']}  "
        f"{show.age(parse_time(row['created']), now)}  {row['reason']}"
        for row in ordered
    ]
    left = height - len(head) - 2 if height else len(body)
    more = [f"and {len(body) - left} more"] if len(body) > left else []
    return [show.harmless(line) for line in [*head, "", *body[: max(0, left - len(more))], *more]]
