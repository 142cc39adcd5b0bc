"""Resources of which a queue has no quota: Kueue's `quotaCheckStrategy`."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.controllers.queues import QueueSettings
from shoal.engine.kueue import read
from shoal.engine.kueue.read import Transformation
from shoal.engine.model import PodSet
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.queues.build import cluster_queue, flavor, job, local_queue, make, name_of, said, true
from tests.unit.queues.conftest import decide


async def test_a_resource_without_quota_keeps_a_gang_waiting(quiet: Cluster) -> None:
    decide(quiet)
    await make(quiet, flavor(), cluster_queue(quota={"cpu": "4"}), local_queue())
    (made,) = await make(quiet, job("train", cpu="1", memory="1Gi"))
    held = await quiet.until(kinds.WORKLOAD, name_of(made), lambda one: said(one, "QuotaReserved")[0] == "False")
    assert "memory" in said(held, "QuotaReserved")[2]


async def test_a_resource_without_quota_is_not_counted_where_the_installation_says_so(quiet: Cluster) -> None:
    decide(quiet, QueueSettings(quota_check_strategy="IgnoreUndeclared"))
    await make(quiet, flavor(), cluster_queue(quota={"cpu": "4"}), local_queue())
    (made,) = await make(quiet, job("train", cpu="1", memory="1Gi"))
    started = await quiet.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    (given,) = started["status"]["admission"]["podSetAssignments"]
    assert [*given["flavors"]] == ["cpu"]


async def test_a_request_counts_in_quota_as_the_installation_transforms_it(quiet: Cluster) -> None:
    rule = Transformation(input="cpu", outputs={"example.com/credits": "10"}, replace=True)
    decide(quiet, QueueSettings(transformations=(rule,)))
    quiet.rules = None  # the judge of rest counts what pods request
    await make(quiet, flavor(), cluster_queue(quota={"example.com/credits": "25"}), local_queue())
    (first,) = await make(quiet, job("first", cpu="2"))
    started = await quiet.until(kinds.WORKLOAD, name_of(first), true("Admitted"))
    (given,) = started["status"]["admission"]["podSetAssignments"]
    assert given["resourceUsage"] == {"example.com/credits": "20"}
    (second,) = await make(quiet, job("second", cpu="1"))
    held = await quiet.until(kinds.WORKLOAD, name_of(second), lambda one: said(one, "QuotaReserved")[0] == "False")
    assert "example.com/credits" in said(held, "QuotaReserved")[2]


def _nodes_count_as_quota_does(patch: pytest.MonkeyPatch) -> None:
    whole = read._pod_set

    def counted(entry: Any, rules: read.PodRules) -> PodSet:
        made = whole(entry, rules)
        return msgspec.structs.replace(made, requests=made.charged)

    patch.setattr(read, "_pod_set", counted)


@proven(without=_nodes_count_as_quota_does)
async def test_f445_what_needs_no_quota_needs_room_all_the_same(quiet: Cluster) -> None:
    """F445: a resource is left out of quota (`excluded_prefixes`), and two gangs ask for more of it than the nodes
    have. Holds: one starts, the other waits for room with its quota reserved."""
    decide(quiet, QueueSettings(excluded_prefixes=("memory",)))
    await make(quiet, flavor(), cluster_queue(quota={"cpu": "9"}), local_queue())
    (first,) = await make(quiet, job("first", cpu="1", memory="40Gi"))
    await quiet.until(kinds.WORKLOAD, name_of(first), true("Admitted"))
    (second,) = await make(quiet, job("second", cpu="1", memory="40Gi"))
    held = await quiet.until(kinds.WORKLOAD, name_of(second), lambda one: said(one, "Admitted")[0] == "False")
    assert said(held, "Admitted")[1] == "WaitingForRoom" and "memory" in said(held, "Admitted")[2]
