"""`shoal install --visibility` at a hub that is a kube-apiserver: logs and ports of what runs in a member; a minute."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from shoal.api import kinds
from shoal.controllers.appwrapper import AppWrapperSettings
from tests.controlplane import build
from tests.controlplane.plane import ControlPlane
from tests.integration import test_install
from tests.integration.clusters.test_ports import answer_of, dashboard
from tests.integration.clusters.test_real_server import embedded, real
from tests.integration.conftest import full_control_plane
from tests.integration.test_install import controller, health_port, installed, shoal, until, webhook_url
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, dispatched
from tests.unit.clusters.build import is_true
from tests.unit.clusters.test_reading import Told, job, run
from tests.unit.queues.build import pods_of

__all__ = ["controller", "full_control_plane", "health_port", "installed", "webhook_url"]
OPTIONS = (
    "--visibility",
    "--only=appwrapper,queues,ray,clusters",
    "--set=clusters.app_wrappers=everywhere",
    "--set=clusters.app_wrapper_namespaces=any",
    "--set=clusters.probe_seconds=1",
)
PROXY = "apis/members.shoal.dev/v1alpha1/clusters/a/proxy"


def may(plane: ControlPlane, question: tuple[str, ...]) -> bool:
    try:
        return plane.kubectl(*question).strip() == "yes"
    except RuntimeError:  # a no is an error of kubectl's
        return False


@pytest.fixture
def as_hub() -> Iterator[None]:
    test_install.MORE_OPTIONS.extend(OPTIONS)
    yield
    test_install.MORE_OPTIONS.clear()


@pytest.mark.usefixtures("as_hub", "controller")
@pytest.mark.not_at_rest("the hub has no nodes; what is where is asserted")
async def test_logs_and_ports_of_a_member_are_reached_through_a_kube_apiserver(
    installed: ControlPlane, tmp_path: Path
) -> None:
    plane = installed
    there_kubectl = [
        str(build.binaries("kubectl")["kubectl"]),
        "--kubeconfig",
        str(plane.kubeconfig),
        "--server",
        f"{plane.server}/{PROXY}",
    ]

    async def kubectl(*arguments: str) -> str:
        done = await asyncio.to_thread(
            subprocess.run, [*there_kubectl, *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout + done.stderr

    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(real(plane))
        there, credential = await stack.enter_async_context(embedded(tmp_path))
        await stack.enter_async_context(dashboard(there))
        there.server.set_log_source(Told().log)
        await there.add_node("node-1", cpu="4", memory="64Gi")
        there.start(planned(there.client, AppWrapperSettings(trust_unstamped=True)).run())
        await asyncio.to_thread(shoal, plane, "cluster", "add", "a", "--from", str(credential), "--check", "everywhere")
        await hub.until(kinds.MULTIKUEUE_CLUSTER, "a", is_true("Active"))
        await hub.create(kinds.APP_WRAPPER, app_wrapper("train", job("train")))
        await hub.until(kinds.APP_WRAPPER, "train", dispatched)
        (pod,) = await pods_of(there, "train", 1)
        await run(there, pod)
        name, said = pod["metadata"]["name"], f"hello from {pod['metadata']['name']}\n"
        await asyncio.to_thread(
            plane.kubectl, "wait", "--for=condition=Available", "apiservice/v1alpha1.members.shoal.dev", "--timeout=90s"
        )
        assert await kubectl("logs", name) == said
        assert await kubectl("logs", name, "--follow") == said
        assert name in await kubectl("get", "pods")
        assert await asyncio.to_thread(shoal, plane, "logs", "train") == said
        assert "forbidden" in (await kubectl("logs", name, "--as=eve")).lower()
        assert "forbidden" in (await kubectl("get", "nodes")).lower()
        rules = [{"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get"]}]
        role = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "logs"},
            "rules": rules,
        }
        await asyncio.to_thread(plane.kubectl, "create", "-n=default", "-f", "-", stdin=json.dumps(role))
        await asyncio.to_thread(plane.kubectl, "create", "rolebinding", "logs", "--role=logs", "--user=eve")
        question = ("auth", "can-i", "get", "pods", "--subresource=log", "-n=default", "--as=eve")
        await asyncio.to_thread(until, lambda: may(plane, question))  # it learns of a binding by its own watch
        assert await kubectl("logs", name, "--as=eve") == said
        assert await answer_of(there_kubectl, name) == "none 300000"
        assert "eve may not create pods/portforward" in await answer_of(there_kubectl, name, "--as=eve")
        await hub.client.delete(kinds.APP_WRAPPER, "train", "default")
        await hub.until_gone(kinds.APP_WRAPPER, "train")
        await asyncio.to_thread(shoal, plane, "cluster", "remove", "a")
        await asyncio.to_thread(plane.kubectl, "delete", "rolebinding/logs", "role/logs")
