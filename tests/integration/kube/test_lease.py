"""Two replicas as real processes: killed, frozen and woken."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from shoal.api.kinds import CONFIG_MAP, LEASE
from shoal.kube.client import Client
from shoal.kube.lease import Term
from tests.controlplane.plane import ControlPlane
from tests.faults import proven
from tests.patience import PATIENCE

pytestmark = pytest.mark.controlplane

SECONDS = 4.0
"""Lease time."""
UNFENCED = "SHOAL_TEST_UNFENCED"


class Process:
    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process

    async def leads(self) -> int:
        """Wait until it says that it leads; the number of its term."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = await self.process.stdout.readline()
        return int(line.split()[1])

    async def stopped(self) -> None:
        """Wait until it says that it leads no more; its work may hang on."""
        await self.said(b"stopped\n")

    async def said(self, line: bytes) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            assert await self.process.stdout.readline() == line

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)


Run = Callable[[str], Coroutine[Any, Any, Process]]


@pytest.fixture
async def run(control_plane: ControlPlane, client: Client) -> AsyncIterator[Run]:
    started: list[Process] = []
    # Switched off by the environment, because a monkeypatch does not reach another process.
    unfenced = (
        "from shoal.kube.lease import Term\nTerm.check = lambda self: None\nTerm.left = property(lambda self: 30.0)\n"
    )
    code = "import asyncio, sys\n" + (unfenced if os.environ.get(UNFENCED) else "")
    code += "from tests.integration.kube.replica import main\n"
    code += "asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))"

    async def begin(name: str) -> Process:
        arguments = ["-c", code, str(control_plane.kubeconfig), name, str(SECONDS)]
        process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
        started.append(Process(name, process))
        await started[-1].said(b"takes part\n")
        return started[-1]

    yield begin
    for one in started:
        if one.process.returncode is None:
            one.process.kill()
            await one.process.wait()
    await client.delete(LEASE, "walk", "default")  # now that no replica renews it


async def until_written(client: Client, name: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await written(client, name):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def written(client: Client, name: str) -> set[str]:
    page = await client.list(CONFIG_MAP, "default")
    return {obj["metadata"]["name"] for obj in page if obj["metadata"]["name"].startswith(f"{name}-")}


async def test_a_killed_leader_is_followed(run: Run, client: Client) -> None:
    """Within the lease time where nothing else is slow, which a virtual clock proves; here the machine may be."""
    first = await run("first")
    assert await first.leads() == 1
    second = await run("second")
    await asyncio.sleep(1)  # the second has seen who leads
    first.signal(signal.SIGKILL)
    killed = time.monotonic()
    assert await second.leads() == 2
    took = time.monotonic() - killed
    print(f"took over {took:.1f} s after the kill; lease time {SECONDS:.0f} s")
    assert took <= SECONDS + 30
    await until_written(client, "second")


def _unfenced(patch: pytest.MonkeyPatch) -> None:
    patch.setenv(UNFENCED, "1")
    patch.setattr(Term, "check", lambda self: None)


@proven(without=_unfenced)
async def test_f044_a_frozen_leader_that_wakes_up_writes_nothing_more(run: Run, client: Client) -> None:
    """F44: a leader is frozen (SIGSTOP) and woken. Holds: no write that waited before the freeze goes out after it."""
    first = await run("frozen")
    term = f"frozen-{await first.leads()}"
    await until_written(client, term)
    first.signal(signal.SIGSTOP)
    second = await run("awake")
    number = await second.leads()  # what the first had sent was answered long ago
    before = await written(client, term)
    first.signal(signal.SIGCONT)
    await until_written(client, "awake")
    await asyncio.sleep(1.5)
    assert await written(client, term) == before
    lease = await client.get(LEASE, "walk", "default")
    assert lease["spec"]["leaseTransitions"] >= number


@proven(without=_unfenced)
async def test_f043_a_leader_whose_work_hangs_at_the_stop_writes_nothing_under_the_next(
    run: Run, client: Client
) -> None:
    """F43: the old leader is told to stop and its work hangs on. Holds: nothing of it is written once it gave way."""
    first = await run("hanging")
    term = f"hanging-{await first.leads()}"
    await until_written(client, term)
    second = await run("following")
    first.signal(signal.SIGTERM)
    await first.stopped()
    await second.leads()
    before = await written(client, term)
    await until_written(client, "following")
    await asyncio.sleep(1)
    assert await written(client, term) == before
