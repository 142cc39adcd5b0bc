"""How a command finds its cluster: the options every such command shares, and a client for them.

`--name` means a cluster of this machine; otherwise the user's kubeconfig decides, as for kubectl.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from shoal.kube.client import Client
from shoal.sdk.connecting import ClusterChoice, connected

F = TypeVar("F", bound=Callable[..., Any])


def cluster_options(command: F) -> F:
    """--kubeconfig, --context and --name."""
    options = (
        click.option(
            "--kubeconfig",
            type=click.Path(path_type=Path),
            help="Kubeconfig file, as for kubectl. Default: $KUBECONFIG.",
        ),
        click.option("--context", help="A context of that kubeconfig."),
        click.option("--name", help="A cluster of this machine, started with `shoal up --name`."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def namespace_option(command: F) -> F:
    return click.option("-n", "--namespace", default="default", show_default=True)(command)


def namespace_options(command: F) -> F:
    """-n and -A, as kubectl has them."""
    command = click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces.")(command)
    return namespace_option(command)


def gang_argument(command: F) -> F:
    return click.argument("gang", metavar="[KIND/]NAME")(command)


def gang_arguments(command: F) -> F:
    return click.argument("gangs", metavar="[KIND/]NAME...", nargs=-1, required=True)(command)


def output_option(command: F) -> F:
    return click.option(
        "-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True
    )(command)


@asynccontextmanager
async def reach(kubeconfig: Path | None, context: str | None, name: str | None) -> AsyncIterator[Client]:
    """A client of the chosen cluster, closed afterwards."""
    async with connected(ClusterChoice(kubeconfig=kubeconfig, context=context, name=name)) as client:
        yield client
