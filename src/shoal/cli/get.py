"""`shoal get`: every gang in one table, whatever its kind, with the reason it waits; queues, quotas, nodes, clusters.

Everything is read with the asker's rights, and printed as it is stored.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import click

from shoal.api.kueue_told import brief
from shoal.api.times import parse_time
from shoal.cli import show, telling
from shoal.cli.reach import cluster_options, namespace_options, reach
from shoal.errors import BadInput
from shoal.kube.clock import SystemClock
from shoal.sdk.rows import Listing, changes, listing

WHAT = {"gangs": "gangs", "gang": "gangs", "queues": "queues", "queue": "queues", "nodes": "nodes", "node": "nodes",
        "quotas": "quotas", "quota": "quotas", "clusters": "clusters", "cluster": "clusters"}  # fmt: skip
_COLUMNS = {
    "queues": (
        ("namespace", "NAMESPACE"), ("name", "NAME"), ("clusterQueue", "CLUSTERQUEUE"), ("pending", "WAITING"),
        ("admitted", "ADMITTED"), ("state", "STATE"),
    ),
    "quotas": (
        ("clusterQueue", "CLUSTERQUEUE"), ("cohort", "COHORT"), ("flavor", "FLAVOR"), ("resource", "RESOURCE"),
        ("guaranteed", "GUARANTEED"), ("used", "USED"), ("unused", "UNUSED"), ("borrowed", "BORROWED"),
        ("lent", "LENT"),
    ),
    "nodes": (("name", "NAME"), ("state", "STATE"), ("amounts", "USED/ALLOCATABLE"), ("pods", "PODS")),
    "clusters": (("name", "NAME"), ("connected", "CONNECTED"), ("gangs", "GANGS"), ("message", "MESSAGE")),
}  # fmt: skip


def output_form(context: click.Context, option: click.Parameter, value: str) -> str:
    if value in ("table", "wide", "name", "json", "yaml") or value.startswith("jsonpath="):
        return value
    raise click.BadParameter(f"{value!r} is none of table, wide, name, json, yaml, jsonpath=TEMPLATE")


def form_options(command: Any) -> Any:
    """-o as kubectl has it, and --no-headers."""
    command = click.option("--no-headers", is_flag=True, help="Leave out the first line of the table.")(command)
    return click.option(
        "-o",
        "--output",
        callback=output_form,
        default="table",
        show_default=True,
        metavar="table|wide|name|json|yaml|jsonpath=TEMPLATE",
    )(command)


@click.command(
    epilog="\b\nExamples:\n  shoal get\n  shoal get -A -w\n  shoal get -n team-a -o json"
    "\n  shoal get --queue team-a -o wide"
    "\n  shoal get -o jsonpath='{range .items[*]}{.name}{\"\\n\"}{end}'\n  shoal get queues\n  shoal get nodes"
)
@click.argument("what", default="gangs", metavar="[gangs|queues|quotas|nodes|clusters]")
@namespace_options
@click.option("-l", "--selector", default="", help="Label selector, as for kubectl.")
@click.option("--queue", default="", help="Gangs that name this LocalQueue.")
@click.option("-w", "--watch", is_flag=True, help="Go on: print each gang again when it changes.")
@form_options
@cluster_options
def command(
    what: str,
    namespace: str,
    all_namespaces: bool,
    selector: str,
    queue: str,
    watch: bool,
    output: str,
    no_headers: bool,
    kubeconfig: Path | None,
    context: str | None,
    name: str | None,
) -> None:
    """List gangs: AppWrappers, RayJobs, RayClusters, Rays and queued jobs of every other kind that have no owner; or
    queues, quotas, nodes, clusters."""
    if what not in WHAT:
        known = "gangs, queues, quotas, nodes, clusters"
        raise click.UsageError(f"{what!r} is none of {known}; `shoal why NAME` is about one gang")
    if watch and WHAT[what] != "gangs":
        raise click.UsageError("-w is for gangs")
    where, place = (kubeconfig, context, name), None if all_namespaces else namespace
    try:
        if WHAT[what] != "gangs":
            rows = telling.run(_other(WHAT[what], place, where))
            _print_other(WHAT[what], rows, output, no_headers)
        elif watch:
            telling.run(_watch(place, selector, queue, output, no_headers, where))
        else:
            found = telling.run(_gather(place, selector, where))
            rows = _of_queue(found.rows, queue)
            if found.refused:
                scope = "in all namespaces" if all_namespaces else f"in namespace {namespace}"
                click.echo(f"not complete: you may not list {', '.join(found.refused)} {scope}", err=True)
            if not rows and output in ("table", "wide"):
                somewhere = "any namespace" if all_namespaces else f"namespace {namespace}"
                click.echo(f"no gangs in {somewhere}{' that you may list' if found.refused else ''}", err=True)
                return
            print_gangs(rows, output, no_headers)
    except BadInput as error:
        raise click.UsageError(str(error)) from None


def print_gangs(rows: list[dict[str, Any]], output: str, no_headers: bool) -> None:
    if output not in ("table", "wide"):
        print_form(rows, output, [f"{row['resource']}/{row['name']}" for row in rows])
        return
    now, wide = SystemClock().now(), output == "wide"
    age = cache(lambda created: show.age(parse_time(created), now))  # many came within one second
    elsewhere = any("cluster" in row for row in rows)
    more = (*(["CLUSTER"] if elsewhere else []), *(["QUEUE", "PRIORITY"] if wide else []))
    show.table(
        ("NAMESPACE", "KIND", "NAME", *more, "STATE", "AGE", "REASON"),
        [
            (
                row["namespace"],
                row["kind"],
                row["name"],
                *([row.get("cluster", "")] if elsewhere else []),
                *([row.get("queue", ""), row.get("priority", "")] if wide else []),
                row["state"],
                age(row["created"]),
                _reason(row, now) if wide else brief(_reason(row, now)),
            )
            for row in rows
        ],
        headers=not no_headers,
        width=0 if wide else terminal_width(),
    )


def print_form(rows: list[dict[str, Any]], output: str, names: list[str]) -> None:
    """Every form but a table."""
    if output == "name":
        for name in names:
            click.echo(show.harmless(name))
    else:
        show.document({"items": rows}, output)


def terminal_width() -> int:
    """0: no terminal, nothing is cut."""
    if not sys.stdout.isatty():
        return 0
    import shutil

    return shutil.get_terminal_size().columns


def _reason(row: dict[str, Any], now: int) -> str:
    """Of what has ended, also when. A message's first line alone: what follows is the end of a log."""
    ended = f"ended {show.age(parse_time(row['ended']), now)} ago" if row.get("ended") else ""
    return show.sized(f"{ended}; {row['reason']}" if ended and row["reason"] else ended or row["reason"])


