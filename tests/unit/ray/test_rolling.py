"""Strategy Rolling: workers one after the other, the head last and only where its state survives."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shoal.api import kinds
from shoal.controllers.ray import names, view
from shoal.controllers.ray.cluster import rolling
from shoal.controllers.ray.settings import GATES_ON, ROLLING_UPGRADE, RaySettings
from shoal.controllers.ray.validation.cluster_rules import problems_of_cluster
from tests.conformance.kuberay_traces import Stage
from tests.faults import proven
from tests.unit.ray.builders import container, group, ray_cluster

ON = RaySettings(gates=GATES_ON | {ROLLING_UPGRADE})
ROLLING = {"type": "Rolling"}
READY = {"do": "setPods", "phase": "Running", "ready": True}


@pytest.fixture
async def rolls() -> AsyncIterator[Stage]:
    stage = Stage(ON)
    await stage.start()
    yield stage
    await stage.stop()


async def ready(stage: Stage) -> None:
    await stage.settle()
    await stage.play(READY)
    await stage.settle()


async def changed(stage: Stage, **spec: object) -> None:
    await stage.client.patch(kinds.RAY_CLUSTER, "demo", "default", {"spec": spec})
    await stage.settle()


def uids(stage: Stage, kind: str = names.WORKER) -> set[str]:
    return {view.uid(pod) for pod in stage.objects(kinds.POD) if view.labels(pod)[names.NODE_TYPE] == kind}


def newer(count: int = 3, **more: object) -> list[object]:
    template = {"spec": {"containers": [container("ray-worker", image="rayproject/ray:9")]}}
    return [group("small", replicas=count, template=template, **more)]


def told(stage: Stage) -> str:
    found = {one["type"]: one for one in stage.objects(kinds.RAY_CLUSTER)[0]["status"]["conditions"]}
    return str((found.get("SpecDrift") or {}).get("message") or "")


def all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(cluster: object, pods: list[object]) -> list[object]:
        return [pod for pod in pods if rolling.status.drifted_groups(cluster, [pod])]

    monkeypatch.setattr(rolling, "next_to_go", everything)


@proven(without=all_at_once)
async def test_f353_a_rolling_upgrade_takes_one_worker_at_a_time_and_stops_at_one_that_does_not_start(rolls: Stage):
    """F353: the template of a running cluster changes under strategy Rolling, and the new one may not start. Holds: one
    worker goes at a time, the next only when all are ready; the head stays."""
    await rolls.client.create(
        kinds.RAY_CLUSTER, ray_cluster("demo", group("small", replicas=3), upgradeStrategy=ROLLING), "default"
    )
    await ready(rolls)
    first, head = uids(rolls), uids(rolls, names.HEAD)
    await changed(rolls, workerGroupSpecs=newer())
    for replaced in (1, 2, 3):
        assert len(uids(rolls)) == 3 and len(uids(rolls) - first) == replaced
        await rolls.settle()  # as long as the new one is not ready, nothing else goes
        assert len(uids(rolls) - first) == replaced
        assert ("one after the other" in told(rolls)) is (replaced < 3)
        await ready(rolls)
    assert not uids(rolls) & first and uids(rolls, names.HEAD) == head
    assert told(rolls) == ""


async def test_a_worker_that_was_never_ready_goes_at_once(rolls: Stage):
    await rolls.client.create(
        kinds.RAY_CLUSTER, ray_cluster("demo", group("small", replicas=3), upgradeStrategy=ROLLING), "default"
    )
    await rolls.settle()
    first = uids(rolls)
    await changed(rolls, workerGroupSpecs=newer())
    assert not uids(rolls) & first and len(uids(rolls)) == 3


async def test_a_replica_of_several_hosts_goes_whole(rolls: Stage):
    hosts = group("small", replicas=2, numOfHosts=2)
    await rolls.client.create(kinds.RAY_CLUSTER, ray_cluster("demo", hosts, upgradeStrategy=ROLLING), "default")
    await ready(rolls)
    first = uids(rolls)
    await changed(rolls, workerGroupSpecs=newer(2, numOfHosts=2))
    assert len(uids(rolls)) == 4 and len(uids(rolls) - first) == 2
    await ready(rolls)
    assert not uids(rolls) & first


@pytest.mark.parametrize("survives", [False, True])
async def test_the_head_moves_last_and_only_where_its_state_survives(rolls: Stage, survives: bool):
    options = {"gcsFaultToleranceOptions": {"redisAddress": "redis:6379"}} if survives else {}
    body = ray_cluster("demo", group("small", replicas=1), upgradeStrategy=ROLLING, **options)
    await rolls.client.create(kinds.RAY_CLUSTER, body, "default")
    await ready(rolls)
    workers, head = uids(rolls), uids(rolls, names.HEAD)
    template = {"template": {"spec": {"containers": [container("ray-head", image="rayproject/ray:9")]}}}
    await changed(rolls, workerGroupSpecs=newer(1), headGroupSpec=template)
    assert not uids(rolls) & workers and uids(rolls, names.HEAD) == head  # the worker first
    await ready(rolls)
    assert (uids(rolls, names.HEAD) == head) is not survives
    assert ("the head is kept" in told(rolls)) is not survives


def test_the_strategy_needs_its_gate_and_a_cluster_of_its_user():
    body = ray_cluster(upgradeStrategy=ROLLING)
    assert problems_of_cluster(body, ON) == []
    assert "RayClusterRollingUpgrade" in problems_of_cluster(body, RaySettings())[0]
    of_job = ray_cluster(upgradeStrategy=ROLLING, metadata={"labels": {names.ORIGIN_KIND: "RayJob"}})
    assert "not for clusters made by a RayJob" in problems_of_cluster(of_job, ON)[0]
