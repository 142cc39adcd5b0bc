"""A walk on a file system that runs full: `python -m tests.integration.apiserver.full_disk DIRECTORY`. Prints OK."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from shoal.api.kinds import CONFIG_MAP
from shoal.kube.client import Client
from shoal.kube.errors import ServerError
from shoal.local.apiserver import Server


def fill(path: Path) -> None:
    """Take every byte that is left."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue


async def walk(directory: Path) -> None:
    server = Server(directory / "state")
    await server.start()
    client = Client(server.transport())

    async def create(name: str) -> None:
        await client.create(CONFIG_MAP, {"metadata": {"name": name}, "data": {"x": "y" * 20_000}}, "default")

    await create("before")
    fill(directory / "filler")
    refused, kept = 0, ["before"]
    for index in range(40):  # a little may still fit into what the log has already taken
        try:
            await create(f"full-{index}")
            kept.append(f"full-{index}")
        except ServerError as error:
            refused += 1
            assert error.code == 507 and "free some space" in error.message, error.message
    assert refused >= 20, f"only {refused} writes were refused"
    found = [one["metadata"]["name"] for one in await client.list(CONFIG_MAP, "default")]
    assert found == sorted(kept), "a refused write is visible, or an acknowledged one is not"
    os.unlink(directory / "filler")
    await create("after")
    await server.stop()
    again = Server(directory / "state")
    await again.start()
    found = [one["metadata"]["name"] for one in await Client(again.transport()).list(CONFIG_MAP, "default")]
    assert found == sorted([*kept, "after"])
    await again.stop()
    print("OK")


if __name__ == "__main__":
    asyncio.run(walk(Path(sys.argv[1])))
