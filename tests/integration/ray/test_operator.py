"""The operator's life against servers that validate, default and refuse."""

from __future__ import annotations

from shoal.api import kinds
from shoal.controllers.ray import names, view
from tests.integration.ray.conftest import Site
from tests.unit.ray.builders import group, ray, ray_cluster, ray_job


def state(wanted: str):
    return lambda obj: (obj.get("status") or {}).get("state") == wanted


def stage(wanted: str):
    return lambda obj: (obj.get("status") or {}).get("jobDeploymentStatus") == wanted


async def test_a_cluster_comes_up_scales_suspends_and_resumes(site: Site):
    await site.client.create(kinds.RAY_CLUSTER, ray_cluster(), "default")
    await site.make_ready("demo", 3)
    ready = await site.until(kinds.RAY_CLUSTER, "demo", state("ready"))
    assert ready["status"]["readyWorkerReplicas"] == 2
    assert ready["status"]["observedGeneration"] == ready["metadata"]["generation"]

    patch = [{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": 1}]
    await site.client.patch(kinds.RAY_CLUSTER, "demo", "default", patch, patch_type="json")
    await site.pods("demo", 2)
    await site.end_pods("demo")

    await site.client.patch(kinds.RAY_CLUSTER, "demo", "default", {"spec": {"suspend": True}})
    await site.until(kinds.RAY_CLUSTER, "demo", lambda obj: bool(view.suspended(obj)))
    await site.pods("demo", 0)
    await site.end_pods("demo")
    await site.until(kinds.RAY_CLUSTER, "demo", state("suspended"))

    await site.client.patch(kinds.RAY_CLUSTER, "demo", "default", {"spec": {"suspend": False}})
    await site.pods("demo", 2)


async def test_an_old_manifest_works_unchanged(site: Site):
    """v1alpha1, as the first tutorials have it."""
    old = {**ray_cluster("old"), "apiVersion": "ray.io/v1alpha1"}
    await site.client.create(kinds.RAY_CLUSTER_V1ALPHA1, old, "default")
    await site.make_ready("old", 3)
    await site.until(kinds.RAY_CLUSTER, "old", state("ready"))
    shown = await site.client.get(kinds.RAY_CLUSTER_V1ALPHA1, "old", "default")
    assert shown["status"]["state"] == "ready"
    job = {**ray_job("older", mode="HTTPMode"), "apiVersion": "ray.io/v1alpha1"}
    await site.client.create(kinds.RAY_JOB_V1ALPHA1, job, "default")
    begun = await site.until(kinds.RAY_JOB, "older", stage("Initializing"))
    await site.make_ready(begun["status"]["rayClusterName"], 2)
    await site.until(kinds.RAY_JOB_V1ALPHA1, "older", stage("Running"))


async def test_the_autoscalers_patches_are_obeyed(site: Site):
    """Ray replaces a member that is not there yet; Kubernetes takes that, and the named pod goes."""
    body = ray_cluster("auto", group(replicas=2), enableInTreeAutoscaling=True)
    await site.client.create(kinds.RAY_CLUSTER, body, "default")
    pods = await site.make_ready("auto", 3)
    await site.until(kinds.RAY_CLUSTER, "auto", state("ready"))
    named = next(view.name(pod) for pod in pods if view.labels(pod)[names.NODE_TYPE] == names.WORKER)
    patch = [
        {"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": 1},
        {"op": "replace", "path": "/spec/workerGroupSpecs/0/scaleStrategy", "value": {"workersToDelete": [named]}},
    ]
    await site.client.patch(kinds.RAY_CLUSTER, "auto", "default", patch, patch_type="json")
    left = await site.pods("auto", 2)
    assert named not in {view.name(pod) for pod in left}
    role = await site.client.get(kinds.ROLE, "auto", "default")
    assert role["rules"][0]["resources"] == ["pods"]


async def test_a_job_runs_to_its_end_and_takes_its_cluster_along(site: Site):
    await site.client.create(kinds.RAY_JOB, ray_job(mode="HTTPMode", shutdownAfterJobFinishes=True), "default")
    begun = await site.until(kinds.RAY_JOB, "train", stage("Initializing"))
    name = begun["status"]["rayClusterName"]
    await site.make_ready(name, 2)
    await site.until(kinds.RAY_JOB, "train", stage("Running"))
    await site.dashboard.received.wait()
    site.dashboard.info = {"status": "SUCCEEDED", "message": "done", "start_time": 1_700_000_000_000}
    done = await site.until(kinds.RAY_JOB, "train", stage("Complete"))
    assert done["status"]["succeeded"] == 1
    assert done["status"]["rayJobInfo"]["startTime"] == "2023-11-14T22:13:20Z"
    await site.gone(kinds.RAY_CLUSTER, name)


async def test_a_late_job_ends_and_its_submitter_with_it(site: Site):
    await site.client.create(kinds.RAY_JOB, ray_job("late"), "default")
    begun = await site.until(kinds.RAY_JOB, "late", stage("Initializing"))
    await site.make_ready(begun["status"]["rayClusterName"], 2)
    await site.until(kinds.RAY_JOB, "late", stage("Running"))
    await site.until(kinds.JOB, "late", lambda obj: "activeDeadlineSeconds" not in obj["spec"])
    await site.client.patch(kinds.RAY_JOB, "late", "default", {"spec": {"activeDeadlineSeconds": 1}})
    ended = await site.until(kinds.RAY_JOB, "late", stage("Failed"))
    assert ended["status"]["reason"] == "DeadlineExceeded"
    await site.until(kinds.JOB, "late", lambda obj: obj["spec"].get("activeDeadlineSeconds", 0) >= 60)


async def test_a_ray_object_is_stored_in_the_shape_of_the_proposal(site: Site):
    await site.client.create(kinds.RAY, ray(minWorkers=1), "default")
    await site.make_ready("sample", 2)
    launched = await site.until(
        kinds.RAY, "sample", lambda obj: (obj.get("status") or {}).get("head", {}).get("availableReplicas") == 1
    )
    condition = launched["status"]["launcher"]["conditions"][0]
    assert condition["type"] == "Launching"
    assert condition["lastProbeTime"] is None
    assert launched["status"]["worker"]["replicas"] == 1


async def test_a_bad_spec_is_told_and_its_correction_recovers(site: Site):
    body = ray_cluster("bad", group("a"), group("a"))
    await site.client.create(kinds.RAY_CLUSTER, body, "default")
    told = await site.until(kinds.RAY_CLUSTER, "bad", lambda obj: bool((obj.get("status") or {}).get("conditions")))
    assert "used twice" in told["status"]["conditions"][0]["message"]
    await site.client.patch(kinds.RAY_CLUSTER, "bad", "default", {"spec": {"workerGroupSpecs": [group("a")]}})
    await site.pods("bad", 3)
