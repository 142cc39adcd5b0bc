"""kill -9 while clients write: what was acknowledged is there after the restart, and revisions go on."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from shoal.api.kinds import CONFIG_MAP
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.kube.kubeconfig import load
from tests.patience import PATIENCE

REPOSITORY = Path(__file__).parents[3]


async def started(folder: Path) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.apiserver.child",
        str(folder / "state"),
        str(folder / "kubeconfig"),
        cwd=REPOSITORY,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), PATIENCE), "the server did not start"
    return process


@pytest.mark.parametrize("delay", [0.05, 0.15, 0.3, 0.5])
async def test_acknowledged_writes_survive_kill_nine(tmp_path: Path, delay: float) -> None:
    process = await started(tmp_path)
    transport = load(tmp_path / "kubeconfig")
    client = Client(transport)
    acknowledged: dict[str, str] = {}
    highest = 0

    async def writer(number: int) -> None:
        nonlocal highest
        index = 0
        while True:
            name = f"c{number}-{index}"
            try:
                made = await client.create(
                    CONFIG_MAP, {"metadata": {"name": name}, "data": {"x": "y" * 500}}, "default"
                )
                acknowledged[name] = made["metadata"]["uid"]
                highest = max(highest, int(made["metadata"]["resourceVersion"]))
                if index % 3 == 0:
                    await client.delete(CONFIG_MAP, name, "default")
                    acknowledged[name] = ""
            except KubeError:
                acknowledged.pop(name, None) if acknowledged.get(name) else None  # its fate is open
                return
            index += 1

    writers = [asyncio.ensure_future(writer(number)) for number in range(8)]
    await asyncio.sleep(delay)  # the moment of the kill is the point of this test
    process.kill()
    await asyncio.gather(*writers)
    await process.wait()
    await transport.close()
    again = await started(tmp_path)
    transport = load(tmp_path / "kubeconfig")
    client = Client(transport)
    listed = await client.list_raw(CONFIG_MAP, "default")
    found = {one["metadata"]["name"]: one["metadata"]["uid"] for one in map(msgspec.json.decode, listed.items or ())}
    for name, uid in acknowledged.items():
        assert found.get(name, "") == uid, name
    assert int(listed.metadata.resource_version) > highest
    await transport.close()
    again.kill()
    await again.wait()
