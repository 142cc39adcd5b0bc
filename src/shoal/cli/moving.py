"""`shoal import`: put Shoal in the place of MCAD, Kueue or KubeRay, and put them back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli import choices, show
from shoal.cli.reach import Where, cluster_options, reach
from shoal.errors import BadInput, ShoalError

if TYPE_CHECKING:
    from shoal.sdk.moving_in import ImportRow
    from shoal.sdk.other_controllers import FoundController


@click.command(
    "import",
    epilog="\b\nExamples:\n  shoal import\n  shoal import --dump objects.yaml\n"
    "  shoal import --take --creator system:serviceaccount:lab:submitter\n  shoal import --give-back",
)
@click.option(
    "--dump",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Judge the objects of this file instead of a cluster's, as kubectl get -o yaml writes them.",
)
@click.option("--take", is_flag=True, help="Write the import record and stop the other controllers.")
@click.option("--give-back", is_flag=True, help="Stop Shoal and start the other controllers as they were.")
@click.option(
    "--creator",
    default="",
    metavar="USER[,GROUP…]",
    help="The user that answers for AppWrappers whose creator is not recorded.",
)
@click.option("--namespace", default="shoal-system", show_default=True, callback=choices.dns_label)
@click.option(
    "-o", "--output", "form", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True
)
@cluster_options
def command(
    dump: Path | None,
    take: bool,
    give_back: bool,
    creator: str,
    namespace: str,
    form: str,
    kubeconfig: Path | None,
    context: str | None,
    name: str | None,
) -> None:
    """Say object by object what becomes of MCAD's, Kueue's and KubeRay's objects, and take over from them.

    Without --take nothing is changed. Running workloads go on running, both ways.
    """
    if take + give_back + (dump is not None) > 1:
        raise click.UsageError("choose one of --dump, --take and --give-back")
    if dump is not None:
        from shoal.sdk import moving_in

        _print(moving_in.rows(_of_file(dump)), [], form)
        return
    asyncio.run(_run(take, give_back, creator, namespace, form, (kubeconfig, context, name)))


def _of_file(path: Path) -> list[dict[str, object]]:
    from shoal.api import manifests

    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadInput(f"--dump {path}: {error.strerror}") from None
    found: list[dict[str, object]] = []
    for obj in manifests.read(text, str(path)):
        items = obj.get("items")
        found += items if str(obj.get("kind", "")).endswith("List") and isinstance(items, list) else [obj]
    return found


async def _run(take: bool, give_back: bool, creator: str, namespace: str, form: str, where: Where) -> None:
    from shoal.cli import taking_over

    async with reach(*where) as client:
        if give_back:
            for line in await taking_over.give_back(client, namespace):
                click.echo(line)
            return
        rows, controllers = await taking_over.look(client)
        _print(rows, controllers, form)
        if not take:
            return
        lacking = [row for row in rows if row.needs_creator]
        if lacking and not creator:
            first = lacking[0]
            raise ShoalError(
                f"the creator of {len(lacking)} AppWrappers is not recorded (first: {first.namespace}/{first.name}): "
                "name the user that answers for them with --creator"
            )
        for line in await taking_over.take(client, namespace, rows, controllers, creator):
            click.echo(line, err=form != "table")


def _print(rows: list[ImportRow], controllers: list[FoundController], form: str) -> None:
    if form != "table":
        import msgspec

        told = {"objects": msgspec.to_builtins(rows), "controllers": msgspec.to_builtins(controllers)}
        show.document(told, form)
        return
    for one in controllers:
        click.echo(show.harmless(f"{one.source}: Deployment {one.namespace}/{one.name}, {one.replicas} replicas"))
        if one.settings or one.options:
            chosen = [*one.options, *(f"--set {name}={value}" for name, value in sorted(one.settings.items()))]
            click.echo(show.harmless(f"  here: {' '.join(chosen)}"))
        if one.unused:
            click.echo(show.harmless(f"  without a meaning here: {', '.join(one.unused)}"))
    if not rows:
        click.echo("no object of MCAD, Kueue or KubeRay was found")
        return
    cells = [
        [
            row.source,
            row.kind,
            f"{row.namespace}/{row.name}".lstrip("/"),
            row.state,
            row.verdict,
            "; ".join(_notes(row)),
        ]
        for row in rows
    ]
    show.table(("FROM", "KIND", "NAME", "STATE", "HERE", "NOTE"), cells)
    counts = {word: sum(row.verdict == word for row in rows) for word in ("same", "differs", "left alone")}
    click.echo(", ".join(f"{count} {word}" for word, count in counts.items() if count))


def _notes(row: ImportRow) -> list[str]:
    return [*row.notes, *(["its creator is to be named with --creator"] if row.needs_creator else ())]
