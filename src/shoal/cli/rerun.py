"""`shoal rerun NAME`: the same gang once more, as the user wrote it, under a new name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from shoal.cli import exits, show, telling
from shoal.cli.reach import cluster_options, gang_argument, namespace_option, reach
from shoal.cli.submit import attend
from shoal.sdk import acts


@click.command(epilog="\b\nExamples:\n  shoal rerun train-x7k20\n  shoal rerun rayjob/train --job-name train-2")
@gang_argument
@click.option("--job-name", default="", help="Default: the old name with new letters at its end.")
@click.option("--no-wait", is_flag=True, help="Return once it is created.")
@namespace_option
@cluster_options
def command(
    gang: str,
    job_name: str,
    no_wait: bool,
    namespace: str,
    kubeconfig: Path | None,
    context: str | None,
    name: str | None,
) -> None:
    """Submit a gang again, without what admission and controllers put into it; then as `shoal submit`."""
    sys.exit(telling.run(_rerun(gang, job_name, no_wait, namespace, (kubeconfig, context, name))))


async def _rerun(text: str, job_name: str, no_wait: bool, namespace: str, where: tuple[Any, ...]) -> int:
    async with reach(*where) as client:
        kind, obj = await telling.gang(client, text, namespace)
        made = await acts.rerun(client, kind, obj, name=job_name)
        click.echo(show.harmless(f"{kind.kind} {made['metadata']['name']} created"), err=no_wait is False)
        return exits.DONE if no_wait else await attend(client, kind, made)
