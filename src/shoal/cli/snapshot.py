"""`shoal snapshot save|restore`: a cluster of this machine in one file, and back."""

from __future__ import annotations

from pathlib import Path

import click

from shoal.api.times import seconds_text
from shoal.kube.clock import SystemClock
from shoal.local.home import DEFAULT_NAME, Home


@click.group(
    short_help="Save a cluster of this machine to a file, or restore it.",
    epilog="\b\nExamples:\n  shoal snapshot save before.snapshot\n  shoal snapshot restore before.snapshot --replace",
)
def command() -> None:
    """Save a cluster of this machine to a file, or restore it."""


@command.command(
    epilog="\b\nExamples:\n  shoal snapshot save before.snapshot\n  shoal snapshot save try.snapshot --name try"
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--name", default=DEFAULT_NAME, show_default=True)
@click.option("--volumes", is_flag=True, help="Also the contents of PersistentVolumeClaims.")
def save(file: Path, name: str, volumes: bool) -> None:
    """Save objects, certificates and keys of a cluster, which may go on running. The file is yours alone (0600)."""
    from shoal.local import snapshot

    made = snapshot.save(Home(name), file, created=seconds_text(SystemClock().now()), volumes=volumes)
    click.echo(f"{file}: {made.objects} objects of cluster {name}{', with volumes' if volumes else ''}")


@command.command(
    epilog="\b\nExamples:\n  shoal snapshot restore before.snapshot --replace\n"
    "  shoal snapshot restore before.snapshot --name copy"
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--name", help="Cluster to make of it. Default: the one that was saved.")
@click.option("--replace", is_flag=True, help="Replace the state that this cluster has.")
def restore(file: Path, name: str | None, replace: bool) -> None:
    """Make a cluster what a snapshot holds. The cluster must be down; start it afterwards with `shoal up`.

    Pods that ran when it was saved start again: their processes are not part of a snapshot.
    """
    from shoal.local import snapshot

    chosen = name or snapshot.read_manifest(file).cluster
    made = snapshot.restore(file, Home(chosen), replace=replace)
    click.echo(f"cluster {chosen} has the {made.objects} objects of {made.created}; start it: shoal up --name {chosen}")
