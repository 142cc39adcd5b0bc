"""`shoal wait NAME`: until a gang runs or has ended, with an exit code for every outcome."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import click

from shoal.cli import exits, show, telling
from shoal.cli.reach import cluster_options, gang_argument, namespace_option, reach
from shoal.sdk import following
from shoal.sdk.following import GangView

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def duration(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """`90`, `90s`, `1h30m`, in seconds."""
    if value is None:
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", value)
    if parts and "".join(f"{number}{unit}" for number, unit in parts) == value:
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    try:
        return max(0.0, float(value))
    except ValueError:
        raise click.BadParameter(f"{value!r} is no duration, such as 90s, 10m or 1h30m") from None


@click.command(
    epilog="\b\nExamples:\n  shoal wait train\n  shoal wait train --for running --timeout 10m"
    "\n  shoal wait aw/train -n team-a"
)
@gang_argument
@click.option("--for", "goal", type=click.Choice(["finished", "running"]), default="finished", show_default=True)
@click.option("--timeout", callback=duration, metavar="DURATION", help="Such as 90s or 1h30m. Default: no limit.")
@click.option("-q", "--quiet", is_flag=True, help="Do not print changes.")
@namespace_option
@cluster_options
def command(
    gang: str,
    goal: str,
    timeout: float | None,
    quiet: bool,
    namespace: str,
    kubeconfig: Path | None,
    context: str | None,
    name: str | None,
) -> None:
    """Wait until a gang runs or has ended.

    Exits 0 when it got there, 3 when it failed, 4 when it was deleted, 124 when the time ran out.
    """
    where = (kubeconfig, context, name)
    code, last = telling.run(_wait(gang, namespace, goal, timeout, quiet, where))
    if last is not None and not quiet:
        stage = last.outcome.stage
        word = stage if last.outcome.has_ended else "was deleted" if last.gone else f"is {stage}"
        click.echo(show.harmless(f"{last.kind.kind} {last.namespace}/{last.name} {word}"))
    sys.exit(code)


async def _wait(
    text: str, namespace: str, goal: str, timeout: float | None, quiet: bool, where: tuple[Any, ...]
) -> tuple[int, GangView | None]:
    view: GangView | None = None
    async with reach(*where) as client:
        kind, obj = await telling.gang(client, text, namespace)
        try:
            async with asyncio.timeout(timeout):
                async for view in following.follow(client, kind, obj):
                    if not quiet:
                        telling.change(view)
                    if goal == "running" and view.outcome.stage == "running" and not view.gone:
                        return exits.DONE, view
        except TimeoutError:
            return exits.TIMED_OUT, view
    assert view is not None
    code = exits.of(view)
    return (exits.FAILED if code not in (exits.DONE, exits.GONE) else code), view
