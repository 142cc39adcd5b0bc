"""A waiting AppWrapper that would fit if nodes of a pool came: one request, then the whole gang on the new nodes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.machine import Machine
from tests.integration.local.conftest import ON_FAR, History, apply, gpu_pod, revision, until

pytestmark = pytest.mark.usefixtures("at_zero")


def wrapper(name: str, pods: int) -> dict[str, Any]:
    items = [{"replicas": 1, "generictemplate": gpu_pod(f"{name}-{index}")} for index in range(pods)]
    return {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": name},
        "spec": {"resources": {"GenericItems": items}},
    }


def state(machine: Machine, name: str, wanted: str) -> None:
    machine.wait(f"appwrapper/{name}", f"jsonpath={{.status.state}}={wanted}", seconds=60)


def test_a_gang_that_would_fit_on_new_nodes_asks_for_them_once_and_starts_whole(machine: Machine) -> None:
    stories = {kind: History(machine, kind) for kind in ("appwrappers", "provisioningrequests", "pods")}
    apply(machine, wrapper("train", 3))
    state(machine, "train", "Running")
    machine.wait("pods", "condition=Ready", "--all", seconds=60)
    where = sorted(pod["spec"]["nodeName"] for pod in machine.get("pods")["items"])
    assert where == ["gpu-0", "gpu-1", "gpu-2"]
    until(lambda: machine.names("provisioningrequests,podtemplates") == [])
    uid = machine.get("appwrapper", "train")["metadata"]["uid"]
    requests = stories["provisioningrequests"].seen()
    assert {one["metadata"]["name"] for one in requests} == {f"shoal-{uid}-1"}
    assert requests[0]["metadata"]["ownerReferences"][0]["uid"] == uid
    assert sum(one["count"] for one in requests[0]["spec"]["podSets"]) == 3
    said = "waits for 3 node(s) of pool gpu to come"
    waiting = [one for one in stories["appwrappers"].seen() if said in (one.get("status") or {}).get("message", "")]
    assert waiting and revision(waiting[-1]) < revision(stories["pods"].seen()[0])


def test_two_gangs_never_count_on_the_same_nodes(machine: Machine) -> None:
    """The pool can add four: the first asks for three, the second has to wait until the first has ended."""
    apply(machine, wrapper("first", 3), wrapper("second", 2))
    state(machine, "first", "Running")
    assert machine.get("appwrapper", "second")["status"]["state"] == "Pending"
    assert len(machine.names("nodes")) == 4
    machine.kubectl("delete", "appwrapper", "first")
    state(machine, "second", "Running")
    machine.wait("pods", "condition=Ready", "--all", seconds=60)


def test_a_deleted_gang_takes_its_request_along(machine: Machine) -> None:
    brief = wrapper("brief", 1)
    brief["spec"]["resources"]["GenericItems"][0]["generictemplate"]["spec"].update(ON_FAR)
    apply(machine, brief)
    until(lambda: machine.names("provisioningrequests"))
    machine.kubectl("delete", "appwrapper", "brief")
    until(lambda: machine.names("provisioningrequests,podtemplates") == [])


def test_a_wrapped_ray_cluster_gets_its_head_on_what_is_there_and_its_workers_on_new_nodes(machine: Machine) -> None:
    def group(role: str, **extra: str) -> dict[str, Any]:
        amounts = {"cpu": "1", "memory": "2Gi", **extra}
        container = {
            "name": role,
            "image": "rayproject/ray:2.60.0",
            "resources": {"requests": amounts, "limits": amounts},
        }
        tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}] if extra else []
        return {"rayStartParams": {}, "template": {"spec": {"containers": [container], "tolerations": tolerations}}}

    workers = {"groupName": "gpus", "replicas": 2, "minReplicas": 2, "maxReplicas": 2}
    cluster = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "fleet"},
        "spec": {
            "rayVersion": "2.60.0",
            "headGroupSpec": group("ray-head"),
            "workerGroupSpecs": [{**workers, **group("ray-worker", **{"nvidia.com/gpu": "1"})}],
        },
    }
    body = wrapper("fleet", 0)
    body["spec"]["resources"]["GenericItems"] = [{"replicas": 1, "generictemplate": cluster}]
    apply(machine, body)
    state(machine, "fleet", "Running")
    machine.wait("raycluster/fleet", "jsonpath={.status.state}=ready", seconds=60)
    where = {
        pod["metadata"]["labels"]["ray.io/node-type"]: pod["spec"]["nodeName"] for pod in machine.get("pods")["items"]
    }
    assert where["head"] == "cpu-0" and where["worker"].startswith("gpu-")
    until(lambda: machine.names("provisioningrequests,podtemplates") == [])
