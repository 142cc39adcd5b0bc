"""A thousand gangs wait on a thousand nodes: what one release costs."""

from __future__ import annotations

import asyncio
import time

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.kube.transport import Request, Response
from tests.cluster import Cluster, running
from tests.unit.appwrapper.build import app_wrapper, dispatched, pod
from tests.unit.appwrapper.meddler import Meddler
from tests.unit.appwrapper.test_queue import start

MANY = 1000


async def test_a_release_is_decided_at_once_and_nothing_is_listed() -> None:
    """Every node is taken by a pod, and as many gangs wait for one: the end of a pod starts the first of them within a
    second, without a single list, and without a word to the others."""
    async with running(with_builtin=False) as cluster:
        await cluster.stock(kinds.NODE, map(node, range(MANY)))
        await cluster.stock(kinds.POD, map(taken, range(MANY)))
        lists: list[str] = []

        async def note(request: Request) -> Response | None:
            if request.method == "GET" and "limit" in request.query:
                lists.append(request.path)
            return None

        meddler = Meddler(cluster.server.transport(), before=note)
        start(cluster, transport=meddler)
        for number in range(MANY):
            await cluster.create(kinds.APP_WRAPPER, app_wrapper(f"w{number:04}", pod(f"w{number:04}", cpu="3")))
        await until_all_wait(cluster)
        lists.clear()
        before = meddler.count("PATCH", "/status")
        began = time.process_time()  # our own work: on a busy machine others work meanwhile
        await cluster.client.delete(kinds.POD, "base-500", "default", grace_seconds=0)
        await cluster.until(kinds.APP_WRAPPER, "w0000", dispatched)
        assert time.process_time() - began < 1.0
        assert lists == []
        # two of its own, and refreshed messages of the first ten, which on a busy machine take more than one burst
        assert meddler.count("PATCH", "/status") - before < MANY / 10


def node(number: int) -> Json:
    sizes = {"cpu": "4", "memory": "16Gi", "pods": "110"}
    status = {"capacity": sizes, "allocatable": sizes, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": f"n{number}"}, "spec": {}, "status": status}


def taken(number: int) -> Json:
    """A pod that holds most of a node."""
    made = pod(f"base-{number}", cpu="3")
    made["spec"].update(nodeName=f"n{number}", terminationGracePeriodSeconds=0)
    return made


async def until_all_wait(cluster: Cluster) -> None:
    async with asyncio.timeout(60):
        while True:
            listed = await cluster.client.list(kinds.APP_WRAPPER, "default")
            if all((one.get("status") or {}).get("queuejobstate") == "Backoff" for one in listed):
                return
            await asyncio.sleep(0.1)
