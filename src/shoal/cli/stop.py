"""`shoal stop`, `hold`, `release`: end a gang, keep it from running, let it run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shoal.cli import show, telling
from shoal.cli.reach import cluster_options, gang_arguments, namespace_option, reach
from shoal.sdk import acts


@click.command("stop", epilog="\b\nExamples:\n  shoal stop train\n  shoal stop aw/first aw/second -n team-a")
@gang_arguments
@namespace_option
@cluster_options
def command(
    gangs: tuple[str, ...], namespace: str, kubeconfig: Path | None, context: str | None, name: str | None
) -> None:
    """Stop gangs for good: each is deleted, with its pods. `hold` keeps one for later."""
    telling.run(_act(gangs, namespace, "stop", (kubeconfig, context, name)))


@click.command("hold", epilog="\b\nExamples:\n  shoal hold train\n  shoal release train")
@gang_arguments
@namespace_option
@cluster_options
def hold(
    gangs: tuple[str, ...], namespace: str, kubeconfig: Path | None, context: str | None, name: str | None
) -> None:
    """Keep gangs from running: their pods stop, and they wait outside the queue until `shoal release`.

    A gang that is released begins from its start.
    """
    telling.run(_act(gangs, namespace, "hold", (kubeconfig, context, name)))


@click.command("release", epilog="\b\nExamples:\n  shoal release train")
@gang_arguments
@namespace_option
@cluster_options
def release(
    gangs: tuple[str, ...], namespace: str, kubeconfig: Path | None, context: str | None, name: str | None
) -> None:
    """Let gangs run again that `shoal hold` keeps."""
    telling.run(_act(gangs, namespace, "release", (kubeconfig, context, name)))


async def _act(texts: tuple[str, ...], namespace: str, act: str, where: tuple[Any, ...]) -> None:
    async with reach(*where) as client:
        for text in texts:
            kind, obj = await telling.gang(client, text, namespace)
            what = f"{kind.kind} {obj['metadata']['namespace']}/{obj['metadata']['name']}"
            if act == "stop":
                await acts.stop(client, kind, obj)
                click.echo(show.harmless(f"{what} stopped"))
            else:
                changed = await acts.hold(client, kind, obj, on=act == "hold")
                click.echo(show.harmless(f"{what} {'held' if act == 'hold' else 'released'} ({changed})"))
