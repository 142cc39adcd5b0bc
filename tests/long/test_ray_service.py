"""A RayService on real Ray: ten thousand requests over kept connections while it is upgraded twice, and none is lost.

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
from tests.long.test_elastic_ray import container, until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1700)]

REQUESTS = int(os.environ.get("REQUESTS", "10000"))
READY_SECONDS = 600
PAUSES = (0.05, 0.05, 0.1, 0.1, 0.1, 0.2, 0.2, 0.5, 1.0, 3.0)
"""Seconds between two requests of each client: connections in steady use, and those that a pool keeps idle."""
PROGRAM = """
import os
from ray import serve

@serve.deployment(ray_actor_options={"num_cpus": 0.1})
class Version:
    def __init__(self):
        if os.environ["VERSION"] == "bad":
            raise RuntimeError("this version does not start")
    async def __call__(self, request):
        return os.environ["VERSION"] + " " + (await request.body()).decode()

app = Version.bind()
"""
CONFIG = "applications:\n- name: versions\n  import_path: versions:app\n  route_prefix: /\n"


def ray_service(config: dict) -> dict:
    spec = {
        "serveConfigV2": CONFIG,
        "rayClusterConfig": config,
        "serveService": {"spec": {"type": "NodePort", "ports": [{"name": "serve", "port": 8000}]}},
        "rayClusterDeletionDelaySeconds": 30,
    }
    return {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": "versions"}, "spec": spec}


def template(role: str, memory: str, version: str) -> dict:
    made = container(role, "1", memory)
    made["env"] = [{"name": "PYTHONPATH", "value": "/program"}, {"name": "VERSION", "value": version}]
    made["volumeMounts"] = [{"name": "program", "mountPath": "/program"}]
    return {"spec": {"containers": [made], "volumes": [{"name": "program", "configMap": {"name": "versions"}}]}}


def head_alone(version: str) -> dict:
    return {"headGroupSpec": {"rayStartParams": {}, "template": template("ray-head", "2G", version)}}


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


async def test_no_request_is_lost_while_a_service_is_upgraded(tmp_path: Path) -> None:
    if not this_machine.may_use_namespaces():
        pytest.skip("network namespaces need root")
    machine = Machine("served", tmp_path)
    machine.up("--node", "name=node,cpu=10,memory=24Gi", "--sandbox", "netns")
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
