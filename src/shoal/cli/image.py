"""`shoal image`: environments that were built for image names, and their building before a cluster starts."""

from __future__ import annotations

import shutil

import click

from shoal.api.times import parse_time, seconds_text
from shoal.cli import show
from shoal.errors import ShoalError
from shoal.kube.clock import SystemClock
from shoal.local import environments


@click.group(
    epilog="\b\nExamples:\n  shoal up --image team=./requirements.txt\n  shoal image list\n  shoal image remove team"
)
def command() -> None:
    """List or remove environments that were built for image names."""


@command.command("list")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def list_images(output: str) -> None:
    """List what was built from requirements files, with the names that it was last used for."""
    rows = [
        {
            "names": built.names,
            "python": (found := environments.read(str(place))).python,
            "ray": found.ray,
            "built": built.built_at,
            "file": built.file,
            "directory": str(place),
        }
        for place, built in environments.listed()
    ]
    if output != "table":
        show.document(rows, output)
        return
    if not rows:
        click.echo("no environments were built; shoal up --image NAME=./requirements.txt builds one", err=True)
        return
    now = SystemClock().now()
    show.table(
        ("NAME", "PYTHON", "RAY", "AGE", "FILE", "DIRECTORY"),
        [
            (
                ",".join(row["names"]),
                str(row["python"]),
                str(row["ray"] or "none"),
                show.age(parse_time(str(row["built"])), now),
                str(row["file"]),
                str(row["directory"]),
            )
            for row in rows
        ],
    )


@command.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Remove every environment that was built for this image name; the next start builds it again."""
    found = [place for place, built in environments.listed() if name in built.names]
    if not found:
        raise ShoalError(f"no environment was built for {name}; shoal image list shows those that were")
    for place in found:
        shutil.rmtree(place)
        click.echo(f"removed {place}")


def prepare_images(images: dict[str, str]) -> None:
    """Build environments that are not built yet, and say what their users should know."""
    now = seconds_text(SystemClock().now())
    for name, target in images.items():
        if "/" in target:
            environments.prepare(name, target, lambda text: click.echo(text, err=True), now)
