"""A RayService on real Ray: ten thousand requests over kept connections while it is upgraded twice; its autoscaler.

`REQUESTS` counts fewer for a quick look.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from shoal.local import machine as this_machine
from tests.e2e.machine import Machine
from tests.long.test_elastic_ray import QUEUE, container, queue, until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1700)]

REQUESTS = int(os.environ.get("REQUESTS", "10000"))
READY_SECONDS = 600
PAUSES = (0.05, 0.05, 0.1, 0.1, 0.1, 0.2, 0.2, 0.5, 1.0, 3.0)
"""Seconds between two requests of each client: connections in steady use, and those that a pool keeps idle."""
PROGRAM = """
import asyncio, os
from ray import serve

@serve.deployment(ray_actor_options={"num_cpus": 0.1})
class Version:
    def __init__(self):
        if os.environ["VERSION"] == "bad":
            raise RuntimeError("this version does not start")
    async def __call__(self, request):
        return os.environ["VERSION"] + " " + (await request.body()).decode()

app = Version.bind()

@serve.deployment(
    max_ongoing_requests=2,
    ray_actor_options={"num_cpus": 1},
    autoscaling_config={"min_replicas": 1, "max_replicas": 6, "target_ongoing_requests": 1, "upscale_delay_s": 2},
)
class Slow:
    async def __call__(self, request):
        await asyncio.sleep(1)
        return "done"

slow = Slow.bind()
"""
CONFIG = "applications:\n- name: versions\n  import_path: versions:{app}\n  route_prefix: /\n"


def ray_service(config: dict, app: str = "app", **more: dict) -> dict:
    spec = {
        "serveConfigV2": CONFIG.format(app=app),
        "rayClusterConfig": config,
        "serveService": {"spec": {"type": "NodePort", "ports": [{"name": "serve", "port": 8000}]}},
        "rayClusterDeletionDelaySeconds": 30,
    }
    return {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": "versions", **more}, "spec": spec}


def template(role: str, memory: str, version: str) -> dict:
    made = container(role, "1", memory)
    made["env"] = [{"name": "PYTHONPATH", "value": "/program"}, {"name": "VERSION", "value": version}]
    made["volumeMounts"] = [{"name": "program", "mountPath": "/program"}]
    return {"spec": {"containers": [made], "volumes": [{"name": "program", "configMap": {"name": "versions"}}]}}


def head_alone(version: str) -> dict:
    return {"headGroupSpec": {"rayStartParams": {}, "template": template("ray-head", "2G", version)}}


def autoscaled() -> dict:
    group = {
        "groupName": "small",
        "replicas": 1,
        "minReplicas": 1,
        "maxReplicas": 6,
        "rayStartParams": {},
        "template": template("ray-worker", "1Gi", "any"),
    }
    head = {"rayStartParams": {"num-cpus": "0"}, "template": template("ray-head", "2Gi", "any")}
    return {"enableInTreeAutoscaling": True, "headGroupSpec": head, "workerGroupSpecs": [group]}


class Clients:
    """Each has a pool of one connection, sends POST requests, which no library sends twice, and counts its answers."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.answers: list[str] = []
        self.lost: list[str] = []
        self.connections = 0
        self._grown = asyncio.Event()

    async def ask_for_ever(self, name: int, pause: float) -> None:
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(self._connected)
        pool = aiohttp.TCPConnector(limit=1, keepalive_timeout=3600)
        async with aiohttp.ClientSession(connector=pool, trace_configs=[trace]) as session:
            turn = 0
            while True:
                turn += 1
                await self._ask(session, f"{name}-{turn}")
                await asyncio.sleep(pause)

    async def until_answered(self, count: int) -> None:
        async with asyncio.timeout(READY_SECONDS):
            while len(self.answers) < count:
                self._grown.clear()
                await self._grown.wait()

    async def _ask(self, session: aiohttp.ClientSession, word: str) -> None:
        try:
            async with session.post(self._url, data=word, timeout=aiohttp.ClientTimeout(60)) as answer:
                said = await answer.text()
                version, _, echo = said.partition(" ")
                good = answer.status == 200 and echo == word
                (self.answers if good else self.lost).append(version if good else f"{answer.status} {said[:200]}")
        except (aiohttp.ClientError, TimeoutError) as error:
            self.lost.append(f"after {len(self.answers)} answers: {error!r}")
        self._grown.set()

    async def _connected(self, *_: object) -> None:
        self.connections += 1


@asynccontextmanager
async def clients(url: str):
    """They begin when the node port answers: it does so a moment after its Service is stored."""
    made = Clients(url)
    await asyncio.to_thread(until, "the node port answers", lambda: answers(url))
    tasks = [asyncio.create_task(made.ask_for_ever(name, pause)) for name, pause in enumerate(PAUSES)]
    try:
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def answers(url: str) -> bool:
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def created(machine: Machine, *objects: dict) -> None:
    program = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "versions"}}
    for one in ({**program, "data": {"versions.py": PROGRAM}}, *objects):
        machine.kubectl("create", "-f", "-", stdin=json.dumps(one))


