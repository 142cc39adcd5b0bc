"""Bad input: refused before it is stored where somebody can, told in status and event where not, and never for good."""

from __future__ import annotations

import msgspec
import pytest

from shoal.api import kinds
from shoal.cli.cluster import judges
from shoal.kube.errors import Invalid
from tests.cluster import running
from tests.unit.ray.builders import group, ray, ray_cluster, ray_job


def without_cpus():
    bare = group()
    del bare["template"]["spec"]["containers"][0]["resources"]
    return ray_cluster("demo", bare, enableInTreeAutoscaling=True)


def in_namespace(template_namespace: str):
    moved = group()
    moved["template"]["metadata"] = {"namespace": template_namespace}
    return ray_cluster("demo", moved)


BAD = {
    "a name with a dot": (kinds.RAY_CLUSTER, ray_cluster("de.mo"), "metadata.name", None),
    "a name that is too long": (kinds.RAY_CLUSTER, ray_cluster("d" * 54), "use at most 53", None),
    "a job's name that is too long": (kinds.RAY_JOB, ray_job("d" * 48), "use at most 47", None),
    "duplicate groups": (
        kinds.RAY_CLUSTER,
        ray_cluster("demo", group("a"), group("a")),
        "used twice",
        {"workerGroupSpecs": [group("a")]},
    ),
    "bounds the wrong way round": (
        kinds.RAY_CLUSTER,
        ray_cluster("demo", group(minReplicas=3, maxReplicas=1)),
        "minReplicas 3 is above maxReplicas 1",
        {"workerGroupSpecs": [group(minReplicas=1, maxReplicas=3)]},
    ),
    "a runtime environment that is text": (
        kinds.RAY_JOB,
        ray_job(runtimeEnvYAML="pip install"),
        "spec.runtimeEnvYAML, line 1: must be a mapping",
        {"runtimeEnvYAML": "pip: [numpy]"},
    ),
    "a runtime environment that is no YAML": (
        kinds.RAY_JOB,
        ray_job(runtimeEnvYAML="a: [1"),
        "spec.runtimeEnvYAML, line 1: did not find expected",
        {"runtimeEnvYAML": ""},
    ),
    "no entrypoint": (kinds.RAY_JOB, ray_job(entrypoint=""), "entrypoint is empty", {"entrypoint": "python x.py"}),
    "a configuration for another provider": (
        kinds.RAY,
        ray(configuration="min_workers: 0\nprovider:\n  type: aws\n"),
        "line 3: provider.type 'aws' is not kubernetes",
        {"configuration": "min_workers: 0\n"},
    ),
    "an autoscaler that could not start": (
        kinds.RAY_CLUSTER,
        without_cpus(),
        "worker group 'workers': Ray's autoscaler needs to know its CPUs",
        {"workerGroupSpecs": [group()]},
    ),
    "TLS": (
        kinds.RAY_CLUSTER,
        ray_cluster(tlsOptions={"enabled": True}),
        "spec.tlsOptions needs the feature gate RayClusterMTLS",
        {"tlsOptions": None},
    ),
    "history collection": (
        kinds.RAY_CLUSTER,
        ray_cluster(historyServerOptions={"collectorOptions": {"image": "x"}}),
        "spec.historyServerOptions needs the feature gate RayClusterHistoryServer",
        {"historyServerOptions": None},
    ),
    "a network policy": (
        kinds.RAY_CLUSTER,
        ray_cluster(networkPolicy={}),
        "spec.networkPolicy needs the feature gate RayClusterNetworkPolicy",
        {"networkPolicy": None},
    ),
    "a kind of Service that there is not": (
        kinds.RAY_CLUSTER,
        ray_cluster(headGroupSpec={**ray_cluster()["spec"]["headGroupSpec"], "serviceType": "Internal"}),
        "spec.headGroupSpec.serviceType 'Internal': use ClusterIP",
        {"headGroupSpec": {"serviceType": None}},
    ),
    "a port that is none": (
        kinds.RAY_CLUSTER,
        ray_cluster(headGroupSpec={**ray_cluster()["spec"]["headGroupSpec"], "rayStartParams": {"port": "gcs"}}),
        "spec.headGroupSpec.rayStartParams.port 'gcs' is not a port",
        {"headGroupSpec": {"rayStartParams": {"port": "6380"}}},
    ),
    "a submitter that may fail less than never": (
        kinds.RAY_JOB,
        ray_job(submitterConfig={"backoffLimit": -1}),
        "spec.submitterConfig.backoffLimit must not be negative",
        {"submitterConfig": None},
    ),
    "in-place resizing": (
        kinds.RAY_CLUSTER,
        ray_cluster(metadata={"annotations": {"ray.io/ippr": "{}"}}),
        "annotation ray.io/ippr",
        None,
    ),
}


@pytest.fixture
async def guarded():
    async with running(with_builtin=False) as cluster:
        cluster.server.admission.judges.update(judges(cluster.client))
        yield cluster


async def test_the_embedded_server_refuses_bad_input_with_what_to_change(guarded):
    for kind, body, told, _ in BAD.values():
        with pytest.raises(Invalid) as refused:
            await guarded.client.create(kind, body, "default")
        assert told in str(refused.value)


async def test_the_embedded_server_warns_of_a_template_of_another_namespace(guarded):
    answer = await guarded.client.request(
        "POST", kinds.RAY_CLUSTER.path("default"), body=msgspec.json.encode(in_namespace("elsewhere"))
    )
    assert "which is ignored" in answer.headers["warning"]


async def test_an_unknown_strategy_is_refused_by_the_schema_already(guarded):
    with pytest.raises(Invalid, match="Rolling"):
        await guarded.client.create(kinds.RAY_CLUSTER, ray_cluster(upgradeStrategy={"type": "Rolling"}), "default")


@pytest.mark.parametrize("kind, body, told, fix", BAD.values(), ids=BAD)
async def test_what_got_in_is_told_and_its_correction_recovers(stage, kind, body, told, fix):
    await stage.client.create(kind, body, "default")
    await stage.settle()
    name = body["metadata"]["name"]
    found = await stage.client.get(kind, name, "default")
    words = found["status"].get("message") or "; ".join(one.get("message", "") for one in found["status"]["conditions"])
    assert told in words
    assert any(told in event["message"] for event in stage.objects(kinds.EVENT) if event["type"] == "Warning")
    assert stage.objects(kinds.POD) == []
    if fix is None:
        return
    await stage.client.patch(kind, name, "default", {"spec": fix})
    await stage.settle()
    assert stage.objects(kinds.POD), "it goes on once it is corrected"


async def test_a_template_of_another_namespace_works_and_is_told(stage):
    await stage.client.create(kinds.RAY_CLUSTER, in_namespace("elsewhere"), "default")
    await stage.settle()
    assert {pod["metadata"]["namespace"] for pod in stage.objects(kinds.POD)} == {"default"}
    assert any("'elsewhere', which is ignored" in event["message"] for event in stage.objects(kinds.EVENT))