async def _gather(namespace: str | None, selector: str, where: tuple[Any, ...]) -> Listing:
    async with reach(*where) as client:
        return await listing(client, namespace, selector)


def _of_queue(rows: list[dict[str, Any]], queue: str) -> list[dict[str, Any]]:
    return [row for row in rows if not queue or row.get("queue") == queue]


async def _watch(
    namespace: str | None, selector: str, queue: str, output: str, no_headers: bool, where: tuple[Any, ...]
) -> None:
    """The table, then each row that is new, changed or gone."""
    known: dict[str, dict[str, Any]] = {}
    async with reach(*where) as client:
        async for rows in changes(client, namespace, selector):
            current = {row["uid"]: row for row in _of_queue(rows, queue)}
            fresh = [row for uid, row in current.items() if known.get(uid) != row]
            fresh += [{**row, "state": "Deleted", "reason": ""} for uid, row in known.items() if uid not in current]
            if fresh:
                print_gangs(fresh, output, no_headers or bool(known))
            known = current
            sys.stdout.flush()


async def _other(what: str, namespace: str | None, where: tuple[Any, ...]) -> list[dict[str, Any]]:
    if what == "clusters":
        from shoal.cli.clusters import member_rows

        return await member_rows(where)
    from shoal.sdk import places

    async with reach(*where) as client:
        match what:
            case "queues":
                return await places.queues(client, namespace)
            case "quotas":
                return await places.quotas(client)
            case _:
                return await places.nodes(client)


def _print_other(what: str, rows: list[dict[str, Any]], output: str, no_headers: bool) -> None:
    if output not in ("table", "wide"):
        one = what.removesuffix("s")
        print_form(rows, output, [f"{one}/{row.get('name') or row.get('clusterQueue')}" for row in rows])
        return
    if not rows:
        click.echo(f"no {what}", err=True)
        return
    columns = [(field, heading) for field, heading in _COLUMNS[what] if any(field in row for row in rows)]
    show.table(
        [heading for _, heading in columns],
        [[_cell(row.get(field, "")) for field, _ in columns] for row in rows],
        headers=not no_headers,
        width=terminal_width() if output == "table" else 0,
    )


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {one['used']}/{one['allocatable']}" for key, one in value.items())
    return str(value)
