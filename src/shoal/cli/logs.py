"""`shoal logs NAME`: a gang's log by role, followed from before its start to after its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shoal.cli import show, telling
from shoal.cli.reach import cluster_options, gang_argument, namespace_option, reach
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.sdk import asking, following, gangs, logs

WAITS = ("waiting", "starting")


@click.command(
    epilog="\b\nExamples:\n  shoal logs train -f\n  shoal logs rayjob/train --role worker"
    "\n  shoal logs train --previous"
)
@gang_argument
@click.option("-f", "--follow", is_flag=True, help="Wait for the gang, and go on until it has ended.")
@click.option("--role", type=click.Choice(logs.ROLES), help="Default: the driver's log, which the submitter has.")
@click.option("--previous", is_flag=True, help="Of the container before its restart, or of the pod before.")
@namespace_option
@cluster_options
def command(
    gang: str,
    follow: bool,
    role: str | None,
    previous: bool,
    namespace: str,
    kubeconfig: Path | None,
    context: str | None,
    name: str | None,
) -> None:
    """Print the log of a gang: of a Ray job the driver's, of a Ray cluster the head's, of a Job that of its pods.

    After its pods or the gang itself are gone, this is what the controller kept: the last 256 KiB of each container,
    for 30 days.
    """
    if follow and previous:
        raise click.UsageError("--previous is over: it cannot be followed")
    telling.run(_logs(gang, namespace, follow, role or "", previous, (kubeconfig, context, name)))


async def _logs(text: str, namespace: str, follow: bool, role: str, previous: bool, where: tuple[Any, ...]) -> None:
    async with reach(*where) as client:
        writer = telling.LogWriter(named=role == "worker")
        try:
            kind, obj = await telling.gang(client, text, namespace, all_kinds=True)
        except ShoalError as missing:
            if not await _of_gone(client, text, namespace, role, previous, writer):
                raise missing from None
            return
        try:
            if follow:
                await logs.follow(client, kind, obj, telling.change, writer.write, role=role)
            elif not await logs.read(client, kind, obj, writer.write, role=role, previous=previous):
                view = await following.look(client, kind, obj)
                why = f"{view.state}: {view.reason}" if view.reason else view.state
                if view.outcome.stage in WAITS and not previous:
                    click.echo(
                        show.harmless(f"{kind.kind} {view.name} has no log yet ({why}); -f waits for it"), err=True
                    )
                    return
                which = "earlier log" if previous else "log"
                raise ShoalError(f"{kind.kind} {view.name} has no {which} of its {role or 'driver'} ({why})")
        finally:
            writer.close()


async def _of_gone(
    client: Client, text: str, namespace: str, role: str, previous: bool, writer: telling.LogWriter
) -> bool:
    """What was kept of a gang that is not there any more."""
    word, _, name = text.rpartition("/")
    kinds = tuple(dict.fromkeys(one.kind for one in gangs.kinds_called(word, gangs.WAITING))) if word else ()
    try:
        return await logs.read_gone(client, kinds, name, namespace, writer.write, role=role, previous=previous)
    except asking.NoAnswer as error:
        click.echo(show.harmless(f"logs that were kept are not known: {error}"), err=True)
        return False
    finally:
        writer.close()
