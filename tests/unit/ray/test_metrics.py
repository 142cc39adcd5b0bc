"""What Prometheus is told, under the names that existing dashboards ask for."""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.times import seconds_text
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


async def test_how_long_a_cluster_waited_for_its_nodes_is_shown(stage):
    await created(stage)
    for seconds, match in ((30, {"ray.io/node-type": "head"}), (5, {"ray.io/node-type": "worker"})):
        stage.clock.advance(seconds)
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": seconds_text(stage.clock.now())}
        ready = {"type": "Ready", "status": "True"}
        await stage.play({"do": "setPods", "match": match, "phase": "Running", "conditions": [bound, ready]})
    await stage.settle()
    shown = samples(stage)
    assert shown["shoal_raycluster_queue_wait_seconds", "demo"] == 30
    assert shown["shoal_raycluster_gang_admission_seconds", "demo"] == 5


async def test_the_operators_own_passes_are_timed_and_its_failures_counted(stage):
    await stage.play({"do": "quota", "deny": True})
    await created(stage)
    shown = samples(stage)
    assert shown["shoal_ray_reconcile_duration_seconds_count", "raycluster"] >= 2
    assert shown["shoal_ray_reconcile_errors_total", "raycluster"] >= 1
    assert shown["shoal_ray_reconcile_queue_length", "rayjob"] == 0


async def test_a_job_shows_when_ray_began_it(stage):
    await stage.client.create(kinds.RAY_JOB, ray_job(mode="HTTPMode"), "default")
    await stage.settle()
    stage.clock.advance(20)
    await stage.play({"do": "setPods", "phase": "Running", "ready": True})
    stage.dashboard.info = {"status": "RUNNING", "start_time": stage.clock.now() // 1000}
    await stage.settle()
    assert samples(stage)["shoal_rayjob_time_to_first_task_seconds", "train"] == 20
