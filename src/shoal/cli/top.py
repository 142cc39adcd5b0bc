"""`shoal top`: what runs and waits, queues and nodes, drawn again after every change and every other second.

Everything is read with the asker's rights, and shown as it is stored. Without a terminal it is printed once.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import click

from shoal.api.kueue_told import brief
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
SHORT_BAR = 10
DRAWN_EVERY = 2.0
"""Seconds; a change is drawn at once."""
T = TypeVar("T")


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
        async for rows in _often(changes(client, namespace)):
            width, height = shutil.get_terminal_size() if live else (0, 0)
            lines = screen(rows, await _places(client, namespace), SystemClock().now(), height)
            text = "\n".join(show.cut(line, width) for line in lines)
            click.echo(f"{CLEAR}{text}" if live else text)
            if not live:
                return


async def _often(rows: AsyncIterator[T]) -> AsyncIterator[T]:
    """Each as it comes, and the last one again after a while: ages and nodes change meanwhile."""
    last: T | None = None
    coming = asyncio.ensure_future(anext(rows))
    try:
        while True:
            done, _ = await asyncio.wait({coming}, timeout=DRAWN_EVERY if last is not None else None)
            if done:
                last = coming.result()
                coming = asyncio.ensure_future(anext(rows))
            assert last is not None
            yield last
    except StopAsyncIteration:
        return
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


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
    if found["queues"]:
        places = [(f"{one['namespace']}/{one['name']}", one) for one in found["queues"]]
        cells = [[name, str(one["pending"]), str(one["admitted"]), one["state"]] for name, one in places]
        head += ["", *show.table_lines(("QUEUE", "WAITING", "ADMITTED", "STATE"), cells)]
    if found["nodes"]:
        head += ["", *_nodes(found["nodes"])]
    if height:
        head = head[: max(1, height - FEWEST_LINES)]
    ordered = sorted(rows, key=lambda row: (bool(row.get("ended")), row["created"]))
    cells = [
        [f"{row['namespace']}/{row['name']}", row["kind"], row["state"], show.age(parse_time(row["created"]), now),
         brief(show.sized(row["reason"]))]
        for row in ordered
    ]  # fmt: skip
    heading, *body = show.table_lines(("GANG", "KIND", "STATE", "AGE", "REASON"), cells)
    left = height - len(head) - 3 if height else len(body)
    more = [f"and {len(body) - left} more"] if len(body) > left else []
    lines = [*head, "", *([heading] if body else []), *body[: max(0, left - len(more))], *more]
    return [show.harmless(line) for line in lines]


def _nodes(rows: list[dict[str, Any]]) -> list[str]:
    """A row each, with a bar for every resource that some node has."""
    resources = sorted({resource for row in rows for resource in row["amounts"]})
    cells = [
        [row["name"], row["state"], *(
            usage_bar(one, row["amounts"][one], SHORT_BAR) if one in row["amounts"] else "" for one in resources
        )]
        for row in rows
    ]  # fmt: skip
    return show.table_lines(("NODE", "STATE", *(one.upper() for one in resources)), cells)
