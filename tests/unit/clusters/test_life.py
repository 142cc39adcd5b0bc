"""A gang that is submitted at the hub and runs in one other cluster, from its first day to its last."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.controllers.multicluster import controller
from shoal.controllers.ray import Operator, RaySettings
from tests.faults import proven
from tests.unit.clusters.build import MANAGED, condition, is_on, is_placed, our_check, sent_job, town
from tests.unit.queues.build import QUEUE, complete, job, make, name_of, pods_of, ray_job, said, true


async def test_a_job_goes_whole_to_one_cluster_and_its_end_comes_back() -> None:
    async with town("a", "b") as t:
        t.start_hub()
        await t.connected()
        (made,) = await make(t.hub, sent_job("train", 3, cpu="2"))
        workload = await t.hub.until(kinds.WORKLOAD, name_of(made), is_placed)
        home = workload["status"]["clusterName"]
        await t.hub.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
        there = t.members[home]
        await there.until(kinds.JOB, "train", lambda one: one["spec"]["suspend"] is False)
        await pods_of(there, "train", 3)
        await t.hub.until(kinds.JOB, "train", lambda one: (one.get("status") or {}).get("active") == 3)
        assert await t.where(kinds.JOB, "train") == [home]
        assert (await t.hub.get(kinds.JOB, "train"))["spec"]["suspend"] is True
        assert await t.hub.names(kinds.POD) == []
        await complete(there, "train", 3)
        ended = await t.hub.until(kinds.WORKLOAD, name_of(made), true("Finished"))
        assert said(ended, "Finished")[1] == "Succeeded"
        assert is_on(home)(ended)
        await there.until_gone(kinds.JOB, "train")
        assert await t.where(kinds.WORKLOAD, name_of(made)) == []


async def test_a_ray_job_goes_where_there_is_room_and_leaves_when_it_is_deleted() -> None:
    async with town("a", "b") as t:
        await make(t.members["a"], job("local", 6))  # 6 of 8 cores
        await t.members["a"].until(kinds.JOB, "local", lambda one: one["spec"]["suspend"] is False)
        t.start_hub()
        await t.connected()
        (made,) = await make(t.hub, ray_job("train", 4))
        name = name_of(made, "RayJob", "ray.io")
        await t.hub.until(kinds.WORKLOAD, name, is_on("b"))
        copy = await t.members["b"].until(kinds.RAY_JOB, "train", lambda one: one["spec"]["suspend"] is False)
        assert "managedBy" not in copy["spec"]
        assert copy["metadata"]["labels"]["kueue.x-k8s.io/multikueue-origin"].startswith("shoal-")
        assert (await t.hub.get(kinds.RAY_JOB, "train"))["spec"]["managedBy"] == "kueue.x-k8s.io/multikueue"
        await t.members["a"].until_gone(kinds.WORKLOAD, name)
        status = {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING", "rayClusterName": "train-x"}
        await t.members["b"].client.patch(kinds.RAY_JOB, "train", "default", {"status": status}, subresource="status")
        shown = await t.hub.until(kinds.RAY_JOB, "train", lambda one: (one.get("status") or {}).get("jobStatus"))
        assert shown["status"]["rayClusterName"] == "train-x"
        await t.hub.client.delete(kinds.RAY_JOB, "train", "default")
        await t.hub.until_gone(kinds.RAY_JOB, "train")
        await t.hub.until_gone(kinds.WORKLOAD, name)
        assert await t.where(kinds.RAY_JOB, "train") == await t.where(kinds.WORKLOAD, name) == []


def abandons_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "abandoned", lambda kind, job: [])


@proven(without=abandons_none)
async def test_f155_a_ray_job_that_the_hubs_operator_marked_first_goes_everywhere() -> None:
    """F155: the hub's Ray operator puts its finalizer on a RayJob before that is given to another cluster, and ignores
    it from then on. Holds: deleted at the hub, it goes there and in the cluster where it runs."""
    async with town("a") as t:
        t.hub.start(Operator(t.hub.client, RaySettings()).run_until_cancelled())
        (made,) = await make(t.hub, ray_job("train", 2))
        name = name_of(made, "RayJob", "ray.io")
        finalizer = "ray.io/rayjob-finalizer"
        marked = {"metadata": {"finalizers": [finalizer]}}  # as KubeRay does, and ours before a start
        await t.hub.client.patch(kinds.RAY_JOB, "train", "default", marked)
        t.start_hub()
        await t.hub.until(kinds.WORKLOAD, name, true("Admitted"))
        await t.members["a"].until(kinds.RAY_JOB, "train", lambda one: one["spec"]["suspend"] is False)
        await t.hub.client.delete(kinds.RAY_JOB, "train", "default")
        await t.hub.until_gone(kinds.RAY_JOB, "train")
        await t.members["a"].until_gone(kinds.RAY_JOB, "train")
        await t.hub.until_gone(kinds.WORKLOAD, name)


async def test_a_gang_that_no_cluster_can_hold_waits_and_says_why_cluster_by_cluster() -> None:
    async with town("a", "b") as t:
        t.start_hub()
        await t.connected()
        (made,) = await make(t.hub, sent_job("wide", 3, cpu="4"))
        waiting = await t.hub.until(
            kinds.WORKLOAD, name_of(made), lambda one: our_check(one).get("message", "").count("quota") > 1
        )
        assert our_check(waiting)["state"] == "Pending"
        for name in ("a", "b"):
            assert f"{name}: couldn't assign flavors" in our_check(waiting)["message"]
        assert await t.where(kinds.JOB, "wide") == []


async def test_an_app_wrapper_goes_to_another_cluster_as_a_whole() -> None:
    async with town("a") as t:
        t.start_hub()
        await t.connected()
        wrapped = job("inner", 2)
        del wrapped["metadata"]["labels"]
        wrapped["spec"].pop("suspend")
        wrapper = {
            "apiVersion": "workload.codeflare.dev/v1beta2",
            "kind": "AppWrapper",
            "metadata": {"name": "whole", "namespace": "default", "labels": {QUEUE: "user-queue"}},
            "spec": {"suspend": True, "managedBy": MANAGED, "components": [{"template": wrapped}]},
        }
        made = await t.hub.create(kinds.APP_WRAPPER_V1BETA2, wrapper)
        name = name_of(made, "AppWrapper", "workload.codeflare.dev")
        await t.hub.until(kinds.WORKLOAD, name, is_on("a"))
        await pods_of(t.members["a"], "inner", 2)
        await t.hub.until(
            kinds.APP_WRAPPER_V1BETA2, "whole", lambda one: (one.get("status") or {}).get("phase") == "Running"
        )
        assert await t.hub.names(kinds.JOB) == []


async def test_a_gang_evicted_in_its_cluster_is_offered_again() -> None:
    async with town("a", "b") as t:
        t.start_hub()
        await t.connected()
        (made,) = await make(t.hub, sent_job("train", 2))
        name = name_of(made)
        placed = await t.hub.until(kinds.WORKLOAD, name, is_placed)
        home = placed["status"]["clusterName"]
        await pods_of(t.members[home], "train", 2)
        await t.members[home].client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": False}})
        back = await t.hub.until(kinds.WORKLOAD, name, lambda one: bool(condition(one, "Evicted")))
        assert f'it was evicted on "{home}"' in said(back, "Evicted")[2]
        again = await t.hub.until(kinds.WORKLOAD, name, lambda one: is_placed(one) and true("Admitted")(one))
        home = again["status"]["clusterName"]
        await pods_of(t.members[home], "train", 2)
        assert await t.where(kinds.JOB, "train") == [home]


async def test_a_job_that_other_controllers_would_run_is_refused() -> None:
    """A Job cannot be claimed after its creation."""
    async with town("a") as t:
        t.start_hub()
        await t.connected()
        (made,) = await make(t.hub, job("here", 1))
        found = await t.hub.until(kinds.WORKLOAD, name_of(made), lambda one: one["spec"].get("active") is False)
        assert "spec.managedBy" in said(found, "Evicted")[2] or "spec.managedBy" in our_check(found)["message"]
        assert await t.where(kinds.WORKLOAD, name_of(made)) == []


async def test_a_cluster_that_is_taken_away_gives_its_gangs_back_first() -> None:
    async with town("a", "b") as t:
        t.start_hub()
        await t.connected()
        (made,) = await make(t.hub, sent_job("train", 2))
        found = await t.hub.until(kinds.WORKLOAD, name_of(made), is_placed)
        home = found["status"]["clusterName"]
        (other,) = {"a", "b"} - {home}
        await pods_of(t.members[home], "train", 2)
        await t.hub.client.delete(kinds.MULTIKUEUE_CLUSTER, home)
        await t.hub.until_gone(kinds.MULTIKUEUE_CLUSTER, home)
        assert await t.members[home].names(kinds.JOB) == await t.members[home].names(kinds.WORKLOAD) == []
        await t.hub.until(kinds.WORKLOAD, name_of(made), is_on(other))
        await pods_of(t.members[other], "train", 2)


async def test_what_runs_elsewhere_is_charged_to_the_hubs_quota_and_to_none_of_its_nodes() -> None:
    async with town("a", "b") as t:
        await t.hub.add_node("small", cpu="1", memory="1Gi")
        t.start_hub()
        await t.connected()
        first, second = await make(t.hub, sent_job("one", 8), sent_job("two", 8))
        homes = {
            (await t.hub.until(kinds.WORKLOAD, name_of(made), is_placed))["status"]["clusterName"]
            for made in (first, second)
        }
        assert homes == {"a", "b"}
        for made in (first, second):
            await t.hub.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
        (third,) = await make(t.hub, sent_job("three", 1))
        waiting = await t.hub.until(kinds.WORKLOAD, name_of(third), lambda one: bool(condition(one, "QuotaReserved")))
        assert said(waiting, "QuotaReserved")[:2] == ("False", "WaitingForQuota")
        await t.hub.client.delete(kinds.JOB, "one", "default", propagation="Background")
        await t.hub.until(kinds.WORKLOAD, name_of(third), is_placed)
