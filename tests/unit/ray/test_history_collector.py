"""`historyServerOptions`: a collector beside every Ray node, told where to put logs and events."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.controllers.ray.pods import builder
from shoal.controllers.ray.settings import GATES_ON, HISTORY_SERVER, RaySettings
from shoal.controllers.ray.validation.cluster_rules import problems_of_cluster
from tests.unit.ray.builders import container, group, ray_cluster

ON = RaySettings(gates=GATES_ON | {HISTORY_SERVER})
BACKEND = {"name": "STORAGE_BACKEND", "value": "S3"}
REGION = {"name": "S3_REGION", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}


def collected(*env: dict[str, Any], **more: Any) -> dict[str, Any]:
    options = {"image": "quay.io/kuberay/collector:v1", "env": list(env), **more}
    return ray_cluster("demo", historyServerOptions={"collectorOptions": options})


def variables(one: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value") for entry in one["env"]}


def test_head_and_workers_have_a_collector_and_send_it_their_events() -> None:
    cluster = collected(BACKEND, REGION)
    cluster["metadata"]["labels"] = {"ray.io/originated-from-crd": "RayJob", "ray.io/originated-from-cr-name": "train"}
    head = builder.head_pod(cluster, ON)["spec"]
    worker = builder.worker_pod(cluster, cluster["spec"]["workerGroupSpecs"][0], ON)["spec"]
    for spec, role in ((head, "Head"), (worker, "Worker")):
        ray, collector = spec["containers"]
        assert collector["name"] == "ray-history-collector"
        told = variables(collector)
        assert told["RAY_ROLE"] == role and told["OWNER_KIND"] == "RayJob" and told["OWNER_NAME"] == "train"
        assert told["STORAGE_BACKEND"] == "S3" and told["EVENTS_PORT"] == "8084"
        sent = variables(ray)["RAY_DASHBOARD_AGGREGATOR_AGENT_EVENTS_EXPORT_ADDR"]
        assert sent == "http://localhost:8084/v1/events"
        mounts = [{one["mountPath"]: one["name"] for one in part["volumeMounts"]} for part in (ray, collector)]
        assert mounts[0]["/tmp/ray"] == mounts[1]["/tmp/ray"] == "ray-logs"
    assert variables(head["containers"][1])["RAY_DASHBOARD_ADDRESS"] == "http://localhost:8265"
    assert "RAY_DASHBOARD_ADDRESS" not in variables(worker["containers"][1])


def test_without_the_gate_nothing_is_added() -> None:
    assert len(builder.head_pod(collected(BACKEND, REGION), RaySettings())["spec"]["containers"]) == 1


def taken() -> dict[str, Any]:
    template = {"spec": {"containers": [container("ray-worker"), container("ray-history-collector")]}}
    options = {"collectorOptions": {"image": "x", "env": [BACKEND, REGION]}}
    return ray_cluster("demo", group("gpu", template=template), historyServerOptions=options)


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (collected(BACKEND, REGION), ""),
        (collected({"name": "STORAGE_BACKEND", "value": "LocalTest"}), ""),
        (ray_cluster(historyServerOptions={}), "needs collectorOptions"),
        (collected(BACKEND, REGION, image=""), "needs an image"),
        (collected(), "needs STORAGE_BACKEND"),
        (collected(BACKEND), "needs S3_REGION for STORAGE_BACKEND S3"),
        (collected({"name": "STORAGE_BACKEND", "value": "gcs"}), "needs GCS_BUCKET"),
        (collected({"name": "STORAGE_BACKEND", "value": "AliyunOSS"}), "needs OSS_BUCKET"),
        (collected({"name": "STORAGE_BACKEND", "value": "AzureBlob"}), "AZURE_STORAGE_CONNECTION_STRING or"),
        (
            collected(
                {"name": "STORAGE_BACKEND", "value": "AzureBlob"},
                {"name": "AZURE_STORAGE_AUTH_MODE", "value": "workload_identity"},
            ),
            "needs AZURE_STORAGE_ACCOUNT_URL",
        ),
        (collected(BACKEND, REGION, {"name": "POD_IP", "value": "x"}), "sets POD_IP, which the operator sets"),
        (collected(BACKEND, REGION, resources={"limits": {"cpu": "many"}}), "resources.limits.cpu"),
        (taken(), "worker group 'gpu' has a container 'ray-history-collector'"),
    ],
)
def test_what_a_collector_would_fail_of_is_refused(cluster: dict[str, Any], said: str) -> None:
    problems = problems_of_cluster(cluster, ON)
    assert bool(problems) == bool(said) and said in "".join(problems)
