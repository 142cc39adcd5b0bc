"""What a queue must know before it admits a Ray gang: every pod, with the containers that the operator will add."""

from __future__ import annotations

import pytest

from shoal.api.codec import typed
from shoal.api.kueue_workload import Workload
from shoal.controllers.demand import RaySidecars, as_made, templates
from shoal.controllers.queues.facts import with_sidecars
from shoal.controllers.queues.jobs.ray import RayClusters, RayJobs
from shoal.controllers.ray import RaySettings
from shoal.controllers.ray.cluster import counts
from shoal.controllers.ray.pods import builder, submission
from tests.unit.ray.builders import cluster_spec, container, group, ray_cluster, ray_job

AUTOSCALED = {"enableInTreeAutoscaling": True}


def asked(template):
    return {name: str(amount) for name, amount in counts.pod_resources(template.content["spec"]).items()}


@pytest.mark.parametrize(
    "options, cpu, memory",
    [
        ({}, "1", "2Gi"),
        (AUTOSCALED, "1500m", "2560Mi"),
        ({**AUTOSCALED, "autoscalerOptions": {"resources": {"requests": {"cpu": "1"}}}}, "2", "2Gi"),
    ],
)
def test_the_head_is_counted_as_it_will_be_made(options, cpu, memory):
    cluster = ray_cluster(metadata={"uid": "u"}, **options)
    head = templates(cluster)[0]
    assert asked(head) == {"cpu": cpu, "memory": memory}
    built = counts.pod_resources(builder.head_pod(cluster, RaySettings())["spec"])
    assert asked(head) == {name: str(amount) for name, amount in built.items()}


@pytest.mark.parametrize(
    "mode, pods_, head_cpu", [("K8sJobMode", 3, "1"), ("HTTPMode", 2, "1"), ("SidecarMode", 2, "1500m")]
)
def test_a_job_counts_its_submitter_wherever_it_runs(mode, pods_, head_cpu):
    found = templates(ray_job(mode=mode))
    assert sum(template.count for template in found) == pods_
    assert asked(found[0])["cpu"] == head_cpu


@pytest.mark.parametrize("amounts, cpu", [({"requests": {"cpu": "250m"}}, "1250m"), ({}, "1500m")])
def test_a_submitter_that_the_user_brings_is_counted_once(amounts, cpu):
    job = ray_job(mode="SidecarMode")
    own = {"name": "ray-job-submitter", "image": "mine", "resources": amounts}
    job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"].append(own)
    assert asked(templates(job)[0])["cpu"] == cpu
    job["status"] = {"rayClusterName": "c", "jobId": "x"}
    made = submission.cluster_of(job, RaySettings())
    made["metadata"]["uid"] = "u"
    assert str(counts.pod_resources(builder.head_pod(made, RaySettings())["spec"])["cpu"]) == cpu


SIDECARS = RaySettings(
    head_sidecars=(container("log-shipper", cpu="250m", memory="64Mi"),),
    worker_sidecars=(container("gpu-exporter", cpu="100m", memory="32Mi"),),
)


def built(cluster):
    group_ = cluster["spec"]["workerGroupSpecs"][0]
    made = (builder.head_pod(cluster, SIDECARS), builder.worker_pod(cluster, group_, SIDECARS))
    return [{name: str(amount) for name, amount in counts.pod_resources(pod["spec"]).items()} for pod in made]


def test_containers_that_the_operator_is_told_to_add_are_counted():
    """An AppWrapper asks for its pods as they will be made."""
    cluster = ray_cluster("demo", group(replicas=2), metadata={"uid": "u"}, **AUTOSCALED)
    found = [as_made(template, SIDECARS.sidecars) for template in templates(cluster)]
    counted = [counts.pod_resources(content["spec"]) for content in found]
    assert [{name: str(amount) for name, amount in one.items()} for one in counted] == built(cluster)


def test_the_submitter_of_a_job_gets_none_of_them():
    found = templates(ray_job())
    assert [template.role for template in found] == ["head", "worker", ""]


@pytest.mark.parametrize("kind", ["RayCluster", "RayJob"])
def test_a_queue_counts_them_too(kind):
    body = ray_cluster("demo", group(replicas=1)) if kind == "RayCluster" else ray_job()
    sets = (RayClusters() if kind == "RayCluster" else RayJobs()).pod_sets(body)
    owner = {"apiVersion": "ray.io/v1", "kind": kind, "name": "demo", "uid": "u", "controller": True}
    workload = typed({"metadata": {"ownerReferences": [owner]}, "spec": {"podSets": sets}}, Workload)
    found = with_sidecars(workload, SIDECARS.sidecars).spec.pod_sets
    names = [[one["name"] for one in pod_set.template["spec"]["containers"]] for pod_set in found]
    submitter = [["ray-job-submitter"]] if kind == "RayJob" else []
    assert names == [["ray-head", "log-shipper"], ["ray-worker", "gpu-exporter"], *submitter]
    untouched = with_sidecars(workload, RaySidecars(waits_for_head=False))
    assert untouched == workload


def test_an_autoscaled_cluster_asks_for_its_minimum_or_for_all():
    spec = cluster_spec(group(replicas=2, minReplicas=1, maxReplicas=5), **AUTOSCALED)
    cluster = {**ray_cluster(), "spec": spec}
    assert [templates(cluster, workers)[1].count for workers in ("minimum", "replicas", "maximum")] == [1, 2, 5]
    assert counts.gang_size(cluster) == 2
