"""Publishes the node pools in a ConfigMap, for controllers that admit gangs; they may not import this side."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shoal.api.kinds import CONFIG_MAP
from shoal.api.labels import OPERATING_SYSTEM
from shoal.api.node_pools import NAME, NAMESPACE, PublishedPool
from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExists, NotFound
from shoal.local.nodes.agent.nodes import POOL
from shoal.local.settings import Pool


class Publisher:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._told: dict[str, str] | None = None

    async def publish(self, pools: Iterable[Pool], obtainable: dict[str, int]) -> None:
        """Write what changed. Without pools nothing is published, and what an earlier start said is withdrawn."""
        data = {pool.name: _text(pool, obtainable[pool.name]) for pool in pools}
        if data == self._told:
            return
        if data:
            await self._write(data)
        else:
            try:
                await self._client.delete(CONFIG_MAP, NAME, NAMESPACE)
            except NotFound:
                pass
        self._told = data

    async def _write(self, data: dict[str, str]) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "data": data,
        }
        try:
            await self._client.create(CONFIG_MAP, body, NAMESPACE)
        except AlreadyExists:
            known = (await self._client.get(CONFIG_MAP, NAME, NAMESPACE)).get("data") or {}
            change: dict[str, str | None] = {**dict.fromkeys(known), **data}
            await self._client.patch(CONFIG_MAP, NAME, NAMESPACE, {"data": change})


def _text(pool: Pool, obtainable: int) -> str:
    labels = {POOL: pool.name, OPERATING_SYSTEM: "linux", **pool.labels}
    found = PublishedPool({"pods": "110", **pool.capacity}, labels, pool.taints, obtainable)
    return msgspec.json.encode(found).decode()
