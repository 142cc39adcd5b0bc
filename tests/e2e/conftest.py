"""A whole one-machine cluster with real Ray, one per test, in each sandbox that this machine allows."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shoal.api.kinds import NODE, POD, RAY_CLUSTER
from shoal.api.meta import Json
from shoal.cli.cluster import LocalCluster
from shoal.kube.errors import NotFound
from shoal.local import machine
from shoal.local.home import Home
from shoal.local.nodes.agent import NodeShape
from shoal.local.nodes.runtime.shim import kernel
from shoal.local.settings import LocalSettings
from tests.checker.at_rest import Rules
from tests.e2e import invariants
from tests.e2e.machine import judge
from tests.patience import PATIENCE
from tests.resting import hold_remote

READY_SECONDS = 300.0

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts what runs in its background so
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else programs that a test starts ignore Ctrl-C, too


class Whole:
    """A running cluster, and the few things that tests do with it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.client = cluster.client

    async def ray_cluster(self, name: str, workers: int, hook: bool = False) -> None:
        lifecycle = {"lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", "ray stop"]}}}} if hook else {}

        def container(role: str, memory: str) -> Json:
            size = {"cpu": "1", "memory": memory}
            return {
                "name": role,
                "image": "rayproject/ray:2.60.0",
                "resources": {"limits": size, "requests": size},
                **lifecycle,
            }

        groups = (
            [
                {
                    "groupName": "small",
                    "replicas": workers,
                    "minReplicas": 0,
                    "maxReplicas": workers,
                    "rayStartParams": {},
                    "template": {"spec": {"containers": [container("ray-worker", "1G")]}},
                }
            ]
            if workers
            else []
        )
        spec = {
            "rayVersion": "2.60.0",
            "workerGroupSpecs": groups,
            "headGroupSpec": {
                "rayStartParams": {"dashboard-host": "0.0.0.0"},
                "template": {"spec": {"containers": [container("ray-head", "2G")]}},
            },
        }
        body = {"apiVersion": RAY_CLUSTER.api_version, "kind": "RayCluster", "metadata": {"name": name}, "spec": spec}
        await self.client.create(RAY_CLUSTER, body, "default")

    async def pods(self, cluster: str) -> list[Json]:
        return await self.client.list(POD, "default", label_selector=f"ray.io/cluster={cluster}")

    async def pods_and_nodes(self) -> tuple[list[Json], list[Json]]:
        return await self.client.list(POD), await self.client.list(NODE)

    async def ready(self, cluster: str, count: int) -> list[Json]:
        """The cluster's pods when all of them are Ready."""

        async def look() -> list[Json] | None:
            pods = await self.pods(cluster)
            return pods if len(pods) == count and all(is_ready(pod) for pod in pods) else None

        return await self.until(look, READY_SECONDS)

    async def until(self, look: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        async with asyncio.timeout(seconds):
            while not (found := await look()):  # noqa: ASYNC110 - the other side has no event
                await asyncio.sleep(0.25)
            return found

    async def job(self, cluster: str, entrypoint: str, headers: dict[str, str] | None = None) -> Json:
        """Submit to the head's job API and wait for the end."""
        head = next(pod for pod in await self.pods(cluster) if pod["metadata"]["labels"]["ray.io/node-type"] == "head")
        url = f"http://{head['status']['podIP']}:8265/api/jobs/"
        headers = headers or await self.token(cluster)
        async with aiohttp.ClientSession(headers=headers) as session:

            async def submit() -> str | None:
                try:  # on a busy machine the dashboard may answer later than the agent that the probe asks, or miss it
                    async with session.post(url, json={"entrypoint": entrypoint}) as answer:
                        said = await answer.text()
                        if answer.status == 500 and "try again later" in said:
                            return None
                        assert answer.status == 200, said
                        return str((await answer.json())["submission_id"])
                except aiohttp.ClientConnectorError:
                    return None

            name = await self.until(submit)

            async def look() -> Json | None:
                async with session.get(url + name) as answer:
                    found: Json = await answer.json()
                    return found if found["status"] in ("SUCCEEDED", "FAILED", "STOPPED") else None

            found: Json = await self.until(look, 120)
            async with session.get(f"{url}{name}/logs") as answer:
                found["logs"] = (await answer.json())["logs"]
            return found

    async def token(self, cluster: str) -> dict[str, str]:
        """The cluster's token, where it has one."""
        import base64

        from shoal.api.kinds import SECRET

        try:
            secret = await self.client.get(SECRET, cluster, "default")
        except NotFound:
            return {}
        value = next(iter(secret["data"].values()))
        return {"Authorization": f"Bearer {base64.b64decode(value).decode()}"}

    def processes(self, pod: Json) -> list[int]:
        """Everything that runs below the shims of one pod."""
        from shoal.local.nodes.runtime.records import pod_id

        directory = str(self.cluster.home.runtime / "pods" / pod_id(pod["metadata"]["uid"]))
        shims = [pid for pid in kernel.descendants(os.getpid()) if directory.encode() in command(pid)]
        return sorted({*shims, *(below for pid in shims for below in kernel.descendants(pid))})

    async def gone(self, cluster: str) -> None:
        async def look() -> bool:
            return not await self.pods(cluster)

        await self.until(look)


def is_ready(pod: Json) -> bool:
    return any(
        c["type"] == "Ready" and c["status"] == "True" for c in (pod.get("status") or {}).get("conditions") or ()
    )


def living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}") and b"\nState:\tZ" not in _status(pid)]


def _status(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return b"\nState:\tZ"


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture(params=["netns", "loopback"])
async def whole(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Whole]:
    pytest.importorskip("ray", reason="real Ray is not installed")
    if request.param == "netns" and not machine.may_use_namespaces():
        pytest.skip("network namespaces need root")
    home = Home("e2e", tmp_path)
    home.create()
    nodes = (NodeShape(name="node-0", capacity={"cpu": "8", "memory": "16Gi"}),)
    audit_log = tmp_path / "audit.log"
    cluster = LocalCluster(home, LocalSettings(nodes=nodes, sandbox=request.param), audit_log=audit_log)
    with invariants.only_own_processes_signalled():
        await cluster.start()
        found = Whole(cluster)
        yield found
        started = invariants.whole_tree(home)
        await invariants.hold_in_process(home, found.pods_and_nodes)
        await hold_remote(found.client, Rules())
        await cluster.stop(5)
    invariants.hold_afterwards(home, started)
    judge(audit_log)
