"""Which cluster is meant, and a client of it: one rule for every command and for the Python door.

`name` means a cluster of this machine; otherwise the user's kubeconfig decides, as for kubectl.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from shoal.errors import BadInput, ShoalError
from shoal.kube.client import Client


class ClusterChoice(msgspec.Struct, frozen=True, kw_only=True):
    kubeconfig: Path | None = None
    context: str | None = None
    name: str | None = None


def default_namespace(choice: ClusterChoice) -> str:
    """Of a command that names none: the one of its context, as for kubectl. A kubeconfig that cannot be used says so
    when it is used."""
    from shoal.kube.kubeconfig import resolve

    try:
        return "default" if choice.name is not None else resolve(choice.kubeconfig, choice.context).namespace
    except BadInput:
        return "default"


@asynccontextmanager
async def connected(choice: ClusterChoice, manager: str = "shoal-cli") -> AsyncIterator[Client]:
    """A client of the chosen cluster, closed afterwards."""
    from shoal.kube.kubeconfig import load

    kubeconfig, context = choice.kubeconfig, choice.context
    if choice.name is not None:
        from shoal.local.home import Home

        home = Home(choice.name)
        if not home.kubeconfig.exists():
            raise ShoalError(
                f"there is no cluster {choice.name} on this machine; start it with: shoal up --name {choice.name}"
            )
        kubeconfig, context = home.kubeconfig, None
    transport = load(kubeconfig, context)
    try:
        yield Client(transport, manager=manager)
    finally:
        await transport.close()
