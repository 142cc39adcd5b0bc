"""kubectl with the built-in controllers at work: rollouts, cascades, nodes that are drained, proxies and copies."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from shoal.api.kinds import ENDPOINT_SLICE, NODE, POD
from shoal.api.meta import Json
from shoal.kube.errors import ApiError
from shoal.local import builtin
from shoal.local.apiserver.streams.terminals import ExecOptions
from tests.integration.apiserver.conftest import Embedded
from tests.integration.apiserver.test_kubectl import DEPLOYMENT, Running
from tests.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("kubectl_present")


@pytest.fixture
async def run(embedded: Embedded) -> AsyncIterator[Embedded]:
    """The server with its controllers, and a node whose pods come up as soon as they are there."""
    await embedded.client.create(NODE, {"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "8", "pods": "99"}}})

    async def kubelet() -> None:
        async for event in embedded.client.watch(POD, None, send_initial_events=True):
            if event.type in ("ADDED", "MODIFIED"):
                with contextlib.suppress(ApiError):  # it went, or changed, meanwhile
                    await attend(json.loads(bytes(event.object)))

    async def attend(pod: Json) -> None:
        where = pod["metadata"]["name"], pod["metadata"]["namespace"]
        if pod["metadata"].get("deletionTimestamp"):
            await embedded.client.delete(POD, *where, grace_seconds=0)
        elif not pod["spec"].get("nodeName"):
            binding = {"metadata": {"name": where[0]}, "target": {"kind": "Node", "name": "n1"}}
            path = f"{POD.path(where[1], where[0])}/binding"
            await embedded.client.request("POST", path, body=json.dumps(binding).encode())
        elif pod["status"]["phase"] == "Pending":
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2024-01-01T00:00:00Z"}
            status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [ready]}
            await embedded.client.patch(POD, *where, {"status": status}, subresource="status")

    tasks = [asyncio.ensure_future(builtin.run_all(embedded.client)), asyncio.ensure_future(kubelet())]
    yield embedded
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_deployment_rolls_forward_and_back(run: Embedded) -> None:
    kubectl = run.kubectl
    await kubectl("apply", "-f", "-", input=DEPLOYMENT)
    assert "successfully rolled out" in await kubectl("rollout", "status", "deploy/web", "--timeout=60s")
    await kubectl("set", "image", "deploy/web", "main=two")
    assert "successfully rolled out" in await kubectl("rollout", "status", "deploy/web", "--timeout=60s")
    assert "REVISION" in (history := await kubectl("rollout", "history", "deploy/web")) and "2" in history
    await kubectl("rollout", "undo", "deploy/web")
    assert "successfully rolled out" in await kubectl("rollout", "status", "deploy/web", "--timeout=60s")
    assert await kubectl("get", "deploy", "web", "-o", "jsonpath={.spec.template.spec.containers[0].image}") == "none"
    assert "restarted" in await kubectl("rollout", "restart", "deploy/web")
    await kubectl("rollout", "status", "deploy/web", "--timeout=60s")
    header, row = (await kubectl("get", "deploy", "web")).splitlines()
    assert header.split() == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"] and row.split()[1] == "2/2"
    assert "exposed" in await kubectl("expose", "deploy", "web", "--port=80")
    async with asyncio.timeout(PATIENCE):
        async for event in run.client.watch(ENDPOINT_SLICE, "default", send_initial_events=True):
            if event.type == "ADDED":
                break
    assert "web" in await kubectl("get", "endpointslices")
    told = await kubectl("describe", "deploy", "web")
    assert "2 desired | 2 updated | 2 total | 2 available" in told and "NewReplicaSetAvailable" in told


async def test_deletion_cascades_as_asked(run: Embedded) -> None:
    kubectl = run.kubectl
    for policy, left in (("background", False), ("foreground", False), ("orphan", True)):
        await kubectl("apply", "-f", "-", input=DEPLOYMENT)
        await kubectl("rollout", "status", "deploy/web", "--timeout=60s")
        assert "deleted" in await kubectl("delete", "deploy", "web", f"--cascade={policy}", "--wait")
        if left:
            assert "replicaset" in await kubectl("get", "rs", "-l", "app=web", "-o", "name")
        else:
            await kubectl("wait", "--for=delete", "pod", "-l", "app=web", "--timeout=60s")
            assert await kubectl("get", "pods", "-l", "app=web", "-o", "name") == ""
    await kubectl("create", "job", "once", "--image=none")
    await kubectl("wait", "--for=jsonpath={.status.active}=1", "job/once", "--timeout=60s")
    await kubectl("delete", "job", "once")
    await kubectl("wait", "--for=delete", "pod", "-l", "job-name=once", "--timeout=60s")
    await kubectl("create", "namespace", "gone")
    await kubectl("create", "configmap", "inside", "-n", "gone")
    assert "deleted" in await kubectl("delete", "namespace", "gone", "--wait")
    assert "not found" in await kubectl("get", "namespace", "gone", check=False)


async def test_nodes_quotas_and_replacement(run: Embedded) -> None:
    kubectl = run.kubectl
    await kubectl("apply", "-f", "-", input=DEPLOYMENT)
    await kubectl("rollout", "status", "deploy/web", "--timeout=60s")
    assert "tainted" in await kubectl("taint", "nodes", "n1", "maintenance=soon:NoSchedule")
    assert "cordoned" in await kubectl("cordon", "n1")
    assert "SchedulingDisabled" in await kubectl("get", "nodes")
    await kubectl("scale", "deploy", "web", "--replicas=0")
    await kubectl("wait", "--for=delete", "pod", "-l", "app=web", "--timeout=60s")
    await kubectl("run", "lonely", "--image=none", "--overrides", '{"spec":{"nodeName":"n1"}}')
    assert "drained" in await kubectl("drain", "n1", "--force", "--ignore-daemonsets", "--timeout=60s")
    assert "not found" in await kubectl("get", "pod", "lonely", check=False)
    assert "uncordoned" in await kubectl("uncordon", "n1")
    await kubectl("create", "namespace", "tight")
    await kubectl("create", "quota", "one", "--hard=pods=1", "-n", "tight")
    await kubectl("run", "first", "--image=none", "-n", "tight")
    assert "exceeded quota" in await kubectl("run", "second", "--image=none", "-n", "tight", check=False)
    await kubectl("wait", "--for=jsonpath={.status.used.pods}=1", "quota/one", "-n", "tight", "--timeout=60s")
    assert "1     1" in await kubectl("describe", "quota", "one", "-n", "tight")
    saved = json.loads(await kubectl("create", "configmap", "r", "--from-literal=a=1", "-o", "json"))
    saved["data"]["a"] = "2"
    assert "replaced" in await kubectl("replace", "-f", "-", input=json.dumps(saved))
    assert "Conflict" in await kubectl("replace", "-f", "-", input=json.dumps(saved), check=False)
    assert "is running at" in await kubectl("cluster-info")
    assert "secret/s created" in await kubectl("create", "secret", "generic", "s", "--from-literal=a=b")
    assert "RECURSE" not in (all_fields := await kubectl("explain", "job.spec", "--recursive"))
    assert "backoffLimit" in all_fields and "restartPolicy" in all_fields


async def test_proxy_and_copy(run: Embedded, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *("kubectl", "--kubeconfig", str(run.kubeconfig), "proxy", "--port=0"), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode()
        url = f"http://127.0.0.1:{line.rsplit(':', 1)[1].strip()}"
        async with aiohttp.ClientSession() as session, session.get(f"{url}/api/v1/namespaces/default") as answer:
            assert answer.status == 200 and (await answer.json())["metadata"]["name"] == "default"
    finally:
        process.kill()
        await process.wait()

    async def start(pod: Json, options: ExecOptions) -> Running:
        pipe = asyncio.subprocess.PIPE
        return Running(await asyncio.create_subprocess_exec(*options.command, stdin=pipe, stdout=pipe, stderr=pipe))

    run.server.set_exec(start)
    await run.kubectl("run", "p", "--image=none")
    await run.kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=60s")
    (tmp_path / "there").mkdir()
    (run.folder / "letter").write_text("hello\n")
    await run.kubectl("cp", "letter", f"p:{tmp_path}/there/letter")
    assert (tmp_path / "there" / "letter").read_text() == "hello\n"
    await run.kubectl("cp", f"p:{tmp_path}/there/letter", "back")
    assert (run.folder / "back").read_text() == "hello\n"
