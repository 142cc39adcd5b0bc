"""`shoal check FILE…`: judge manifests without a server, with the words and paths that a server would use.

Unknown fields, misspelt names inside pod templates, amounts, and the rules of each dialect. Nothing is sent anywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from shoal.api import manifests, strict
from shoal.cli.show import document
from shoal.errors import ShoalError

_ENDINGS = (".yaml", ".yml", ".json")


@click.command("check", epilog="\b\nExamples:\n  shoal check job.yaml\n  shoal check manifests/*.yaml -o json")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@click.option("-o", "--output", "form", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
def command(files: tuple[Path, ...], form: str) -> None:
    """Check manifests (files, folders or - for standard input) and name every mistake with its place.

    Exits 1 when something is to be corrected.
    """
    objects = 0
    problems: list[dict[str, str]] = []
    for source, text in _texts(files):
        for obj in manifests.read(text, source):
            objects += 1
            for error in strict.check(obj):
                problems.append({"source": source, "object": _named(obj), "problem": str(error)})
                if form == "text":
                    click.echo(f"{source}: {_named(obj)}: {error}")
    if not objects:
        raise ShoalError("no object found; give manifest files, or a folder that holds some")
    if form != "text":
        document({"objects": objects, "problems": problems}, form)
    if problems:
        raise ShoalError(f"mistakes to correct: {len(problems)} (objects read: {objects})")
    if form == "text":
        click.echo(f"{objects} objects, nothing to correct")


def _texts(files: tuple[Path, ...]) -> Iterator[tuple[str, bytes]]:
    for path in files:
        if str(path) == "-":
            yield "standard input", sys.stdin.buffer.read(manifests.MOST_BYTES + 1)
        elif path.is_dir():
            for inner in sorted(found for found in path.rglob("*") if found.suffix in _ENDINGS and found.is_file()):
                yield str(inner), _read(inner)
        else:
            yield str(path), _read(path)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(manifests.MOST_BYTES + 1)
    except OSError as error:
        raise ShoalError(f"{path} cannot be read: {error.strerror}") from None


def _named(obj: dict[str, Any]) -> str:
    metadata = obj.get("metadata")
    name = (metadata.get("name") or metadata.get("generateName") or "") if isinstance(metadata, dict) else ""
    return f"{obj.get('kind') or 'object'} {name}".strip()
