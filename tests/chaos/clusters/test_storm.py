"""Wires that are cut, mended and lose answers, hubs that are restarted, users who submit and delete: then calm.

In the calm every gang that is left runs in exactly the cluster that the hub names, whole, and nothing else is anywhere.
"""

from __future__ import annotations

import asyncio
from random import Random

import msgspec
import pytest

from shoal.api import kinds
from shoal.kube.clock import SystemClock
from shoal.kube.errors import NotFound
from shoal.kube.transport import Transport
from tests.faulty import FaultyTransport, Rates
from tests.patience import PATIENCE
from tests.unit.clusters.build import QUICK, Town, condition, sent_job, town
from tests.unit.queues.build import make, name_of

STEPS = 25
SETTINGS = msgspec.structs.replace(QUICK, lost_seconds=0.5, refused_seconds=0.2, request_seconds=0.3)
RATES = Rates(unsent=0.03, lost_answer=0.03, lost_request=0.02, conflict=0.03, server_error=0.02, cut=0.02, gone=0.02)


class Storm:
    """Every way to a member made unreliable."""

    def __init__(self, t: Town, seed: int) -> None:
        self.town = t
        self._seed = seed
        self._connect = t.connect
        self._ways: list[FaultyTransport] = []
        t.connect = self.connect  # type: ignore[method-assign]

    def connect(self, content: bytes, source: str) -> Transport:
        inner, seed = self._connect(content, source), self._seed + len(self._ways)
        self._ways.append(FaultyTransport(inner, RATES, seed=seed, clock=SystemClock()))
        return self._ways[-1]

    def calm(self) -> None:
        for way in self._ways:
            way.calm()
        for wire in self.town.wires.values():
            wire.mend()


async def rage(storm: Storm, random: Random) -> dict[str, str]:
    """Returns what is left: names of jobs to those of their Workloads."""
    alive: dict[str, str] = {}
    t = storm.town
    for step in range(STEPS):
        match random.choice(["submit", "submit", "delete", "cut", "mend", "mend", "restart", "wait", "wait"]):
            case "submit" if len(alive) < 6:
                (made,) = await make(t.hub, sent_job(f"job-{step}", random.randint(1, 2)))
                alive[f"job-{step}"] = name_of(made)
            case "delete" if alive:
                name = random.choice(sorted(alive))
                del alive[name]
                await t.hub.client.delete(kinds.JOB, name, "default", propagation="Background")
            case "cut":
                t.wires[random.choice(sorted(t.wires))].cut()
            case "mend":
                t.wires[random.choice(sorted(t.wires))].mend()
            case "restart":
                await t.stop_hub()
                t.start_hub(SETTINGS)
            case _:
                await asyncio.sleep(random.random() * 0.6)
    storm.calm()
    return alive


async def differences(t: Town, alive: dict[str, str]) -> list[str]:
    found = []
    running = {
        name: {job["metadata"]["name"]: job for job in await member.client.list(kinds.JOB, "default")}
        for name, member in t.members.items()
    }
    for job, name in alive.items():
        workload = await t.hub.get(kinds.WORKLOAD, name)
        home = (workload.get("status") or {}).get("clusterName") or ""
        places = [cluster for cluster, jobs in running.items() if job in jobs]
        if places != [home] or running[home][job]["spec"]["suspend"] is not False:
            said = (workload["status"].get("admissionChecks") or [{}])[0].get("message")
            found.append(f"{job}: hub says {home!r}, it is in {places}; {said}; {condition(workload, 'Evicted')}")
    for cluster, jobs in running.items():
        found += [f"{job} is left in {cluster}" for job in jobs if job not in alive]
        copies = await t.members[cluster].names(kinds.WORKLOAD)
        wanted = [name for job, name in alive.items() if job in jobs]
        found += [f"Workload {name} is left in {cluster}" for name in copies if name not in wanted]
    return found


@pytest.mark.parametrize("seed", range(2))
async def test_after_any_storm_each_gang_is_in_one_place(seed: int) -> None:
    """I40 and I41 once calm has come."""
    async with town("a", "b", "c") as t:
        storm = Storm(t, seed)
        t.start_hub(SETTINGS)
        await t.connected()
        alive = await rage(storm, Random(seed))
        left = ["not looked at yet"]
        try:
            async with asyncio.timeout(PATIENCE):
                while left:
                    await asyncio.sleep(0.1)
                    try:
                        left = await differences(t, alive)
                    except NotFound as error:
                        left = [str(error)]
        except TimeoutError:
            pytest.fail(f"seed {seed}: {left}")
