"""The queue controller dies after every single write of a walk; one walk per write.

The end is that of a calm walk, and the whole history is judged: nothing ran before it was admitted, nothing was charged
twice, no request is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.queues import QueueSettings
from shoal.controllers.queues.reconciler import QueueReconciler
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.transport import Transport
from tests.chaos.mortal import Fate, MortalTransport
from tests.checker.gang_story import changes_of
from tests.checker.queue_rules import judge_queues
from tests.cluster import Cluster, running
from tests.faults import proven
from tests.planning import Planned, planned
from tests.resting import rules_of
from tests.unit.queues.build import (
    cluster_queue,
    complete,
    flavor,
    job,
    local_queue,
    make,
    name_of,
    pods_of,
    provisioning_check,
    provisioning_config,
    said,
    true,
    usage,
)

MOST_WRITES = 60
AT_ONCE = 12
WRAPPERS = AppWrapperSettings(trust_unstamped=True, obtain=True)
QUEUES = QueueSettings(check_seconds=1.0)


def controller(transport: Transport) -> Planned:
    client = Client(transport)
    return planned(client, WRAPPERS, queues=QUEUES)


async def lives(cluster: Cluster, mortal: MortalTransport) -> None:
    """A controller that dies at most once and is started again."""
    first = asyncio.ensure_future(controller(mortal).run())
    death = asyncio.ensure_future(mortal.died.wait())
    try:
        await asyncio.wait({first, death}, return_when=asyncio.FIRST_COMPLETED)
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        await controller(cluster.server.transport()).run()
    finally:
        death.cancel()
        first.cancel()


async def provide(cluster: Cluster, name: str) -> None:
    """The node autoscaler, which knows nothing of deaths."""
    await cluster.until(kinds.PROVISIONING_REQUEST, name, lambda one: True)
    now = seconds_text(SystemClock().now())
    made = [
        {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": now}
        for kind in ("Accepted", "Provisioned")
    ]
    await cluster.client.patch(
        kinds.PROVISIONING_REQUEST, name, "default", {"status": {"conditions": made}}, subresource="status"
    )


async def walk(cluster: Cluster) -> dict[str, object]:
    """Two jobs for one quota: the first is provided with nodes, runs, is switched off; then the second has its turn."""
    await make(
        cluster,
        flavor(),
        provisioning_check(),
        provisioning_config(),
        cluster_queue(checks=["nodes"]),
        local_queue(),
    )
    (first,) = await make(cluster, job("one", 3))
    name = name_of(first)
    await provide(cluster, f"{name}-nodes-1")
    await cluster.until(kinds.JOB, "one", lambda one: one["spec"]["suspend"] is False)
    await pods_of(cluster, "one", 3)
    (second,) = await make(cluster, job("two", 2))
    await cluster.client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": False}})
    await provide(cluster, f"{name_of(second)}-nodes-1")
    await cluster.until(kinds.JOB, "two", lambda one: one["spec"]["suspend"] is False)
    await complete(cluster, "two", 2)
    await cluster.until(kinds.WORKLOAD, name_of(second), true("Finished"))
    ends = [await cluster.get(kinds.WORKLOAD, name_of(one)) for one in (first, second)]
    await cluster.settled()
    queue: Json = await cluster.get(kinds.CLUSTER_QUEUE, "cluster-queue")
    return {
        "ends": [(said(one, "Finished"), said(one, "Evicted"), said(one, "QuotaReserved")[:2]) for one in ends],
        "suspended": [(await cluster.get(kinds.JOB, name))["spec"]["suspend"] for name in ("one", "two")],
        "evictions": [(one["status"].get("schedulingStats") or {}).get("evictions") for one in ends],
        "requests": await cluster.names(kinds.PROVISIONING_REQUEST),
        "templates": await cluster.names(kinds.POD_TEMPLATE),
        "counts": [queue["status"][f"{word}Workloads"] for word in ("pending", "reserving", "admitted")],
    }


RECLAIM = {"reclaimWithinCohort": "Any"}


def owner(name: str, cpu: str, cohort: str) -> Json:
    return cluster_queue(name, quota={"cpu": cpu}, cohortName=cohort, preemption=RECLAIM)


async def runs(cluster: Cluster, name: str) -> None:
    await cluster.until(kinds.JOB, name, lambda one: one["spec"]["suspend"] is False)


async def walk_in_turns(cluster: Cluster) -> dict[str, object]:
    """Two jobs of two cohorts under one roof, each of which has to make way for the other once, as their quotas say."""
    roof = [
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Cohort", "metadata": {"name": name}, "spec": spec}
        for name, spec in (("roof", {}), ("left", {"parentName": "roof"}), ("right", {"parentName": "roof"}))
    ]
    await make(cluster, flavor(), *roof, owner("a", "2", "left"), owner("b", "2", "right"))
    await make(cluster, local_queue("qa", "a"), local_queue("qb", "b"))
    (first,) = await make(cluster, job("one", 3, queue="qa"))  # borrows
    await runs(cluster, "one")
    (second,) = await make(cluster, job("two", 2, queue="qb"))  # wants its own
    await runs(cluster, "two")
    await cluster.until(kinds.WORKLOAD, name_of(first), lambda one: said(one, "QuotaReserved")[0] == "False")
    for name, cpu in (("b", "0"), ("a", "4")):
        groups = owner(name, cpu, "")["spec"]["resourceGroups"]
        await cluster.client.patch(kinds.CLUSTER_QUEUE, name, None, {"spec": {"resourceGroups": groups}})
    await runs(cluster, "one")
    await complete(cluster, "one", 3)
    await runs(cluster, "two")
    await complete(cluster, "two", 2)
    for one in (first, second):
        await cluster.until(kinds.WORKLOAD, name_of(one), true("Finished"))
    await cluster.settled()
    ends = [await cluster.get(kinds.WORKLOAD, name_of(one)) for one in (first, second)]
    queues = [await cluster.get(kinds.CLUSTER_QUEUE, name) for name in ("a", "b")]
    return {
        "ends": [(said(one, "Finished"), said(one, "Evicted")[:2], said(one, "QuotaReserved")[:2]) for one in ends],
        "evictions": [(one["status"].get("schedulingStats") or {}).get("evictions") for one in ends],
        "counts": [
            [one["status"][f"{word}Workloads"] for word in ("pending", "reserving", "admitted")] for one in queues
        ],
        "usage": [usage(one) for one in queues],
    }


Walk = Callable[[Cluster], Awaitable[dict[str, object]]]


async def walk_once(at: int = 0, fate: Fate = "dies", walk: Walk = walk) -> tuple[dict[str, object], list[str]]:
    async with running() as cluster:
        await cluster.add_node("node-1", cpu="16", memory="64Gi")
        mortal = MortalTransport(cluster.server.transport(), at, fate)
        cluster.start(lives(cluster, mortal))
        cluster.rules = rules_of(WRAPPERS, QUEUES)
        state = await walk(cluster)
        broken = judge_queues(changes_of(cluster.server), quiet=True)
        assert broken == [], f"{fate} at write {at} ({mortal.writes[-1:]}): {broken}"
        return state, mortal.writes


async def differences(fate: Fate, walk: Walk = walk) -> list[str]:
    """At which writes this fate leads to another end than that of a calm walk."""
    calm, writes = await walk_once(walk=walk)
    assert len(writes) < MOST_WRITES
    assert calm.get("requests", []) == calm.get("templates", []) == []
    deaths = [at for at, write in enumerate(writes, 1) if "queues/" not in write]  # a queue's status tells, no more
    found: list[str] = []
    for begin in range(0, len(deaths), AT_ONCE):
        numbers = deaths[begin : begin + AT_ONCE]
        ends = await asyncio.gather(*(walk_once(at, fate, walk) for at in numbers))
        found += [f"at {at} ({writes[at - 1]})" for at, (state, _) in zip(numbers, ends, strict=True) if state != calm]
    return found


def starts_before_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is started as soon as the plan says so, whatever is stored."""
    kept = QueueReconciler._create

    async def create(self: QueueReconciler, found: object) -> float | None:
        later = await kept(self, found)  # type: ignore[arg-type]
        if found is not None:
            kind, job = found  # type: ignore[misc]
            fresh = self._caches.jobs[kind.kind].get(self._caches._job_of[_key(kind, job)][1])
            if fresh is not None:
                await self._change(kind, fresh, {**fresh, "spec": {**fresh["spec"], "suspend": False}})
        return later

    from shoal.controllers.queues.caches import workload_key as _key

    monkeypatch.setattr(QueueReconciler, "_create", create)


@proven(without=starts_before_it_is_stored)
async def test_f001_a_death_after_any_write_of_an_admission_loses_nothing() -> None:
    """F01: the controller dies after any write of a queued job's life. Holds: the same end as without; I5, I8, I11,
    I38 and I39 at every revision."""
    assert await differences("dies") == []


@pytest.mark.parametrize("fate", ["dies", "done", "not done"])
async def test_jobs_that_make_way_for_each_other_end_the_same_whatever_happens_to_a_write(fate: Fate) -> None:
    """Killed after any write, or any one lost on its way or on its way back: the end of a calm walk."""
    assert await differences(fate, walk_in_turns) == []
