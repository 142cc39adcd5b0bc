"""`shoal sample NAME`: the samples of the documentation, which travel with the package."""

from __future__ import annotations

from pathlib import Path

import click

from shoal.errors import ShoalError


def folder() -> Path:
    """In the installed package, or in the source tree that it is installed from."""
    here = Path(__file__).parents[1]
    for found in (here / "samples", here.parents[1] / "samples"):
        if found.is_dir():
            return found
    raise ShoalError("the samples are not installed; they are in the repository, in samples/")


@click.command(epilog="\b\nExamples:\n  shoal sample\n  shoal sample start/queue | kubectl apply -f -")
@click.argument("name", default="")
def command(name: str) -> None:
    """Print a sample manifest; without a name, list them."""
    root = folder()
    known = {str(path.relative_to(root).with_suffix("")): path for path in sorted(root.rglob("*.yaml"))}
    if not name:
        for one, path in known.items():
            click.echo(f"{one:<32} {_about(path)}".rstrip())
        return
    found = known.get(name.removesuffix(".yaml").removeprefix("samples/"))
    if found is None:
        import difflib

        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        raise ShoalError(
            f"there is no sample {name}{f'; did you mean {near[0]}?' if near else ''}; `shoal sample` lists them"
        )
    click.echo(found.read_text(), nl=False)


def _about(path: Path) -> str:
    """Its first comment."""
    first = path.read_text().partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
