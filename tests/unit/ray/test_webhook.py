"""Admission: refused where it can never work, never in the way otherwise."""

from __future__ import annotations

import msgspec
import pytest

from shoal.controllers.ray.settings import RaySettings
from shoal.controllers.ray.webhook import validator
from shoal.kube.webhooks import AdmissionRequest
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
