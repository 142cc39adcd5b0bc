"""A controller that has just become leader looks at no gang before it has read everything."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.queues import QueueController, QueueSettings
from tests.cluster import Cluster
from tests.faults import proven
from tests.planning import planned
from tests.unit.queues.build import cluster_queue, condition, flavor, job, local_queue, make, name_of, true


async def _at_once(self: QueueController) -> None:
    """Does not wait for the first plan."""


def _looks_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueController, "_until_planned", _at_once)


@proven(without=_looks_at_once)
async def test_f560_a_new_leader_looks_at_no_gang_before_it_knows_the_jobs(quiet: Cluster) -> None:
    """F560: a new leader has read Workloads and Jobs, waits for another kind, and its time to look around comes. Holds:
    a gang that is to leave and still runs keeps its quota."""
    first = planned(quiet.client, AppWrapperSettings(trust_unstamped=True), queues=QueueSettings())
    leading = quiet.start(first.run())
    *_, made = await make(quiet, flavor(), cluster_queue(), local_queue(), job("train"))
    name = name_of(made)
    workload = await quiet.until(kinds.WORKLOAD, name, true("Admitted"))
    await quiet.until(kinds.JOB, "train", lambda one: bool((one.get("status") or {}).get("active")))
    leading.cancel()
    leaves = {**condition(workload, "Admitted"), "type": "Evicted", "reason": "Preempted"}
    change = {"status": {"conditions": [*workload["status"]["conditions"], leaves]}}
    await quiet.client.patch(kinds.WORKLOAD, name, "default", change, subresource="status")
    second = planned(quiet.client, AppWrapperSettings(trust_unstamped=True), queues=QueueSettings())
    quiet.start(second.queues.run())
    await second.queues.synced()
    second.queues.queue.enqueue(Key("default", name))
    await quiet.settled()
    kept = await quiet.client.get(kinds.WORKLOAD, name, "default")
    assert condition(kept, "QuotaReserved")["status"] == "True"
