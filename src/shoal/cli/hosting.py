"""The node agent with everything that it runs pods by, put together once.

For `shoal up` and for `shoal node serve`: in both, pods run, are limited and are watched alike.
"""

from __future__ import annotations

import os
from pathlib import Path

from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.local.home import Home
from shoal.local.images import ImageTable
from shoal.local.nodes.agent import Agent, NodeKeeper
from shoal.local.nodes.agent.lookup import ApiSources
from shoal.local.nodes.runtime import Runtime
from shoal.local.nodes.runtime.devices import find_gpus
from shoal.local.nodes.runtime.host import PodHost
from shoal.local.nodes.runtime.limits import find_limits
from shoal.local.nodes.runtime.memorywatch import MemoryWatch
from shoal.local.nodes.runtime.ownership import memory_directory
from shoal.local.nodes.runtime.processes import ProcessRuntime
from shoal.local.nodes.runtime.simulated import SimulatedRuntime
from shoal.local.nodes.sandbox import Sandbox, views


def private_paths(home: Home, credentials: tuple[Path, ...]) -> tuple[Path, ...]:
    """What no pod may see: the state of this user's clusters, kubeconfigs, and what else holds credentials.

    Where SHOAL_HOME names the place of the state, other things may lie beside it: then this cluster's alone.
    """
    state = home.directory if os.environ.get("SHOAL_HOME") else home.directory.parent
    named = [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    found = [state, Path.home() / ".kube", *named, *credentials]
    return tuple(dict.fromkeys(path.expanduser().resolve() for path in found))


def make_agent(
    client: Client,
    home: Home,
    keeper: NodeKeeper,
    sandbox: Sandbox,
    api: tuple[str, int] | None,
    certificate: str,
    images: ImageTable,
    clock: Clock,
    *,
    binds_claims: bool = False,
    credentials: tuple[Path, ...] = (),
) -> Agent:
    """An agent for the keeper's nodes. `api` and `certificate` are how pods reach the API server and trust it.

    `credentials` are the files with the agent's own.
    """

    def allocatable(node: str) -> dict[str, str]:
        shape = keeper.shapes.get(node)
        return shape.capacity if shape is not None else {}

    limits = find_limits(home.identity)
    memory = memory_directory(home.identity)
    host = PodHost(
        directory=home.runtime,
        private=(*private_paths(home, credentials), memory),
        view="" if sandbox.roots else views.best(),
        sandbox=sandbox,
        sources=ApiSources(client, allocatable, api, certificate, binds_claims=binds_claims),
        images=images,
        limits=limits,
        gpus=find_gpus(),
        memory_watch=None if limits.enforces_memory else MemoryWatch(clock),
        memory=memory,
        clock=clock,
    )
    runtimes: dict[str, Runtime] = {"process": ProcessRuntime(host), "simulated": SimulatedRuntime(clock)}
    agent = Agent(client, home.name, runtimes, keeper, clock=clock)
    host.announce = agent.announce
    return agent
