"""How a command finds its cluster: the options every such command shares, and a client for them.

`--name` means a cluster of this machine; otherwise the user's kubeconfig decides, as for kubectl, on the namespace too.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from shoal.kube.client import Client
from shoal.sdk.connecting import ClusterChoice, connected, default_namespace

F = TypeVar("F", bound=Callable[..., Any])
Where = tuple[Path | None, str | None, str | None]
"""--kubeconfig, --context and --name."""
COMPLETION_SECONDS = 2.0


def cluster_options(command: F) -> F:
    """--kubeconfig, --context and --name."""
    options = (
        click.option(
            "--kubeconfig",
            type=click.Path(path_type=Path),
            help="Kubeconfig file, as for kubectl. Default: $KUBECONFIG.",
        ),
        click.option("--context", help="A context of that kubeconfig."),
        click.option(
            "--name",
            help="A cluster that `shoal up` runs on this machine. Without it --kubeconfig and --context decide, as for "
            "kubectl; `shoal up` makes its cluster the current context.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def namespace_option(command: F) -> F:
    """-n, as kubectl has it: without it, the namespace of the chosen context."""

    @functools.wraps(command)
    def resolved(*words: Any, **options: Any) -> Any:
        if not options["namespace"]:
            options["namespace"] = default_namespace(_choice(options))
        return command(*words, **options)

    return cast("F", click.option("-n", "--namespace", help="Default: that of the context, as for kubectl.")(resolved))


def _choice(options: dict[str, Any]) -> ClusterChoice:
    chosen = {name: options.get(name) for name in ("kubeconfig", "context", "name")}
    return ClusterChoice(**chosen)


def namespace_options(command: F) -> F:
    """-n and -A, as kubectl has them."""
    command = click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces.")(command)
    return namespace_option(command)


def gang_argument(command: F) -> F:
    return click.argument("gang", metavar="[KIND/]NAME", shell_complete=_gang_names)(command)


def gang_arguments(command: F) -> F:
    return click.argument("gangs", metavar="[KIND/]NAME...", nargs=-1, required=True, shell_complete=_gang_names)(
        command
    )


def _gang_names(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """For a shell that completes: names of the gangs that the user may list; none where the cluster is silent."""
    import asyncio

    from shoal.errors import ShoalError
    from shoal.kube.errors import KubeError

    choice = _choice(context.params)
    word, slash, _ = incomplete.rpartition("/")

    async def names() -> list[str]:
        from shoal.sdk.rows import rows_of

        async with asyncio.timeout(COMPLETION_SECONDS), connected(choice) as client:
            rows = await rows_of(client, context.params.get("namespace") or default_namespace(choice))
        if slash:
            rows = [row for row in rows if word.lower() in (row["kind"].lower(), row["resource"])]
        return sorted({f"{word}{slash}{row['name']}" for row in rows})

    try:
        return [name for name in asyncio.run(names()) if name.startswith(incomplete)]
    except (ShoalError, KubeError, TimeoutError, OSError):
        return []


def output_option(command: F) -> F:
    """-o of a command that prints a table: also as a document, or as a template makes of it."""
    return click.option(
        "-o",
        "--output",
        callback=_output_form,
        default="table",
        show_default=True,
        metavar="table|json|yaml|jsonpath=TEMPLATE",
    )(command)


def _output_form(context: click.Context, option: click.Parameter, value: str) -> str:
    if value in ("table", "json", "yaml") or value.startswith("jsonpath="):
        return value
    raise click.BadParameter(f"{value!r} is none of table, json, yaml, jsonpath=TEMPLATE")


@asynccontextmanager
async def reach(kubeconfig: Path | None, context: str | None, name: str | None) -> AsyncIterator[Client]:
    """A client of the chosen cluster, closed afterwards."""
    async with connected(ClusterChoice(kubeconfig=kubeconfig, context=context, name=name)) as client:
        yield client
