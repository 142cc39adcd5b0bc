"""The node pools: how large each is, which nodes were asked for, and their arrival after the pool's delay.

A node that was asked for counts from that moment. Names are never those of a node that exists, is on its way, is booked
or is still named by a pod.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping

from shoal.api.meta import Json
from shoal.api.node_pools import BROUGHT_FOR
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.errors import KubeError
from shoal.local.nodes.agent.nodes import MANAGED, POOL, NodeKeeper
from shoal.local.settings import Pool
from shoal.local.shapes import NodeShape

log = logging.getLogger(__name__)

RETRY = 1.0


class NodePools:
    """`cluster` is the name of the agent that will serve the nodes."""

    def __init__(self, pools: Iterable[Pool], client: Client, cluster: str, clock: Clock) -> None:
        self.by_name = {pool.name: pool for pool in pools}
        self.coming: dict[str, str] = {}
        """Nodes that were asked for and have not appeared: name to pool."""
        self._there: dict[str, set[str]] = {name: set() for name in self.by_name}
        self._exist: set[str] = set()
        self._keeper = NodeKeeper(client, cluster, "127.0.0.1", clock)
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    def refresh(self, nodes: Collection[Json], booked: Iterable[Mapping[str, str]]) -> None:
        """Count what is there; `booked` are the nodes that requests will bring, with their pools."""
        self._there = {name: set() for name in self.by_name}
        self._exist = {node["metadata"]["name"] for node in nodes}
        for node in nodes:
            name, pool = node["metadata"]["name"], pool_of(node)
            self.coming.pop(name, None)
            if (node["metadata"].get("labels") or {}).get(MANAGED) == self._keeper.agent and not pool:
                self._keeper.address = address_of(node) or self._keeper.address
            if pool in self._there:
                self._there[pool].add(name)
        for wanted in booked:
            for name, pool in wanted.items():
                if pool in self._there:
                    self._there[pool].add(name)

    def size(self, pool: str) -> int:
        return len(self._all(pool))

    def _all(self, pool: str) -> set[str]:
        return self._there[pool] | {name for name, of in self.coming.items() if of == pool}

    def obtainable(self, promised: set[str]) -> dict[str, int]:
        """How many more may come: the nodes `promised` to gangs are counted by the controller that admits those."""
        return {
            name: max(0, pool.most - len(self._all(name) - (promised - self._exist)))
            for name, pool in self.by_name.items()
        }

    def sizes(self) -> list[tuple[Pool, int]]:
        return [(pool, self.size(name)) for name, pool in self.by_name.items()]

    def new_names(self, pool: str, count: int, taken: set[str]) -> list[str]:
        taken = taken | set(self.coming) | self._there[pool]
        found: list[str] = []
        number = 0
        while len(found) < count:
            if (name := f"{pool}-{number}") not in taken:
                found.append(name)
            number += 1
        return found

    def ask(self, pool: str, name: str, owner: str = "") -> None:
        """Bring this node, once; `owner` is the UID of the gang that it comes for."""
        if name in self.coming:
            return
        self.coming[name] = pool
        self._there[pool].discard(name)
        log.info("node %s of pool %s is on its way", name, pool)
        task = asyncio.create_task(self._deliver(self.by_name[pool], name, owner))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def remove(self, pool: str, node: str) -> None:
        await self._keeper.remove(node)
        self._there[pool].discard(node)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _deliver(self, pool: Pool, name: str, owner: str) -> None:
        await self._clock.sleep(pool.delay)
        labels = {POOL: pool.name, **pool.labels}
        shape = NodeShape(name=name, capacity=pool.capacity, labels=labels, taints=pool.taints, runtime=pool.runtime)
        while True:
            try:
                await self._keeper.register([shape], {BROUGHT_FOR: owner} if owner else None)
                await self._keeper.renew(name)
                return
            except KubeError as error:
                log.warning("node %s of pool %s was not created: %s", name, pool.name, error)
                await self._clock.sleep(RETRY)


def address_of(node: Json) -> str:
    """Where the agent of this node is: its pool nodes are there too."""
    addresses = (node.get("status") or {}).get("addresses") or ()
    return next((str(one["address"]) for one in addresses if one["type"] == "InternalIP"), "")


def pool_of(node: Json) -> str:
    return str((node["metadata"].get("labels") or {}).get(POOL, ""))
