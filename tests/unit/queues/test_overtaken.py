"""Who evicts, who is evicted and who was faster changes while decisions are on their way: nothing waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.planning.decisions import Decisions
from shoal.controllers.queues import QueueController, QueueSettings
from shoal.engine.kueue.cycle.planner import QueuePlanner
from shoal.engine.model import Plan
from shoal.kube.client import Client
from shoal.kube.transport import Request, Response, Stream, Transport
from shoal.kube.writes import OF_ONE_CONTROLLER
from tests.cluster import Cluster
from tests.faults import proven
from tests.patience import PATIENCE, patiently
from tests.planning import planned
from tests.unit.queues.build import (
    cluster_queue,
    complete,
    flavor,
    job,
    local_queue,
    make,
    name_of,
    ray_job,
    said,
    template,
    true,
)
from tests.unit.queues.conftest import decide

PRIORITY = "kueue.x-k8s.io/priority-class"
GATED = "kueue.x-k8s.io/admission-gated-by"
RECLAIM = {"reclaimWithinCohort": "Any"}
WORKERS = 64


def priority_class(value: int) -> Json:
    head = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
    return {**head, "metadata": {"name": f"p{value}"}, "value": value}


def drops_what_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """An eviction makes the reservation before it forgotten, whether or not that was stored."""
    kept = Decisions.planned

    def dropped(self: Decisions, plan: Plan, now: int) -> list[str]:
        touched = kept(self, plan, now)
        for preempt in plan.preempts:
            self._reservations.pop(preempt.gang, None)
        return touched

    monkeypatch.setattr(Decisions, "planned", dropped)


def decides_without_taking_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cycles are merged as they come, and what one reserved for another to evict is lost on the way."""
    drops_what_is_not_stored(monkeypatch)
    monkeypatch.setattr(QueuePlanner, "_take_back", lambda self, evict, reserved: False)


async def never_evicted(cluster: Cluster, made: Json) -> None:
    """It waits, and was never given quota only to lose it."""
    waiting = await cluster.until(kinds.WORKLOAD, name_of(made), lambda one: said(one, "QuotaReserved")[0] == "False")
    assert said(waiting, "Evicted") == ("", "", "")
    assert "schedulingStats" not in waiting["status"]


@proven(without=decides_without_taking_back)
async def test_f144_what_a_plan_reserves_and_evicts_it_never_reserved(quiet: Cluster) -> None:
    """F144: one plan gives a borrower quota and takes it back for its owner. Holds: the owner starts, the borrower
    waits on, and nothing of that is ever stored."""
    decide(quiet)
    await make(
        quiet,
        flavor(),
        cluster_queue("a", quota={"cpu": "2"}, cohortName="team", preemption=RECLAIM),
        cluster_queue("b", quota={"cpu": "0"}, cohortName="team"),
        local_queue("qa", "a"),
        local_queue("qb", "b"),
    )
    a1, a2, b1 = await make(quiet, job("a1", queue="qa"), job("a2", queue="qa"), job("b1", queue="qb"))
    for one in (a1, a2):
        await quiet.until(kinds.WORKLOAD, name_of(one), true("Admitted"))
    await never_evicted(quiet, b1)
    await complete(quiet, "a1", 1)
    await quiet.until(kinds.WORKLOAD, name_of(b1), true("Admitted"))


class Gate:
    """A transport that keeps back the requests it is told to, until it is opened."""

    def __init__(self, inner: Transport, holds: Callable[[Request], bool]) -> None:
        self.inner = inner
        self.holds = holds
        self.opened = asyncio.Event()
        self.held = 0

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        if not self.opened.is_set() and self.holds(request):
            self.held += 1
            await self.opened.wait()
        return await self.inner.send(request, timeout=timeout)

    def stream(self, request: Request, *, idle_timeout: float | None = None) -> AbstractAsyncContextManager[Stream]:
        return self.inner.stream(request, idle_timeout=idle_timeout)

    async def close(self) -> None:
        await self.inner.close()


def decide_behind(cluster: Cluster, gate: Gate) -> QueueController:
    client = Client(gate)
    made = planned(client, AppWrapperSettings(trust_unstamped=True), queues=QueueSettings())
    cluster.start(made.run())
    return made.queues


async def until(holds: Callable[[], bool]) -> None:
    async with patiently(PATIENCE):
        while not holds():  # noqa: ASYNC110 - what is only decided sends no event
            await asyncio.sleep(0.01)


