"""How a command finds its cluster: the options every such command shares, and a client for them.

`--name` means a cluster of this machine; otherwise the user's kubeconfig decides, as for kubectl.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from shoal.errors import ShoalError
from shoal.kube.client import Client

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


def namespace_options(command: F) -> F:
    """-n and -A, as kubectl has them."""
    command = click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces.")(command)
    return click.option("-n", "--namespace", default="default", show_default=True)(command)


def output_option(command: F) -> F:
    return click.option(
        "-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True
    )(command)


@asynccontextmanager
async def reach(kubeconfig: Path | None, context: str | None, name: str | None) -> AsyncIterator[Client]:
    """A client of the chosen cluster, closed afterwards."""
    from shoal.kube.kubeconfig import load

    if name is not None:
        from shoal.local.home import Home

        home = Home(name)
        if not home.kubeconfig.exists():
            raise ShoalError(f"there is no cluster {name} on this machine; start it with: shoal up --name {name}")
        kubeconfig, context = home.kubeconfig, None
    transport = load(kubeconfig, context)
    try:
        yield Client(transport, manager="shoal-cli")
    finally:
        await transport.close()
