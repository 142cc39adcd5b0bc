"""What Prometheus is told, under the names that existing dashboards ask for."""

from __future__ import annotations

from shoal.api import kinds
from tests.unit.ray.builders import ray_job
from tests.unit.ray.test_cluster import all_ready, created


def samples(stage):
    return {
        (sample.name, *(value for key, value in sorted(sample.labels.items()) if key not in ("uid", "namespace"))): (
            sample.value
        )
        for family in stage.operator.collect()
        for sample in family.samples
    }


async def test_clusters_and_jobs_are_shown_with_their_times(stage):
    await created(stage)
    assert samples(stage)["kuberay_cluster_condition_provisioned", "false", "demo"] == 1
    stage.clock.advance(12)
    await all_ready(stage)
    shown = samples(stage)
    assert shown["kuberay_cluster_info", "demo", "RayCluster"] == 1
    assert shown["kuberay_cluster_condition_provisioned", "true", "demo"] == 1
    assert shown["kuberay_cluster_provisioned_duration_seconds", "demo"] == 12


async def test_a_job_that_ended_shows_how_long_it_took(stage):
    await stage.client.create(kinds.RAY_JOB, ray_job(activeDeadlineSeconds=60), "default")
    await stage.settle()
    assert samples(stage)["kuberay_job_deployment_status", "Initializing", "train"] == 1
    stage.clock.advance(61)
    await stage.settle()
    shown = samples(stage)
    assert shown["kuberay_job_deployment_status", "Failed", "train"] == 1
    assert shown["kuberay_job_execution_duration_seconds", "Failed", "train", "0"] == 61