@proven(without=drops_what_is_not_stored)
async def test_f145_an_eviction_overtakes_the_reservation_that_it_ends(quiet: Cluster) -> None:
    """F145: a plan evicts a gang whose reservation, of an earlier plan, is not stored yet. Holds: neither is stored,
    its quota is free at once, and the owner starts."""
    gate = Gate(quiet.server.transport(), lambda request: request.method == "POST" and b"job-other" in request.body)
    queues = decide_behind(quiet, gate)
    empty = cluster_queue("a", quota={"cpu": "0"}, cohortName="team", preemption=RECLAIM)
    await make(
        quiet,
        flavor(),
        empty,
        cluster_queue("b", quota={"cpu": "0"}, cohortName="team"),
        local_queue("qa", "a"),
        local_queue("qb", "b"),
    )
    later = job("a2", queue="qa")
    later["metadata"]["annotations"] = {GATED: "example.com/later"}
    a1, a2, b1 = await make(quiet, job("a1", queue="qa"), later, job("b1", queue="qb"))
    for one in (a1, a2, b1):
        await quiet.until(kinds.WORKLOAD, name_of(one), lambda one: said(one, "QuotaReserved")[0] == "False")
    await quiet.settled()
    await make(quiet, *(job(f"other-{number}", queue="nowhere") for number in range(WORKERS)))
    await until(lambda: gate.held == OF_ONE_CONTROLLER)  # no place is left in which queues could write

    groups = cluster_queue("a", quota={"cpu": "2"})["spec"]["resourceGroups"]
    await quiet.client.patch(kinds.CLUSTER_QUEUE, "a", None, {"spec": {"resourceGroups": groups}})
    borrower = f"Workload/default/{name_of(b1)}"
    uid = (await quiet.get(kinds.WORKLOAD, name_of(b1)))["metadata"]["uid"]
    await until(lambda: queues.decisions.reservation(borrower, uid) is not None)
    for kind, name in ((kinds.JOB, "a2"), (kinds.WORKLOAD, name_of(a2))):
        await quiet.client.patch(kind, name, "default", {"metadata": {"annotations": {GATED: None}}})
    await until(lambda: queues.decisions.preempt(borrower, uid) is not None)
    gate.opened.set()
    for one in (a1, a2):
        await quiet.until(kinds.WORKLOAD, name_of(one), true("Admitted"))
    await never_evicted(quiet, b1)


@pytest.mark.parametrize(("kind", "cpu"), [("Job", "6"), ("RayJob", "5")])
@proven(without=decides_without_taking_back)
async def test_f146_a_preemptor_that_is_overtaken_starts_in_the_end(quiet: Cluster, kind: str, cpu: str) -> None:
    """F146: a gang whose victim is leaving is overtaken by one of higher priority. Holds: when that one is done, the
    first starts."""
    decide(quiet, QueueSettings(preemption_pause_seconds=0))

    def gang(name: str, priority: int) -> Json:
        """Two of them use up the quota."""
        made = job(name, 3) if kind == "Job" else ray_job(name, 1)
        made["metadata"]["labels"][PRIORITY] = f"p{priority}"
        return made

    where = kinds.JOB if kind == "Job" else kinds.RAY_JOB
    await make(
        quiet,
        flavor(),
        cluster_queue(quota={"cpu": cpu, "memory": "64Gi"}, preemption={"withinClusterQueue": "LowerPriority"}),
        local_queue(),
        *(priority_class(value) for value in (0, 1, 3)),
    )
    _, victim = await make(quiet, gang("a", 1), gang("b", 0))
    for name in ("a", "b"):
        await quiet.until(where, name, lambda one: one["spec"]["suspend"] is False)
    owner = {"apiVersion": where.api_version, "kind": kind, "name": "b", "uid": victim["metadata"]["uid"]}
    slow = {"name": "slow", "namespace": "default", "ownerReferences": [{**owner, "controller": True}]}
    await quiet.create(kinds.POD, {"apiVersion": "v1", "kind": "Pod", "metadata": slow, **template(cpu="0")})
    group = "batch" if kind == "Job" else "ray.io"
    names = {}
    for name, priority in (("x", 1), ("y", 3)):
        (made,) = await make(quiet, gang(name, priority))
        names[name] = name_of(made, kind, group)
        await quiet.until(kinds.WORKLOAD, names[name], lambda one: said(one, "QuotaReserved")[0] == "False")
    await quiet.client.delete(kinds.POD, "slow", "default")
    await quiet.until(kinds.WORKLOAD, names["y"], true("Admitted"))
    for name in ("a", "b", "y"):
        await quiet.client.delete(where, name, "default")
    await quiet.until(kinds.WORKLOAD, names["x"], true("Admitted"))
