"""The memory of a node's GPUs, as `shoal free` tells it."""

from __future__ import annotations

from pathlib import Path

from shoal.api import kinds
from shoal.kube.client import Client
from shoal.local.apiserver import Server
from shoal.sdk import places


async def test_the_memory_of_each_gpu_is_read_from_the_nodes_label(tmp_path: Path) -> None:
    server = Server(tmp_path)
    await server.start()
    try:
        client = Client(server.transport(), manager="test")
        for name, labels in (("gpu", {"nvidia.com/gpu.memory": "143771"}), ("plain", {})):
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
            await client.create(kinds.NODE, node)
        told = {row["name"]: row.get("gpuMemory") for row in await places.nodes(client)}
    finally:
        await server.stop()
    assert told == {"gpu": "143771Mi", "plain": None}
