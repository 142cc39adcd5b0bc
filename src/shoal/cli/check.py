"""`shoal check FILE…`: judge manifests before a server in memory, with the words and paths that a server would use.

Unknown fields, misspelt names inside pod templates, amounts, the rules of each dialect, and whether a queue of the same
files can ever hold a gang. Nothing is sent anywhere.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from shoal.api import manifests, strict
from shoal.cli import checking, show
from shoal.cli.checking import CheckedManifest, CheckProblem
from shoal.cli.packages import missing_packages
from shoal.errors import ShoalError

LOCAL = "pip install 'shoal-ray[local]'"
_ENDINGS = (".yaml", ".yml", ".json")


@click.command("check", epilog="\b\nExamples:\n  shoal check job.yaml\n  shoal check manifests/*.yaml -o json")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@click.option("-o", "--output", "form", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
def command(files: tuple[Path, ...], form: str) -> None:
    """Check manifests (files, folders or - for standard input) and name every mistake with its place.

    What a server would refuse is refused in its words; a queue in the same files says whether a gang can ever run.

    Exits 1 when something is to be corrected.
    """
    manifests, unread = _read_all(files)
    if not manifests:
        raise unread[0] if unread else ShoalError("no object found; give manifest files, or a folder that holds some")
    problems = [{"source": error.source, "object": "", "problem": str(error)} for error in unread]
    problems += [
        {"source": one.manifest.source, "object": _named(one.manifest.obj), "problem": one.problem}
        for one in asyncio.run(_problems(manifests))
    ]
    problems.sort(key=lambda one: one["source"])
    if form == "text":
        for one in problems:
            about = f"{one['source']}: {one['object']}: " if one["object"] else ""
            click.echo(show.harmless(f"{about}{one['problem']}"))
    else:
        show.document({"objects": len(manifests), "problems": problems}, form)
    if problems:
        raise ShoalError(f"mistakes to correct: {len(problems)} (objects read: {len(manifests)})")
    if form == "text":
        click.echo(f"{len(manifests)} object{'' if len(manifests) == 1 else 's'}, nothing to correct")


class UnreadFile(ShoalError):
    def __init__(self, source: str, message: str) -> None:
        super().__init__(message)
        self.source = source


def _read_all(files: tuple[Path, ...]) -> tuple[list[CheckedManifest], list[UnreadFile]]:
    """Everything that can be read; a file that cannot does not stop the others."""
    found: list[CheckedManifest] = []
    unread: list[UnreadFile] = []
    for source, read in _texts(files):
        try:
            found += [CheckedManifest(source, obj) for obj in manifests.read(read(), source)]
        except ShoalError as error:
            unread.append(UnreadFile(source, str(error)))
    return found, unread


async def _problems(found: list[CheckedManifest]) -> list[CheckProblem]:
    """Shape first, every mistake with its place; what has none goes before a server in memory. Files that configure a
    program are no objects, and have no name."""
    found = [one for one in found if not str(one.obj.get("apiVersion")).partition("/")[0].endswith(".config.k8s.io")]
    by_shape = [CheckProblem(one, str(error)) for one in found for error in strict.check(one.obj)]
    bad = {id(one.manifest) for one in by_shape}
    if missing := missing_packages():
        click.echo(f"only shapes are checked: the server's rules need {', '.join(missing)}: {LOCAL}", err=True)
        return by_shape
    async with checking.check_server() as client:
        return by_shape + await checking.judged(client, [one for one in found if id(one) not in bad])


def _texts(files: tuple[Path, ...]) -> Iterator[tuple[str, Callable[[], bytes]]]:
    for path in files:
        if str(path) == "-":
            yield "standard input", lambda: sys.stdin.buffer.read(manifests.MOST_BYTES + 1)
        elif path.is_dir():
            for inner in sorted(found for found in path.rglob("*") if found.suffix in _ENDINGS and found.is_file()):
                yield str(inner), partial(_read, inner)
        else:
            yield str(path), partial(_read, path)


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
