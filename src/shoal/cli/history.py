"""`shoal history`: waits, runs, requeues and GPU-hours of gangs, also of those that are gone.

Asked of the leading controller, which keeps them and answers with what the asker may read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shoal.api.times import parse_time, seconds_text
from shoal.cli import show, telling
from shoal.cli.reach import cluster_options, namespace_options, output_option, reach
from shoal.cli.wait import duration
from shoal.errors import ShoalError
from shoal.kube.clock import SystemClock
from shoal.sdk import asking

SECOND = 1_000_000


@click.command(
    epilog="\b\nExamples:\n  shoal history\n  shoal history --by queue --since 30d -A"
    "\n  shoal history --runs --user ann\n  shoal history train-x7k2p\n  shoal history -A -o json"
)
@click.argument("gang", metavar="[NAME]", default="")
@click.option("--by", type=click.Choice(["user", "namespace", "queue"]), default="user", show_default=True)
@click.option("--runs", is_flag=True, help="List every run instead of sums. So does NAME.")
@click.option("--since", callback=duration, default="7d", show_default=True, metavar="DURATION", help="How far back.")
@click.option("--user", default="", help="Gangs of this user, as the server names them.")
@click.option("--queue", default="", help="Gangs of this LocalQueue.")
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True, help="Runs that are listed.")
@namespace_options
@output_option
@cluster_options
def command(
    gang: str, by: str, runs: bool, since: float, user: str, queue: str, limit: int, namespace: str,
    all_namespaces: bool, output: str, kubeconfig: Path | None, context: str | None, name: str | None,
) -> None:  # fmt: skip
    """Sum up what gangs waited, ran and used, by user, namespace or queue; or list their runs.

    It outlives the objects: the controller keeps it for 90 days.
    """
    now = SystemClock().now()
    window = {
        "since": seconds_text(now - int(since * SECOND)), "by": by, "user": user, "queue": queue, "limit": limit,
        "allNamespaces": all_namespaces, "name": gang.rpartition("/")[2],
    }  # fmt: skip
    told = telling.run(_gather(namespace, window, (kubeconfig, context, name)))
    if output != "table":
        show.document(told, output)
        return
    if not told.get("totals"):
        click.echo("no gangs in this time", err=True)
    elif runs or gang:
        _print_runs(told.get("runs") or [], now)
        if told.get("more"):
            click.echo(f"older runs are not shown; --limit is {limit}", err=True)
    else:
        _print_totals(told["totals"], by)
    if told.get("hidden"):
        click.echo(f"not counted: {told['hidden']} gangs that you may not read", err=True)


async def _gather(namespace: str, window: dict[str, Any], where: tuple[Any, ...]) -> dict[str, Any]:
    async with reach(*where) as client:
        try:
            return await asking.history(client, namespace, window)
        except asking.NoAnswer as error:
            raise ShoalError(f"the history is not known: {error}") from None


def _print_totals(totals: list[dict[str, Any]], by: str) -> None:
    show.table(
        (by.upper(), "GANGS", "RUNS", "FAILED", "REQUEUES", "MEAN WAIT", "LONGEST WAIT", "RAN", "GPU-HOURS"),
        [
            (
                one.get("of") or "-",
                str(one.get("gangs", 0)),
                str(one.get("runs", 0)),
                str(one.get("failed", 0)),
                str(one.get("requeues", 0)),
                show.length(one.get("waitedSeconds", 0) / max(1, one.get("gangs", 0))),
                show.length(one.get("longestWaitSeconds", 0)),
                show.length(one.get("ranSeconds", 0)),
                f"{one.get('gpuSeconds', 0) / 3600:.2f}",
            )
            for one in totals
        ],
    )


def _print_runs(runs: list[dict[str, Any]], now: int) -> None:
    rows = []
    for one in runs:
        queued, started, ended = (
            parse_time(one[at]) if one.get(at) else 0 for at in ("queuedAt", "startedAt", "endedAt")
        )
        waited = (started or ended or now) - queued
        ran = (ended or now) - started if started else 0
        rows.append(
            (
                one["namespace"],
                one["kind"],
                one["name"],
                one.get("user") or "-",
                one.get("queue") or "-",
                seconds_text(queued),
                show.length(waited / SECOND),
                show.length(ran / SECOND) if started else "-",
                str(one.get("gpus", 0)),
                one.get("outcome") or ("Running" if started else "Waiting"),
            )
        )
    show.table(("NAMESPACE", "KIND", "NAME", "USER", "QUEUE", "CAME", "WAITED", "RAN", "GPUS", "OUTCOME"), rows)
