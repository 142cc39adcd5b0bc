"""A RayService on real Ray: it answers while it is upgraded, and an application that fails takes nothing over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from shoal.api.kinds import CONFIG_MAP, RAY_CLUSTER, RAY_SERVICE, SERVICE
from shoal.api.meta import Json
from tests.e2e.conftest import READY_SECONDS, Whole

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

PROGRAM = """
import os
from ray import serve

@serve.deployment(ray_actor_options={"num_cpus": 0.1})
class Version:
    def __init__(self):
        if os.environ["VERSION"] == "bad":
            raise RuntimeError("this version does not start")
    def __call__(self, request):
        return os.environ["VERSION"]

app = Version.bind()
"""
CONFIG = "applications:\n- name: versions\n  import_path: versions:app\n  route_prefix: /\n"


def cluster_config(version: str) -> Json:
    size = {"cpu": "1", "memory": "2G"}
    container = {
        "name": "ray-head",
        "image": "rayproject/ray:2.60.0",
        "resources": {"limits": size, "requests": size},
        "env": [{"name": "PYTHONPATH", "value": "/program"}, {"name": "VERSION", "value": version}],
        "volumeMounts": [{"name": "program", "mountPath": "/program"}],
    }
    pod = {"containers": [container], "volumes": [{"name": "program", "configMap": {"name": "versions"}}]}
    head = {"rayStartParams": {"dashboard-host": "0.0.0.0"}, "template": {"spec": pod}}
    return {"rayVersion": "2.60.0", "headGroupSpec": head}


class Caller:
    """Asks without a pause, a new connection each time, and remembers every answer since the first good one.

    A node port begins to listen a moment after its Service is stored, as kube-proxy's does.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._answers: list[str] = []
        self.answered = asyncio.Event()

    @property
    def answers(self) -> list[str]:
        """By then it listens: whatever is lost after the first good answer is lost."""
        good = (place for place, answer in enumerate(self._answers) if answer.startswith("200 "))
        return self._answers[next(good, len(self._answers)) :]

    @property
    def lost(self) -> list[tuple[int, str]]:
        return [(place, answer) for place, answer in enumerate(self.answers) if not answer.startswith("200 ")]

    async def ask_for_ever(self) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
            while True:
                try:
                    async with session.get(self._url, timeout=aiohttp.ClientTimeout(20)) as answer:
                        self._answers.append(f"{answer.status} {await answer.text()}")
                        self.answered.set()
                except (aiohttp.ClientError, TimeoutError) as error:
                    self._answers.append(f"lost: {error!r}")


@contextlib.asynccontextmanager
async def called(url: str) -> AsyncIterator[Caller]:
    caller = Caller(url)
    task = asyncio.create_task(caller.ask_for_ever())
    try:
        await asyncio.wait_for(caller.answered.wait(), READY_SECONDS)
        yield caller
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def status(whole: Whole) -> Json:
    return (await whole.client.get(RAY_SERVICE, "versions", "default")).get("status") or {}


async def until(whole: Whole, holds: Any) -> Json:
    async def look() -> Json | None:
        found = await status(whole)
        return found if holds(found) else None

    return await whole.until(look, READY_SECONDS)


def active(found: Json) -> str:
    return str((found.get("activeServiceStatus") or {}).get("rayClusterName") or "")


def pending(found: Json) -> Json:
    return found.get("pendingServiceStatus") or {}


async def upgrade(whole: Whole, version: str) -> None:
    await whole.client.patch(
        RAY_SERVICE, "versions", "default", {"spec": {"rayClusterConfig": cluster_config(version)}}
    )


async def test_a_service_answers_while_it_is_upgraded(whole: Whole) -> None:
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed")
    program = {"metadata": {"name": "versions"}, "data": {"versions.py": PROGRAM}}
    await whole.client.create(CONFIG_MAP, {"apiVersion": "v1", "kind": "ConfigMap", **program}, "default")
    entrance = {"spec": {"type": "NodePort", "ports": [{"name": "serve", "port": 8000}]}}
    spec = {
        "serveConfigV2": CONFIG,
        "rayClusterConfig": cluster_config("one"),
        "serveService": entrance,
        "rayClusterDeletionDelaySeconds": 3,
    }
    body = {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": "versions"}, "spec": spec}
    await whole.client.create(RAY_SERVICE, body, "default")
    first = active(await until(whole, lambda found: found.get("serviceStatus") == "Running"))
    service = await whole.client.get(SERVICE, "versions-serve-svc", "default")

    async with called(f"http://127.0.0.1:{service['spec']['ports'][0]['nodePort']}/") as caller:
        await upgrade(whole, "two")
        second = active(await until(whole, lambda found: active(found) not in ("", first)))
        await whole.until(lambda: gone(whole, first), READY_SECONDS)
        await upgrade(whole, "bad")
        found = await until(whole, lambda found: application(found) == "DEPLOY_FAILED")
        assert active(found) == second
        await upgrade(whole, "two")
        await until(whole, lambda found: not pending(found).get("rayClusterName"))

    print(f"{len(caller.answers)} requests, {len(caller.lost)} lost")
    assert caller.lost == []
    assert len(caller.answers) > 100
    assert set(caller.answers) == {"200 one", "200 two"}
    assert caller.answers == sorted(caller.answers)  # never back to the first
    assert active(await status(whole)) == second


def application(found: Json) -> str:
    told = pending(found).get("applicationStatuses") or {}
    return str((told.get("versions") or {}).get("status") or "")


async def gone(whole: Whole, cluster: str) -> bool:
    return cluster not in [one["metadata"]["name"] for one in await whole.client.list(RAY_CLUSTER, "default")]
