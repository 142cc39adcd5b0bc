"""The hub dies after every single write of a walk, to its own cluster or to another; one walk per write.

The end is that of a calm walk, and meanwhile no gang ran in two clusters, nor anywhere before the hub had stored where.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.multicluster import ClusterController
from shoal.controllers.multicluster import member as member_module
from shoal.controllers.multicluster.copies import wanted_on
from shoal.kube.client import Client
from shoal.kube.transport import Transport
from tests.chaos.mortal import MortalTransport
from tests.faults import proven
from tests.unit.clusters.build import QUICK, Town, is_placed, sent_job, town
from tests.unit.queues.build import complete, make, name_of, pods_of, said, true

MOST_WRITES = 70
AT_ONCE = 10
SETTINGS = msgspec.structs.replace(QUICK, probe_seconds=0.2)


class Mortal:
    """A hub that dies after one chosen write, wherever it went."""

    def __init__(self, t: Town, at: int) -> None:
        self.town = t
        self.hub = MortalTransport(t.hub.server.transport(), at)
        self.ways = {name: self._same_life(MortalTransport(wire, at)) for name, wire in t.wires.items()}

    def _same_life(self, way: MortalTransport) -> MortalTransport:
        way.writes, way.died = self.hub.writes, self.hub.died
        return way

    def connect(self, content: bytes, source: str) -> Transport:
        return self.ways[content.decode()]

    async def lives(self) -> None:
        """It dies at most once and is started again."""
        controller = ClusterController(Client(self.hub), SETTINGS, connect=self.connect)
        first, death = asyncio.ensure_future(controller.run()), asyncio.ensure_future(self.hub.died.wait())
        try:
            await asyncio.wait({first, death}, return_when=asyncio.FIRST_COMPLETED)
            first.cancel()
            await asyncio.wait({first})
            again = Client(self.town.hub.server.transport())
            await ClusterController(again, SETTINGS, connect=self.town.connect).run()
        finally:
            death.cancel()
            first.cancel()


class Watch:
    """Notes every moment at which a Job ran where the hub had not stored it, or in two places."""

    def __init__(self, t: Town) -> None:
        self.broken: list[str] = []
        self._town = t
        self._runs: dict[str, set[str]] = {}
        for name, member in t.members.items():
            resource = member.server.registry.find("batch", "jobs")
            assert resource is not None
            resource.collection.listeners.append(lambda event, name=name: self._look(name, event))

    def _look(self, cluster: str, event: object) -> None:
        job: Json = msgspec.json.decode(event.record.raw)  # type: ignore[attr-defined]
        name = job["metadata"]["name"]
        running = self._runs.setdefault(name, set())
        if event.type == "DELETED" or job["spec"].get("suspend") is not False:  # type: ignore[attr-defined]
            running.discard(cluster)
            return
        running.add(cluster)
        if len(running) > 1:
            self.broken.append(f"{name} runs in {sorted(running)}")
        stored = self._stored(name)
        if stored is not None and (stored.get("status") or {}).get("clusterName") not in (cluster, None):
            self.broken.append(f"{name} runs in {cluster}, and the hub says {stored['status']['clusterName']}")

    def _stored(self, job: str) -> Json | None:
        resource = self._town.hub.server.registry.find("kueue.x-k8s.io", "workloads")
        assert resource is not None
        found = [msgspec.json.decode(record.raw) for record in resource.collection.records()]
        return next((one for one in found if one["metadata"]["name"].startswith(f"job-{job}-")), None)


async def walk(t: Town) -> dict[str, object]:
    """One job runs to its end; another is deleted while it runs."""
    (first,) = await make(t.hub, sent_job("one", 2))
    placed = await t.hub.until(kinds.WORKLOAD, name_of(first), is_placed)
    home = t.members[placed["status"]["clusterName"]]
    await pods_of(home, "one", 2)
    (second,) = await make(t.hub, sent_job("two", 1))
    there = await t.hub.until(kinds.WORKLOAD, name_of(second), is_placed)
    await pods_of(t.members[there["status"]["clusterName"]], "two", 1)
    await complete(home, "one", 2)
    ended = await t.hub.until(kinds.WORKLOAD, name_of(first), true("Finished"))
    await t.hub.client.delete(kinds.JOB, "two", "default", propagation="Background")
    await t.hub.until_gone(kinds.WORKLOAD, name_of(second))
    for member in t.members.values():
        for workload in (name_of(first), name_of(second)):
            await member.until_gone(kinds.WORKLOAD, workload)
    job = await t.hub.until(kinds.JOB, "one", lambda one: (one.get("status") or {}).get("succeeded") == 2)
    await t.hub.until(
        kinds.WORKLOAD, name_of(first), lambda one: "shoal.dev/elsewhere" not in one["metadata"].get("finalizers", ())
    )
    return {
        "end": said(ended, "Finished")[:2],
        "succeeded": job["status"]["succeeded"],
        "left": [await member.names(kind) for member in t.members.values() for kind in (kinds.JOB, kinds.WORKLOAD)],
        "evicted": said(ended, "Evicted"),
    }


async def walk_once(at: int = 0) -> tuple[dict[str, object], list[str]]:
    async with town("a", "b") as t:
        mortal, watch = Mortal(t, at), Watch(t)
        t.run_hub(mortal.lives())
        await t.connected()
        state = await walk(t)
        assert watch.broken == [], f"dies at write {at} ({mortal.hub.writes[-1:]})"
        return state, mortal.hub.writes


def makes_the_job_before_the_choice_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    def wanted(workload: Json | None, cluster: str) -> str:
        found = wanted_on(workload, cluster)
        return "run" if found == "place" else found

    async def run(self: member_module.Member, workload: Json) -> None:
        """Copy and job at once, wherever it is offered."""
        if self.copy_of(workload) is None:
            await self._place(member_module.key_of(workload), workload)
        elif self.job_of(workload) is None:
            kind, body = self._job_body(workload)
            await self._create(kind.kind, body, workload)

    monkeypatch.setattr(member_module, "wanted_on", wanted)
    monkeypatch.setattr(member_module.Member, "_run", run)


@proven(without=makes_the_job_before_the_choice_is_stored)
async def test_f001_a_hub_that_dies_after_any_write_loses_nothing_and_runs_nothing_twice() -> None:
    """F01: the hub of several clusters dies after any write, to its own cluster or to another. Holds: the same end as
    without; a gang runs in at most one cluster (I40), only in the stored one, and nothing is left behind (I41)."""
    calm, writes = await walk_once()
    assert len(writes) < MOST_WRITES
    assert calm["left"] == [[], [], [], []]
    second = next(at for at, write in enumerate(writes) if "job-two" in write)  # goes the way of the first
    ends_begin = next(at for at, write in enumerate(writes) if write.startswith("DELETE /apis/batch/"))
    parts = [at for at in range(1, len(writes) + 1) if at <= second or at > ends_begin]
    numbers = [at for at in parts if "admissionchecks" not in writes[at - 1]]  # those only tell
    different = []
    for begin in range(0, len(numbers), AT_ONCE):
        some = numbers[begin : begin + AT_ONCE]
        ends = await asyncio.gather(*(walk_once(at) for at in some))
        different += [f"at {at} ({writes[at - 1]})" for at, (state, _) in zip(some, ends, strict=True) if state != calm]
    assert different == []
