"""One id leads through the log of a controller from a decision to its storing; hand-overs are measured."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.api import kinds
from shoal.controllers.planning import decision_log
from shoal.kube.lease import LeaseSettings
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.cli.test_monitoring import served
from tests.unit.cli.test_readiness import Replica, admin, running_replica
from tests.unit.kube.test_logs import Lines, lines
from tests.unit.queues.build import cluster_queue, counts, flavor, local_queue, make, ray_job

__all__ = ["Lines", "lines"]


def _another_id_each_time(patch: pytest.MonkeyPatch) -> None:
    given = iter(range(1_000_000))
    patch.setattr(decision_log, "_about", lambda gang, uid, id: {"object": gang, "uid": uid, "decision": next(given)})


@proven(without=_another_id_each_time)
async def test_f332_a_decision_has_one_id_until_it_is_stored(quiet: Cluster, lines: list[dict[str, Any]]) -> None:
    """F332: many gangs are decided about at once, and a line of the log must be found for one of them. Holds: what was
    decided and what became of it carry the gang's key, its UID and one id that no other decision has."""
    await make(quiet, flavor(), cluster_queue(quota={"cpu": "9", "memory": "8Gi"}), local_queue())
    async with running_replica(Replica(admin(quiet), lease=LeaseSettings())) as replica:
        await replica.until("gangs", None)
        await make(quiet, ray_job("first", 1), ray_job("second", 1))
        await quiet.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: counts(one)[1] == 2)
        workloads = await quiet.client.list(kinds.WORKLOAD, "default")
        found = await served(replica)
    assert len(workloads) == 2
    ids = set()
    for workload in workloads:
        metadata = workload["metadata"]
        about = [line for line in lines if line.get("uid") == metadata["uid"] and "decision" in line]
        assert {line["object"] for line in about} == {f"Workload/{metadata['namespace']}/{metadata['name']}"}
        ended = [line for line in about if line["message"].endswith(": stored")]
        begun = [line for line in about if " is to be " in line["message"]]
        assert ended and {line["decision"] for line in ended} <= {line["decision"] for line in begun}
        ids |= {line["decision"] for line in about}
    assert len(ids) >= 2
    (count,) = (one for one in found["shoal_decision_store_seconds"].samples if one.name.endswith("_count"))
    assert count.value >= 2
