"""A real control plane with one node of the tutorial's size, our CRDs and our controllers in this process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from shoal.api import kinds
from shoal.api.crds import load_crds
from shoal.controllers import appwrapper, ray
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.errors import NotFound
from shoal.kube.history import History, RecordingTransport
from shoal.kube.kubeconfig import load
from tests.checker import assert_holds
from tests.cluster import RemoteCluster
from tests.controlplane.plane import ControlPlane, await_kinds
from tests.integration.conftest import judged
from tests.resting import rules_of

NODE = "kind-control-plane"


@pytest.fixture(scope="package")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One simulated node: 8 cpu, 8118372Ki, of which system pods hold 3050m and 2918400Ki."""
    folder = tmp_path_factory.mktemp("plane") / "state"
    fresh = ControlPlane(folder, controllers=True, scheduler=True, kwok=True, audit=True)
    with contextmanager(judged)(fresh) as started:
        started.add_node(NODE, cpu="8", memory="8118372Ki")
        load_of_the_system = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "base-load", "namespace": "kube-system"},
            "spec": {
                "nodeName": NODE,
                "containers": [
                    {
                        "name": "main",
                        "image": "none",
                        "resources": {
                            "requests": {"cpu": "3050m", "memory": "2918400Ki"},
                            "limits": {"cpu": "3050m", "memory": "3020800Ki"},
                        },
                    }
                ],
            },
        }
        started.kubectl("create", "-f", "-", stdin=json.dumps(load_of_the_system))
        crds = {"apiVersion": "v1", "kind": "List", "items": load_crds()}
        started.kubectl("create", "-f", "-", stdin=json.dumps(crds))
        await_kinds(started.kubectl)
        started.restart_controllers()
        until_the_collector_works(started)
        yield started


def until_the_collector_works(plane: ControlPlane) -> None:
    """A real garbage collector needs a while to begin; here it collects what it must know our kinds for."""
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "warm", "namespace": "default"}}
    container = {"name": "head", "image": "none"}
    owner["spec"] = {"headGroupSpec": {"rayStartParams": {}, "template": {"spec": {"containers": [container]}}}}
    made = json.loads(plane.kubectl("create", "-o", "json", "-f", "-", stdin=json.dumps(owner)))
    reference = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "warm", "uid": made["metadata"]["uid"]}
    owned = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "warm", "ownerReferences": [reference]}}
    plane.kubectl("create", "-n", "default", "-f", "-", stdin=json.dumps(owned))
    plane.kubectl("delete", "raycluster", "warm", "-n", "default")
    plane.kubectl("wait", "--for=delete", "configmap/warm", "-n", "default", "--timeout=90s")


@pytest.fixture
async def remote(plane: ControlPlane) -> AsyncIterator[RemoteCluster]:
    """Both controllers run, every request of theirs is recorded and judged; what a test made is removed afterwards."""
    history = History()
    history.note("company", "", SystemClock())  # the test itself, and all of Kubernetes
    own, transport = load(plane.kubeconfig), load(plane.kubeconfig)
    cluster = RemoteCluster(Client(transport))
    watched = Client(RecordingTransport(own, history, replica="controller"))
    settings = appwrapper.AppWrapperSettings(trust_unstamped=True)
    cluster.start(appwrapper.run(watched, settings))
    cluster.start(ray.run(Client(own), ray.RaySettings()))
    cluster.rules = rules_of(settings, ray=True)
    try:
        yield cluster
        await cluster.hold_at_rest()
    finally:
        for kind in (kinds.APP_WRAPPER, kinds.APP_WRAPPER_LEGACY, kinds.QUOTA_SUBTREE):
            for obj in await cluster.client.list(kind, "default"):
                try:
                    await cluster.client.delete(kind, obj["metadata"]["name"], "default")
                    await cluster.until_gone(kind, obj["metadata"]["name"])
                except NotFound:
                    continue
        for pod in await cluster.client.list(kinds.POD, "default"):
            await cluster.until_gone(kinds.POD, pod["metadata"]["name"])
        await cluster.stop()
        await own.close()
        await transport.close()
    assert_holds(history.entries)
