"""What an AppWrapper asks for: every kind we know, any kind by where its templates stand, and what was declared."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.api.appwrapper import AppWrapper
from shoal.api.codec import typed
from shoal.api.meta import Json
from shoal.controllers.appwrapper.wrapped import wrapped_objects
from shoal.controllers.demand import Workers
from shoal.controllers.demand.app_wrapper import component_pod_sets, component_templates, gang_size, pod_sets
from shoal.controllers.demand.pod_defaults import defaults_of
from shoal.engine.model import PodSet
from shoal.engine.nodes.fit import demand_of
from tests.unit.appwrapper.build import app_wrapper, needs

GIB = 1 << 30


def pods(cpu: str = "1", memory: str = "1Gi", **spec: Any) -> Json:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu, "memory": memory}}}
    return {"spec": {"containers": [container], **spec}}


def made(kind: str, version: str, **spec: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}


def workers(least: int, asked: int, most: int) -> Json:
    return {"groupName": "w", "replicas": asked, "minReplicas": least, "maxReplicas": most, "template": pods("2")}


def ray(group: Json, **more: Any) -> Json:
    return {"headGroupSpec": {"rayStartParams": {}, "template": pods("1")}, "workerGroupSpecs": [group], **more}


def replicated_job(name: str, replicas: int, **spec: Any) -> Json:
    return {"name": name, "replicas": replicas, "template": {"spec": {**spec, "template": pods("1")}}}


JOBS = [replicated_job("a", 2, parallelism=3), replicated_job("b", 1, parallelism=4, completions=2)]


@pytest.mark.parametrize(
    ("wrapped", "cpu", "at_start"),
    [
        (made("Pod", "v1", **pods("3")["spec"]), 3, 1),
        (made("Deployment", "apps/v1", replicas=3, template=pods("2")), 6, 3),
        (made("ReplicaSet", "apps/v1", replicas=0, template=pods("2")), 0, 0),
        (made("ReplicationController", "v1", replicas=2, template=pods("2")), 4, 2),
        (made("DaemonSet", "apps/v1", template=pods("2")), 2, 1),
        (made("StatefulSet", "apps/v1", replicas=3, template=pods("2")), 6, 1),  # one after the other
        (made("StatefulSet", "apps/v1", replicas=3, podManagementPolicy="Parallel", template=pods("2")), 6, 3),
        (made("Job", "batch/v1", parallelism=5, completions=2, template=pods("1")), 2, 2),
        (made("Job", "batch/v1", parallelism=5, template=pods("1")), 5, 5),
        (made("Job", "batch/v1", suspend=True, template=pods("1")), 1, 0),
        (made("CronJob", "batch/v1", jobTemplate={"spec": {"parallelism": 2, "template": pods("1")}}), 2, 2),
        (made("JobSet", "jobset.x-k8s.io/v1alpha2", replicatedJobs=JOBS), 8, 8),
        (
            made(
                "JobSet",
                "jobset.x-k8s.io/v1alpha2",
                replicatedJobs=JOBS,
                startupPolicy={"startupPolicyOrder": "InOrder"},
            ),
            8,
            6,
        ),
        (made("RayCluster", "ray.io/v1", **ray(workers(0, 2, 5))), 5, 3),
        (
            made("RayJob", "ray.io/v1", entrypoint="x", rayClusterSpec=ray(workers(0, 2, 5))),
            5.5,
            3,
        ),  # and who submits it
        (made("RayJob", "ray.io/v1", submissionMode="HTTPMode", rayClusterSpec=ray(workers(0, 2, 5))), 5, 3),
        (made("RayJob", "ray.io/v1", clusterSelector={"ray.io/cluster": "there"}), 0, 0),
        (made("RayService", "ray.io/v1", rayClusterConfig=ray(workers(0, 2, 5))), 5, 3),
        (
            made(
                "Ray",
                "ray.k8s.io/v1alpha1",
                minWorkers=1,
                initialWorkers=2,
                maxWorkers=3,
                head=pods("1"),
                worker=pods("2"),
            ),
            5.6,  # it may grow, so Ray's autoscaler runs beside the head; and one pod launches it
            3,
        ),
        (
            made(
                "PyTorchJob",
                "kubeflow.org/v1",
                pytorchReplicaSpecs={
                    "Master": {"replicas": 1, "template": pods("1")},
                    "Worker": {"replicas": 3, "template": pods("2")},
                },
            ),
            7,
            4,
        ),
        (
            made(
                "LeaderWorkerSet",
                "leaderworkerset.x-k8s.io/v1",
                replicas=2,
                leaderWorkerTemplate={"size": 3, "leaderTemplate": pods("1"), "workerTemplate": pods("2")},
            ),
            10,
            6,
        ),
        (made("Anything", "example.org/v1", parts=[{"replicas": 2, "podTemplate": pods("3")}]), 6, 2),
        (made("ConfigMap", "v1"), 0, 0),
    ],
)
def test_every_kind_says_what_its_pods_need(wrapped: Json, cpu: float, at_start: int) -> None:
    wrapper = typed(app_wrapper("x", wrapped), AppWrapper)
    assert demand_of(pod_sets(wrapper)).get("cpu", 0) == cpu * 1000
    assert gang_size(wrapper) == at_start
    assert wrapped_objects(wrapper)[0]["metadata"]["name"] == "x"


@pytest.mark.parametrize(("choice", "cpu"), [("replicas", 5.5), ("minimum", 3.5), ("maximum", 11.5)])
def test_autoscaled_workers_count_as_chosen(choice: Workers, cpu: float) -> None:
    """The pod that launches a `Ray` is counted beside them."""
    cluster = made("RayCluster", "ray.io/v1", **ray(workers(1, 2, 5), enableInTreeAutoscaling=True))
    sizes = {"minWorkers": 1, "initialWorkers": 2, "maxWorkers": 5}
    launched = made("Ray", "ray.k8s.io/v1alpha1", **sizes, head=pods("1"), worker=pods("2"))
    for wrapped, launcher in ((cluster, 0), (launched, 100)):
        found = demand_of(pod_sets(typed(app_wrapper("x", wrapped), AppWrapper), choice))
        assert found["cpu"] == cpu * 1000 + launcher


def test_components_need_room_for_pods_that_operators_add() -> None:
    """The submitter of a RayJob is no pod set of its component; the scheduler places it all the same."""
    job = made("RayJob", "ray.io/v1", entrypoint="x", rayClusterSpec=ray(workers(1, 1, 1)))
    wrapper = typed({**app_wrapper("x"), "spec": {"components": [{"template": job}]}}, AppWrapper)
    assert wrapper.spec.components is not None
    assert [one.count for one in component_templates(wrapper.spec.components[0])] == [1, 1]
    assert demand_of(component_pod_sets(wrapper))["cpu"] == 1000 + 2000 + 500


def limit_range(name: str, **item: Json) -> Json:
    return {"metadata": {"name": name}, "spec": {"limits": [{"type": "Container", **item}]}}


@pytest.mark.parametrize(
    ("resources", "cpu", "memory"),
    [
        ({}, 250, 2 * GIB),
        ({"requests": {"cpu": "1"}}, 1000, 2 * GIB),
        ({"limits": {"cpu": "2", "memory": "1Gi"}}, 2000, GIB),  # a limit alone is a request already
        ({"requests": {"cpu": "0", "memory": "1Gi"}}, 0, GIB),
    ],
)
def test_what_a_namespace_gives_to_pods_without_amounts_counts(resources: Json, cpu: int, memory: int) -> None:
    """Of two LimitRanges the first by name counts; a maximum alone is a default, too; init containers as well."""
    defaults = defaults_of(
        [
            limit_range("b", defaultRequest={"cpu": "3"}, max={"memory": "2Gi"}),
            limit_range("a", default={"cpu": "500m"}, defaultRequest={"cpu": "250m"}),
            {"metadata": {"name": "c"}, "spec": {"limits": [{"type": "Pod", "max": {"cpu": "1"}}]}},
        ]
    )
    for part in ("containers", "initContainers"):
        spec = {"containers": [], part: [{"name": "main", "resources": resources}]}
        wrapper = typed(app_wrapper("x", made("Pod", "v1", **spec)), AppWrapper)
        found = demand_of(pod_sets(wrapper, defaults=defaults))
        assert (found.get("cpu", 0), found.get("memory", 0)) == (cpu, memory)
    declared = typed(app_wrapper("x", made("Pod", "v1", containers=[{}]), needs=[needs(1, cpu="1")]), AppWrapper)
    assert demand_of(pod_sets(declared, defaults=defaults)) == {"cpu": 1000, "pods": 1}, "declared is declared"


def test_what_a_runtime_class_adds_to_pods_counts() -> None:
    """Overhead and places of the class that a pod names; declared amounts stay as declared, its places count."""
    scheduling = {"nodeSelector": {"kata": "yes", "zone": "b"}, "tolerations": [{"key": "kata", "operator": "Exists"}]}
    kata = {"metadata": {"name": "kata"}, "overhead": {"podFixed": {"cpu": "250m"}}, "scheduling": scheduling}
    defaults = defaults_of([], [kata, {"metadata": {"name": "plain"}}])

    def found(declared: list[Json] | None = None, **spec: object) -> PodSet:
        wrapper = app_wrapper("x", made("Pod", "v1", **pods("1", **spec)["spec"]), needs=declared)
        return pod_sets(typed(wrapper, AppWrapper), defaults=defaults)[0]

    boxed = found(runtimeClassName="kata", nodeSelector={"zone": "a"})
    assert (boxed.requests["cpu"], boxed.node_selector) == (1250, {"kata": "yes", "zone": "a"})
    assert [one.key for one in boxed.tolerations] == ["kata"]
    declared = found([needs(1, cpu="1")], runtimeClassName="kata")
    assert (declared.requests, declared.node_selector["kata"]) == ({"cpu": 1000}, "yes")
    for other in ("plain", "unknown", 7):
        assert found(runtimeClassName=other).requests["cpu"] == 1000


def test_pods_count_as_the_scheduler_counts_them() -> None:
    """The larger of what starts up and what runs, sidecars with both, and the pod's own overhead."""
    first = {"name": "first", "resources": {"requests": {"cpu": "3"}}}
    beside = {"name": "beside", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}
    spec = pods("1", initContainers=[beside, first], overhead={"cpu": "250m"})["spec"]
    found = demand_of(pod_sets(typed(app_wrapper("x", made("Pod", "v1", **spec)), AppWrapper)))
    assert found["cpu"] == 4250


def test_declared_pods_replace_the_template_and_keep_its_places() -> None:
    template = made("Pod", "v1", **pods("4", nodeSelector={"zone": "a"})["spec"])
    found = pod_sets(typed(app_wrapper("x", template, needs=[needs(2, cpu="500m", memory="0")]), AppWrapper))
    assert [(one.count, one.requests, one.node_selector) for one in found] == [(2, {"cpu": 500}, {"zone": "a"})]


def test_amounts_beyond_32_bits_are_exact() -> None:
    found = demand_of(pod_sets(typed(app_wrapper("x", made("Pod", "v1"), needs=[needs(3, memory="4Ti")]), AppWrapper)))
    assert found["memory"] == 12 * 1024 * GIB