def status(machine: Machine) -> dict:
    return dict(machine.get("rayservice", "versions").get("status") or {})


def name_of(found: dict, role: str) -> str:
    return str((found.get(f"{role}ServiceStatus") or {}).get("rayClusterName") or "")


def held(machine: Machine, holds: Callable[[dict], bool]) -> dict:
    end = time.monotonic() + READY_SECONDS
    while not holds(found := status(machine)):
        assert time.monotonic() < end, found
        time.sleep(1)
    return found


def url_of(machine: Machine) -> str:
    service = machine.get("service", "versions-serve-svc")
    return f"http://127.0.0.1:{service['spec']['ports'][0]['nodePort']}/"


async def changed(machine: Machine, version: str) -> None:
    change = json.dumps({"spec": {"rayClusterConfig": head_alone(version)}})
    await asyncio.to_thread(machine.kubectl, "patch", "rayservice", "versions", "--type=merge", "-p", change)


async def upgraded(machine: Machine, version: str) -> str:
    """Returns when the next cluster serves and the last one is gone."""
    before = name_of(await asyncio.to_thread(status, machine), "active")
    await changed(machine, version)
    found = await asyncio.to_thread(held, machine, lambda told: name_of(told, "active") not in ("", before))
    gone = ("wait", f"raycluster/{before}", "--for=delete", "--timeout=240s")
    await asyncio.to_thread(machine.kubectl, *gone)
    return name_of(found, "active")


@pytest.mark.parametrize("sandbox", ["netns", "loopback"])
async def test_no_request_is_lost_while_a_service_is_upgraded(sandbox: str, tmp_path: Path) -> None:
    if sandbox == "netns" and not this_machine.may_use_namespaces():
        pytest.skip("network namespaces need root")
    machine = Machine("served", tmp_path)
    machine.up("--node", "name=node,cpu=10,memory=24Gi", "--sandbox", sandbox)
    try:
        created(machine, ray_service(head_alone("one")))
        held(machine, lambda found: found.get("serviceStatus") == "Running")
        async with clients(url_of(machine)) as calls:
            second = await upgraded(machine, "two")
            await changed(machine, "bad")
            bad = await asyncio.to_thread(held, machine, lambda found: application(found) == "DEPLOY_FAILED")
            assert name_of(bad, "active") == second
            await changed(machine, "two")
            await asyncio.to_thread(held, machine, lambda found: not name_of(found, "pending"))
            third = await upgraded(machine, "three")
            await calls.until_answered(REQUESTS)
        print(f"{len(calls.answers)} answers, {len(calls.lost)} lost, {calls.connections} connections")
        assert calls.lost == []
        assert {"one", "two", "three"} == set(calls.answers)
        assert name_of(status(machine), "active") == third
        machine.kubectl("delete", "rayservice", "versions")
    finally:
        machine.down()


def application(found: dict) -> str:
    told = (found.get("pendingServiceStatus") or {}).get("applicationStatuses") or {}
    return str((told.get("versions") or {}).get("status") or "")


async def test_serves_own_autoscaler_grows_a_service_within_its_queue(tmp_path: Path) -> None:
    """Quota is for the head with its autoscaler and three workers; the load would have six."""
    machine = Machine("grown", tmp_path)
    machine.up("--node", "name=node,cpu=10,memory=24Gi")
    try:
        created(machine, *queue(), ray_service(autoscaled(), "slow", labels=QUEUE))
        held(machine, lambda found: found.get("serviceStatus") == "Running")
        assert workers(machine) == 1
        url = url_of(machine)
        await asyncio.to_thread(until, "the node port answers", lambda: answers(url))
        async with aiohttp.ClientSession() as session:
            callers = [asyncio.create_task(ask_on(session, url)) for _ in range(12)]
            try:
                took = await asyncio.to_thread(until, "it grows into its quota", lambda: workers(machine) == 3)
                print("three workers after", took)
                said = await asyncio.to_thread(until, "the next worker waits", lambda: bids(machine) > 0)
                print("the next one waits for quota after", said)
                assert workers(machine) == 3
            finally:
                for caller in callers:
                    caller.cancel()
                done = await asyncio.gather(*callers, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in done), done
        usage = machine.get("clusterqueue", "all")["status"]["flavorsUsage"][0]["resources"]
        assert {one["name"]: one["total"] for one in usage}["cpu"] == "4500m"
        machine.kubectl("delete", "rayservice", "versions")
    finally:
        machine.down()


async def ask_on(session: aiohttp.ClientSession, url: str) -> None:
    while True:
        async with session.get(url, timeout=aiohttp.ClientTimeout(120)) as answer:
            assert answer.status == 200, await answer.text()


def workers(machine: Machine) -> int:
    return sum(pod["status"].get("phase") == "Running" for pod in live_workers(machine))


def bids(machine: Machine) -> int:
    """Workers that wait behind the gate."""
    return sum(bool(pod["spec"].get("schedulingGates")) for pod in live_workers(machine))


def live_workers(machine: Machine) -> list[dict]:
    pods = machine.get("pods", "-l", "ray.io/node-type=worker")["items"]
    return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
