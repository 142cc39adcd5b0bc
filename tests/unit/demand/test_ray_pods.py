"""What is demanded for a Ray manifest is what the Ray operator then makes of it: as many pods, with the same requests.

The real operator runs on the embedded API server; its pods, and those of the Jobs it makes, are counted by what the
scheduler would count for them. AppWrappers ask before the manifest is stored, queues afterwards.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapper
from shoal.api.codec import typed
from shoal.api.kueue_workload import Workload
from shoal.controllers.demand.app_wrapper import pod_sets
from shoal.controllers.demand.pod_defaults import Defaults
from shoal.controllers.queues.facts import with_sidecars
from shoal.controllers.queues.jobs import BY_NAME
from shoal.controllers.ray import RaySettings
from shoal.controllers.ray.settings import GATES_ON, HISTORY_SERVER, MUTUAL_TLS
from shoal.engine.facts import pod_requests
from tests.conformance.kuberay_traces import Stage
from tests.unit.ray.builders import cluster_spec, container, group, ray, ray_cluster, ray_job
from tests.unit.ray.test_ray_kind import CLASSIC

Json = dict[str, Any]
Pods = Counter[tuple[tuple[str, int], ...]]

SAMPLES = Path(__file__).parents[3] / "samples"
READY = {"do": "setPods", "phase": "Running", "ready": True}
LARGE = {"template": {"spec": {"containers": [container("ray-worker", "2", "4Gi", ports=[])]}}}
TINY = {"template": {"spec": {"containers": [container("ray-worker", "50m", "64Mi")]}}}
WITH_INIT = {
    "template": {
        "spec": {
            "initContainers": [container("fetch", "4", "1Gi"), container("proxy", "1", "1Gi", restartPolicy="Always")],
            "containers": [container("ray-worker"), container("logs", "100m", "64Mi")],
        }
    }
}
COLLECTED = {"collectorOptions": {"image": "c", "env": [{"name": "STORAGE_BACKEND", "value": "LocalTest"}]}}
SUBMITTER = {"name": "ray-job-submitter", "image": "rayproject/ray:2.60.0"}


def own_submitter(**amounts: Any) -> Json:
    head = {"template": {"spec": {"containers": [container("ray-head"), {**SUBMITTER, **amounts}]}}}
    return ray_job(mode="SidecarMode", rayClusterSpec=cluster_spec(group(), head=head))


CASES: dict[str, Json] = {
    "a head and two workers": ray_cluster(),
    "no workers": ray_cluster("demo", group(replicas=0)),
    "several groups": ray_cluster("demo", group("a", 1, **LARGE), group("b", 3)),
    "more than the maximum": ray_cluster("demo", group(replicas=7, maxReplicas=3)),
    "fewer than the minimum": ray_cluster("demo", group(replicas=1, minReplicas=4)),
    "no replicas written": ray_cluster("demo", {k: v for k, v in group(minReplicas=2).items() if k != "replicas"}),
    "several hosts": ray_cluster("demo", group(replicas=2, numOfHosts=3)),
    "a suspended group": ray_cluster("demo", group("a", 2, suspend=True), group("b", 1)),
    "workers smaller than the step that waits": ray_cluster("demo", group(**TINY)),
    "init containers": ray_cluster("demo", group(**WITH_INIT)),
    "an autoscaler": ray_cluster(enableInTreeAutoscaling=True),
    "an autoscaler with amounts": ray_cluster(
        enableInTreeAutoscaling=True, autoscalerOptions={"resources": {"requests": {"cpu": "1"}}}
    ),
    "an autoscaler that asks for nothing": ray_cluster(
        enableInTreeAutoscaling=True, autoscalerOptions={"resources": {}}
    ),
    "certificates that a pod waits for": ray_cluster("demo", group(**TINY), tlsOptions={"enabled": True}),
    "collectors of history": ray_cluster("demo", group(**TINY), historyServerOptions=COLLECTED),
    "a submitter": ray_job(),
    "a submitter with a template": ray_job(
        submitterPodTemplate={"spec": {"restartPolicy": "Never", "containers": [container("mine", "3", "1Gi")]}}
    ),
    "a submitter beside the head": ray_job(mode="SidecarMode"),
    "a user's own submitter beside the head": own_submitter(resources={"requests": {"cpu": "250m"}}),
    "a user's own submitter without amounts": own_submitter(),
    "a submission by the operator": ray_job(mode="HTTPMode"),
    "a Ray of typed fields": ray(
        head={"spec": {"containers": [container("ray-head")]}},
        worker={"spec": {"containers": [container("ray-worker", "3", "1Gi")]}},
        minWorkers=2,
        maxWorkers=2,
        initialWorkers=2,
    ),
    "a Ray of text": ray(configuration=CLASSIC),
}
GATES = GATES_ON | {MUTUAL_TLS, HISTORY_SERVER}
OPERATORS = {
    "plain": RaySettings(gates=GATES),
    "with sidecars": RaySettings(
        gates=GATES,
        head_sidecars=(container("log-shipper", "250m", "64Mi"),),
        worker_sidecars=(container("exporter", "100m", "32Mi"),),
    ),
    "without waiting": RaySettings(inject_wait_for_head=False, gates=GATES),
}


async def made(manifest: Json, operator: RaySettings) -> tuple[Json, Pods]:
    """The manifest as it was stored, and the pods that were made for it."""
    kind = {one.kind: one for one in (kinds.RAY_CLUSTER, kinds.RAY_JOB, kinds.RAY_SERVICE, kinds.RAY)}[manifest["kind"]]
    stage = Stage(operator)
    await stage.start()
    try:
        stored = await stage.client.create(kind, manifest, "default")
        await stage.settle()
        await stage.play(READY)
        await stage.settle()
        specs = [pod["spec"] for pod in stage.objects(kinds.POD)]
        specs += [job["spec"]["template"]["spec"] for job in stage.objects(kinds.JOB)]
        return stored, Counter(map(_asked, specs))
    finally:
        await stage.stop()


def _asked(spec: Json) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(pod_requests(spec).items()))


def by_wrapper(manifest: Json, operator: RaySettings) -> Pods:
    wrapper = typed({"spec": {"resources": {"GenericItems": [{"generictemplate": manifest}]}}}, AppWrapper)
    found = pod_sets(wrapper, defaults=Defaults(sidecars=operator.sidecars))
    return _counted((one.count, tuple(sorted(one.requests.items()))) for one in found)


def by_queue(stored: Json, operator: RaySettings) -> Pods:
    group_name = stored["apiVersion"].rpartition("/")[0]
    sets = BY_NAME[(group_name, stored["kind"])].pod_sets(stored)
    owner = {**{name: stored[name] for name in ("apiVersion", "kind")}, "name": "x", "uid": "u", "controller": True}
    workload = typed({"metadata": {"ownerReferences": [owner]}, "spec": {"podSets": sets}}, Workload)
    found = with_sidecars(workload, operator.sidecars).spec.pod_sets
    return _counted((one.count, _asked(one.template["spec"])) for one in found)


def _counted(pods: Any) -> Pods:
    total: Pods = Counter()
    for count, asked in pods:
        total[asked] += count
    return +total


OTHERWISE = (
    "init containers",
    "certificates that a pod waits for",
    "collectors of history",
    "workers smaller than the step that waits",
    "a submitter",
    "a Ray of text",
)


@pytest.mark.parametrize(
    "case, setup",
    [(case, "plain") for case in CASES]
    + [(case, setup) for case in OTHERWISE for setup in OPERATORS if setup != "plain"],
)
async def test_demand_is_what_the_operator_makes(case, setup):
    manifest, operator = CASES[case], OPERATORS[setup]
    stored, pods = await made(manifest, operator)
    assert pods.total() > 0
    assert by_wrapper(manifest, operator) == pods
    if stored["kind"] != "Ray":  # no queue holds one
        assert by_queue(stored, operator) == pods


def ray_manifests() -> dict[str, Json]:
    found: dict[str, Json] = {}
    for path in sorted(SAMPLES.rglob("*.yaml")):
        for text in path.read_text().split("\n---\n"):
            for one in _manifests(msgspec.yaml.decode(text)):
                if one["apiVersion"].startswith(("ray.io/", "ray.k8s.io/")) and one["kind"] != "RayCronJob":
                    made = {**one, "metadata": {**one["metadata"], "namespace": "default"}}
                    made["metadata"].setdefault("name", "sample")
                    found[f"{path.relative_to(SAMPLES)}:{made['metadata']['name']}"] = _started(made)
    return found


def _manifests(one: Any) -> list[Json]:
    """A manifest, or those that an AppWrapper wraps."""
    if not isinstance(one, dict) or "kind" not in one:
        return []
    spec = one.get("spec") or {}
    items = [item["generictemplate"] for item in (spec.get("resources") or {}).get("GenericItems") or ()]
    inner = items + [component["template"] for component in spec.get("components") or ()]
    return inner if one["kind"] == "AppWrapper" else [one]


def _started(manifest: Json) -> Json:
    """As a queue starts it, in the version that is stored."""
    spec = {name: value for name, value in manifest["spec"].items() if name != "suspend"}
    metadata = {name: value for name, value in manifest["metadata"].items() if name != "labels"}
    version = manifest["apiVersion"].replace("ray.io/v1alpha1", "ray.io/v1")
    return {**manifest, "apiVersion": version, "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("manifest", ray_manifests().values(), ids=ray_manifests())
async def test_samples_are_demanded_as_they_are_made(manifest):
    stored, pods = await made(manifest, RaySettings())
    assert pods.total() > 0
    assert by_wrapper(manifest, RaySettings()) == pods
    if stored["kind"] not in ("Ray", "RayService"):  # their clusters are what a queue holds
        assert by_queue(stored, RaySettings()) == pods


counts = st.integers(0, 3)
groups = st.builds(
    lambda name, replicas, least, more, content, rest: group(
        name, replicas, minReplicas=least, maxReplicas=least + more, **content, **rest
    ),
    st.sampled_from("abcdef"),
    counts,
    counts,
    counts,
    st.sampled_from([LARGE, TINY, WITH_INIT, {}]),
    st.fixed_dictionaries({}, optional={"numOfHosts": st.integers(1, 2), "suspend": st.booleans()}),
)
clusters = st.builds(
    lambda found, autoscaled: cluster_spec(
        *({**one, "suspend": bool(one.get("suspend")) and not autoscaled} for one in found),  # refused together
        enableInTreeAutoscaling=autoscaled,
    ),
    st.lists(groups, max_size=3, unique_by=lambda one: one["groupName"]),
    st.booleans(),
)
modes = st.sampled_from(["K8sJobMode", "SidecarMode", "HTTPMode"])
manifests = st.one_of(
    st.builds(lambda spec: {**ray_cluster(), "spec": spec}, clusters),
    st.builds(lambda spec, mode: ray_job(mode=mode, rayClusterSpec=spec), clusters, modes),
)


@settings(max_examples=20)
@given(manifest=manifests, operator=st.sampled_from([*OPERATORS.values()]))
def test_any_manifest_is_demanded_as_it_is_made(manifest, operator):
    stored, pods = asyncio.run(made(manifest, operator))
    assert pods.total() > 0
    assert by_wrapper(manifest, operator) == pods
    assert by_queue(stored, operator) == pods


@pytest.mark.parametrize("cpu, memory", [("50m", "64Mi"), ("1", "2Gi")])
async def test_a_head_asks_for_enough_to_empty_redis_after_it(cpu, memory):
    """The Job that empties a cluster's part of Redis runs where its head was."""
    head = {"template": {"spec": {"containers": [container("ray-head", cpu, memory)]}}}
    cluster = ray_cluster("demo", group(replicas=0), head=head, gcsFaultToleranceOptions={"redisAddress": "redis:6379"})
    stage = Stage(RaySettings())
    await stage.start()
    stored = await stage.client.create(kinds.RAY_CLUSTER, cluster, "default")
    await stage.settle()
    before = [pod_requests(pod["spec"]) for pod in stage.objects(kinds.POD)]
    await stage.client.delete(kinds.RAY_CLUSTER, "demo", "default")
    await stage.settle()
    after = [pod_requests(job["spec"]["template"]["spec"]) for job in stage.objects(kinds.JOB)]
    await stage.stop()
    assert len(before) == len(after) == 1
    larger = {name: max(amount, after[0][name]) for name, amount in before[0].items()}
    assert (
        by_wrapper(cluster, RaySettings())
        == by_queue(stored, RaySettings())
        == Counter([tuple(sorted(larger.items()))])
    )


async def test_a_queue_asks_for_no_resource_that_the_template_leaves_out():
    """A queue without quota for memory admits workers that ask for processors alone, as Kueue would."""
    template = {"spec": {"containers": [{"name": "ray-worker", "resources": {"requests": {"cpu": "50m"}}}]}}
    cluster = ray_cluster("demo", group(replicas=1, template=template))
    assert (("cpu", 200),) in by_queue(cluster, RaySettings())
    assert (("cpu", 200), ("memory", 256 * 2**20)) in by_wrapper(cluster, RaySettings())
