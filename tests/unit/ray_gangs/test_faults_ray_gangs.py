"""What Ray gangs survive."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.controllers.ray.cluster import start_gate
from shoal.controllers.ray.job import reconciler
from shoal.controllers.ray_gangs import RayGangController
from shoal.engine.line.state import LineState
from tests.cluster import running
from tests.faults import proven
from tests.unit.appwrapper.build import app_wrapper, pod, quota
from tests.unit.appwrapper.build import waits as wrapper_waits
from tests.unit.ray.builders import group, ray_cluster
from tests.unit.ray_gangs.stage import (
    OFF,
    clusters_of,
    job,
    operate,
    plan,
    starts,
    template,
    until_cluster_of,
    waits,
)


def nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_gate, "holds_job", lambda job, settings: False)


@proven(without=nothing_is_held)
async def test_f213_two_jobs_do_not_take_each_others_room():
    """F213: two RayJobs whose clusters fit side by side, and whose submitters then do not. Holds: one of them starts
    whole, and of the other nothing exists until the first is gone."""
    async with running() as cluster:
        await cluster.add_node("node-1", cpu="4", memory="64Gi")
        operate(cluster)
        plan(cluster)
        for name in ("first", "second"):
            await cluster.create(kinds.RAY_JOB, job(name))
        await until_cluster_of(cluster, "first")
        await cluster.until(kinds.RAY_JOB, "second", waits)
        await cluster.settled()
        assert await clusters_of(cluster, "second") == []
        await cluster.client.delete(kinds.RAY_JOB, "first", "default")
        await until_cluster_of(cluster, "second")


def what_runs_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RayGangController, "_runs", lambda self, kind, obj: False)


@proven(without=what_runs_is_not_seen)
async def test_f214_what_ran_before_gangs_were_looked_at_goes_on():
    """F214: gangs are turned on while a RayCluster runs that no node has room for any more; then all its pods are
    lost. Holds: they are made again."""
    async with running() as cluster:
        await cluster.add_node("node-1", cpu="1", memory="1Gi")
        before = cluster.start(operate_off(cluster))
        await cluster.create(kinds.RAY_CLUSTER, ray_cluster("demo", group(replicas=1, template=template("1"))))
        await cluster.until(kinds.RAY_CLUSTER, "demo", lambda obj: "podName" in obj.get("status", {}).get("head", {}))
        await cluster.settled()
        old = {
            one["metadata"]["name"]: one["metadata"]["uid"] for one in await cluster.client.list(kinds.POD, "default")
        }
        before.cancel()
        plan(cluster)
        operate(cluster)
        await cluster.until(kinds.RAY_CLUSTER, "demo", lambda obj: starts(obj) or waits(obj))
        await cluster.settled()
        for name in old:
            await cluster.client.delete(kinds.POD, name, "default", grace_seconds=0)
        for name, uid in old.items():  # a place that is free is filled under its old name
            await cluster.until(kinds.POD, name, lambda pod, uid=uid: pod["metadata"]["uid"] != uid)


async def operate_off(cluster: Any) -> None:
    from shoal.controllers.ray import Operator

    await Operator(cluster.client, OFF).run_until_cancelled()


def suspended_ones_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "without_condition", lambda job: job["status"]["conditions"])


@proven(without=suspended_ones_keep_it)
async def test_f215_a_resumed_job_asks_for_room_again():
    """F215: a RayJob is suspended, its room goes to another, and it is resumed. Holds: it waits; nothing of it exists
    before it has room again."""
    async with running() as cluster:
        await cluster.add_node("node-1", cpu="4", memory="64Gi")
        operate(cluster)
        plan(cluster)
        await cluster.create(kinds.RAY_JOB, job("first"))
        await until_cluster_of(cluster, "first")
        await cluster.create(kinds.RAY_JOB, job("second"))
        await cluster.client.patch(kinds.RAY_JOB, "first", "default", {"spec": {"suspend": True}})
        await until_cluster_of(cluster, "second")
        await cluster.client.patch(kinds.RAY_JOB, "first", "default", {"spec": {"suspend": False}})
        await cluster.until(kinds.RAY_JOB, "first", waits)
        await cluster.settled()
        assert await clusters_of(cluster, "first") == []


def judged_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = LineState.signature

    def alike(self: LineState, gang: Any, alone: str = "") -> Any:
        return msgspec.structs.replace(whole(self, gang, alone), standing=(gang.priority, True, ""))

    monkeypatch.setattr(LineState, "signature", alike)


@proven(without=judged_alike)
async def test_f216_quota_that_refuses_an_app_wrapper_holds_up_no_ray_cluster():
    """F216: quota refuses an AppWrapper, and a RayCluster without a queue asks for exactly the same. Holds: the cluster
    has no quota to wait for, and starts."""
    async with running() as cluster:
        await cluster.add_node("node-1", cpu="4", memory="64Gi")
        await cluster.create(kinds.QUOTA_SUBTREE, quota("team", "", ("root", {"cpu": "0"}, True)))
        await cluster.create(kinds.QUOTA_SUBTREE, quota("team", "root", ("default", {"cpu": "0"}, True)))
        operate(cluster)
        plan(cluster, quota="always")
        await cluster.create(kinds.APP_WRAPPER, app_wrapper("refused", pod("refused", cpu="1", memory="2Gi")))
        await cluster.until(kinds.APP_WRAPPER, "refused", wrapper_waits)
        made = ray_cluster("demo")
        made["spec"]["workerGroupSpecs"] = []
        await cluster.create(kinds.RAY_CLUSTER, made)
        await cluster.until(kinds.RAY_CLUSTER, "demo", starts)
