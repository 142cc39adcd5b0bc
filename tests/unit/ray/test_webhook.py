"""Admission: refused where it can never work, never in the way otherwise."""

from __future__ import annotations

import msgspec
import pytest

from shoal.api import kinds
from shoal.controllers.ray.settings import RaySettings, from_environment
from shoal.controllers.ray.webhook import validator
from shoal.kube.admission_review import AdmissionRequest
from tests.conformance.kuberay_traces import Stage
from tests.unit.ray.builders import group, ray, ray_cluster, ray_job


def asked(obj, old=None, **more) -> AdmissionRequest:
    kind = {"group": "", "version": "v1", "kind": obj["kind"]}
    body = {"uid": "1", "kind": kind, "name": obj["metadata"]["name"], "operation": "UPDATE" if old else "CREATE"}
    whole = {**body, "namespace": "default", "object": obj, "oldObject": old, **more}
    return msgspec.convert(whole, AdmissionRequest)


validate = validator(RaySettings())


@pytest.mark.parametrize(
    "obj, told",
    [
        (ray_cluster("demo", group("a"), group("a")), "used twice"),
        (ray_cluster("demo", group(minReplicas=3, maxReplicas=1)), "minReplicas 3 is above"),
        (ray_cluster("Bad.Name"), "metadata.name"),
        (ray_job(runtimeEnvYAML="just text"), "runtimeEnvYAML"),
        (ray_job(entrypoint=""), "entrypoint is empty"),
        (ray(configuration="min_workers: -1"), "line 1"),
    ],
)
def test_bad_input_is_refused_with_what_to_change(obj, told):
    verdict = validate(asked(obj))
    assert not verdict.allowed
    assert told in verdict.message


@pytest.mark.parametrize("obj", [ray_cluster(), ray_job(), ray(minWorkers=1)])
def test_good_input_passes(obj):
    assert validate(asked(obj)).allowed


def test_an_invalid_object_can_still_be_labelled_and_deleted():
    bad = ray_cluster("demo", group("a"), group("a"))
    labelled = {**bad, "metadata": {**bad["metadata"], "labels": {"x": "y"}}}
    assert validate(asked(labelled, old=bad)).allowed
    going = {**bad, "metadata": {**bad["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}}
    assert validate(asked(going, old=bad)).allowed


def test_a_status_is_not_judged():
    bad = ray_cluster("demo", group("a"), group("a"))
    assert validate(asked(bad, subResource="status")).allowed


def test_what_will_disappoint_is_a_warning():
    small = ray_cluster()
    small["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {"memory": "512Mi"}
    verdict = validate(asked(small))
    assert verdict.allowed
    assert "512Mi" in verdict.warnings[0]


def test_services_and_cron_jobs_that_cannot_work_are_refused():
    config = ray_cluster()["spec"]
    service = {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": "serve"}}
    assert validate(asked({**service, "spec": {"rayClusterConfig": config}})).allowed
    refused = validate(asked({**service, "spec": {"rayClusterConfig": config, "upgradeStrategy": {"type": "Rolling"}}}))
    assert not refused.allowed and "Spec.UpgradeStrategy.Type value Rolling is invalid" in refused.message
    cron = {"apiVersion": "ray.io/v1", "kind": "RayCronJob", "metadata": {"name": "nightly"}}
    job = {"entrypoint": "true", "rayClusterSpec": config}
    assert validate(asked({**cron, "spec": {"schedule": "@daily", "jobTemplate": job}})).allowed
    refused = validate(asked({**cron, "spec": {"schedule": "TZ=UTC 0 0 * * *", "jobTemplate": job}}))
    assert not refused.allowed and "use timeZone field instead" in refused.message


LONG = "a" * 54
NO_ENTRYPOINT = ray_job(entrypoint="")
BAD_ENVIRONMENT = ray_job(runtimeEnvYAML="just text")


@pytest.mark.parametrize(
    "obj, by_spec, by_metadata",
    [
        (ray_job(LONG), False, False),
        (ray_cluster(LONG), False, False),
        (ray_cluster("demo", group("a"), group("a")), False, False),
        (NO_ENTRYPOINT, False, True),
        (BAD_ENVIRONMENT, False, True),
        (ray_cluster("demo", group(minReplicas=3, maxReplicas=1)), False, True),
    ],
)
def test_admission_may_be_that_of_a_kuberay_with_or_without_webhooks(obj, by_spec, by_metadata):
    assert validator(RaySettings())(asked(obj)).allowed is by_spec
    assert validator(from_environment({"ENABLE_WEBHOOKS": "true"}))(asked(obj)).allowed is by_metadata
    assert validator(from_environment({"ENABLE_WEBHOOKS": "false"}))(asked(obj)).allowed


async def stored(body, gang):
    """What becomes of a RayJob where admission lets everything in: its status, and its clusters."""
    stage = Stage(RaySettings(admission="off", gang=gang))
    await stage.start()
    await stage.client.create(kinds.RAY_JOB, body, "default")
    await stage.settle()
    found = stage.objects(kinds.RAY_JOB)[0]["status"], stage.objects(kinds.RAY_CLUSTER)
    await stage.stop()
    return found


async def test_what_admission_let_in_is_told_in_the_status():
    status, clusters = await stored(BAD_ENVIRONMENT, "on")
    assert (status["jobDeploymentStatus"], status["reason"]) == ("ValidationFailed", "ValidationFailed")
    assert "runtimeEnvYAML" in status["message"] and not clusters


async def test_a_job_without_an_entrypoint_starts_its_cluster_as_with_kuberay():
    status, clusters = await stored(NO_ENTRYPOINT, "off")
    assert status["jobDeploymentStatus"] == "Initializing" and len(clusters) == 1
