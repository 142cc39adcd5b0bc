"""`shoal import` on a dump and on a cluster in this process: what it says, records, stops and starts again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.cli import moving, taking_over
from shoal.controllers.planning import imports
from shoal.errors import ShoalError
from shoal.sdk import moving_in
from shoal.sdk.other_controllers import controller_of
from tests.cluster import Cluster, running
from tests.faults import proven
from tests.unit.appwrapper.build import app_wrapper, config_map


def object_of(api_version: str, kind: str, name: str, spec: Json, **more: Any) -> Json:
    metadata = {"name": name, "namespace": "lab", "uid": f"uid-{name}", **more.pop("metadata", {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec, **more}


def template(name: str) -> Json:
    return {"spec": {"containers": [{"name": name, "image": "rayproject/ray:2.60.0"}]}}


HEAD: Json = {"headGroupSpec": {"rayStartParams": {}, "template": template("head")}}
OWNER = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "t", "uid": "1", "controller": True}
DUMP = [
    object_of("ray.io/v1", "RayCluster", "plain", HEAD, status={"state": "ready"}),
    object_of("ray.io/v1", "RayCluster", "odd", {**HEAD, "headGroupSpecs": {}}, status={"state": "ready"}),
    object_of("ray.io/v1", "RayJob", "theirs", {"managedBy": "kueue.x-k8s.io/multikueue", "rayClusterSpec": HEAD}),
    object_of("kueue.x-k8s.io/v1beta2", "Workload", "torch", {}, metadata={"ownerReferences": [OWNER]}),
    object_of("workload.codeflare.dev/v1beta1", "AppWrapper", "old", {"resources": {}}, status={"state": "Running"}),
    object_of("v1", "ConfigMap", "other", {}),
]


def test_a_dump_is_judged_object_by_object(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": DUMP}))
    told = CliRunner().invoke(moving.command, ["--dump", str(path), "-o", "json"])
    assert told.exit_code == 0, told.output
    rows = {row["name"]: row for row in json.loads(told.stdout)["objects"]}
    assert sorted(rows) == ["odd", "old", "plain", "theirs", "torch"]
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "plain": "same", "odd": "differs", "theirs": "left alone", "torch": "left alone", "old": "differs",
    }  # fmt: skip
    assert "headGroupSpecs" in rows["odd"]["notes"][0]
    assert "PyTorchJob" in rows["torch"]["notes"][0]
    assert rows["old"]["needs_creator"] and not rows["plain"]["needs_creator"]
    table = CliRunner().invoke(moving.command, ["--dump", str(path)]).output
    assert "1 same, 2 differs, 2 left alone" in table and "--creator" in table


@pytest.mark.parametrize(
    "name, args, env, settings, unused",
    [
        (
            "kuberay-operator",
            ["--watch-namespace=a,b", "--reconcile-concurrency", "4", "--forced-cluster-upgrade", "--metrics-addr=:1"],
            {"ENABLE_INIT_CONTAINER_INJECTION": "false", "CLUSTER_DOMAIN": "lab.local"},
            {"ray.namespaces": "a,b", "ray.workers": "4", "ray.inject_wait_for_head": "false",
             "ray.cluster_domain": "lab.local"},
            ["--forced-cluster-upgrade"],
        ),
        (
            "mcad-controller",
            ["--v=4", "--preemption", "--quotaEnabled=true"],
            {"BACKOFFTIME": "30", "DISPATCHER_MODE": "false"},
            {"preemption": "true", "quota": "always", "backoff_seconds": "30"},
            [],
        ),
    ],
)  # fmt: skip
def test_flags_and_variables_of_the_others_have_names_here(
    name: str, args: list[str], env: dict[str, str], settings: dict[str, str], unused: list[str]
) -> None:
    container = {"name": "c", "args": args, "env": [{"name": key, "value": value} for key, value in env.items()]}
    spec = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    found = controller_of(object_of("apps/v1", "Deployment", name, spec))
    assert found is not None and found.settings == settings and found.unused == unused and found.replicas == 2


async def test_variables_and_files_from_config_maps_are_read(quiet: Cluster) -> None:
    """As the charts of MCAD and Kueue configure them."""
    text = "apiVersion: config.kueue.x-k8s.io/v1beta2\nclientConnection: {qps: 50}\nwaitForPodsReady: {timeout: 5m}\n"
    maps = {"mcad": {"DISPATCHER_MODE": "TRUE", "DISPATCHER_AGENT_CONFIGS": "a.conf:uncordon", "PREEMPTION": "true"},
            "kueue-manager-config": {"controller_manager_config.yaml": text}}  # fmt: skip
    for name, data in maps.items():
        await quiet.client.create(kinds.CONFIG_MAP, {"metadata": {"name": name}, "data": data}, "default")
    of_mcad = {"containers": [{"name": "c", "image": "x", "envFrom": [{"configMapRef": {"name": "mcad"}}]}]}
    volumes = [{"name": "config", "configMap": {"name": "kueue-manager-config"}}]
    of_kueue = {"containers": [{"name": "c", "image": "x", "args": ["--config=/f.yaml"]}], "volumes": volumes}
    for name, pod in (("mcad-controller", of_mcad), ("kueue-controller-manager", of_kueue)):
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": pod}
        spec = {"selector": {"matchLabels": labels}, "template": template}
        await quiet.client.create(kinds.DEPLOYMENT, {"metadata": {"name": name}, "spec": spec}, "default")
    _, found = await taking_over.look(quiet.client)
    mcad, kueue = sorted(found, key=lambda one: one.source, reverse=True)
    assert mcad.settings == {"preemption": "true"} and mcad.unused == []
    assert mcad.options == ["--dispatcher", "--agentconfigs=a.conf:uncordon"]
    assert kueue.settings == {"queues.pods_ready.timeout": "300"} and kueue.options[0] == "--kube-api-qps=50"


def test_other_deployments_are_none_of_them() -> None:
    spec = {"template": {"spec": {"containers": [{"name": "c", "image": "nginx"}]}}}
    assert controller_of(object_of("apps/v1", "Deployment", "web", spec)) is None


async def stand(cluster: Cluster) -> None:
    """A KubeRay with a webhook, and an AppWrapper of MCAD."""
    container = {"name": "operator", "image": "quay.io/kuberay/operator:v1.6.0"}
    labels = {"app": "operator"}
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
    }
    made = object_of("apps/v1", "Deployment", "kuberay-operator", spec)
    made["metadata"] = {"name": "kuberay-operator", "namespace": "default"}
    await cluster.client.create(kinds.DEPLOYMENT, made, "default")
    hook = {
        "name": "v.ray.io",
        "clientConfig": {"service": {"namespace": "default", "name": "webhook-service"}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "rules": [
            {"apiGroups": ["none.example"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nothings"]}
        ],
    }
    configuration = {
        "apiVersion": kinds.VALIDATING_WEBHOOK.api_version,
        "kind": kinds.VALIDATING_WEBHOOK.kind,
        "metadata": {"name": "kuberay"},
        "webhooks": [hook],
    }
    await cluster.client.create(kinds.VALIDATING_WEBHOOK, configuration)


async def replicas(cluster: Cluster) -> int:
    return int((await cluster.get(kinds.DEPLOYMENT, "kuberay-operator"))["spec"]["replicas"])


async def policy(cluster: Cluster) -> str:
    return str((await cluster.client.get(kinds.VALIDATING_WEBHOOK, "kuberay"))["webhooks"][0]["failurePolicy"])


def _forgets_what_was(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(taking_over, "_merged", lambda before, found: imports.StoppedParts())


@proven(without=_forgets_what_was)
async def test_f337_what_was_stopped_is_recorded_first_and_started_again_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F337: `shoal import --take` dies after it stopped the other controller, and is called again, when its Deployment
    has no replicas any more. Holds: the record has what was before, and --give-back restores exactly that."""
    async with running() as cluster:
        await stand(cluster)
        await cluster.create(kinds.APP_WRAPPER, app_wrapper("old", config_map("old")))
        rows, controllers = await taking_over.look(cluster.client)
        assert [one.name for one in controllers] == ["kuberay-operator"]

        async def dies(*anything: Any) -> None:
            raise ShoalError("the machine went away")

        with monkeypatch.context() as patch, pytest.raises(ShoalError, match="went away"):
            patch.setattr(taking_over, "_until_stopped", dies)
            await taking_over.take(cluster.client, "moved", rows, controllers, "ann,team")
        rows, controllers = await taking_over.look(cluster.client)
        assert controllers[0].replicas == 0 == await replicas(cluster)
        await taking_over.take(cluster.client, "moved", rows, controllers, "ann,team")
        assert await policy(cluster) == "Ignore"
        record = await cluster.client.get(kinds.CONFIG_MAP, imports.RECORD, "moved")
        (wrapper,) = (row for row in rows if row.kind == "AppWrapper")
        assert imports.is_imported(record, wrapper.uid)
        said = await taking_over.give_back(cluster.client, "moved")
        assert (await replicas(cluster), await policy(cluster)) == (2, "Fail"), said
        with pytest.raises(ShoalError, match="no import record"):
            await taking_over.give_back(cluster.client, "moved")


def test_rows_come_in_the_order_in_which_things_depend_on_each_other() -> None:
    assert [row.kind for row in moving_in.rows(reversed(DUMP))][:2] == ["RayCluster", "RayCluster"]
    assert moving_in.row_of({"apiVersion": "ray.io/v1", "kind": "RayJob"}) is None
