"""A start into a full cluster: how long until something is decided."""

from __future__ import annotations

import time

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.kube import feed
from tests.cluster import Cluster, running
from tests.faults import proven
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, pod

NODES = 500
PODS = 50_000
BOUND = 8.0
"""Seconds of CPU from the start of the controller to the first gang dispatched, the server's share included. A quiet
machine takes 2, and about as long by the clock; the clock of a busy one proves nothing."""


async def store(cluster: Cluster, kind: Kind, obj: Json) -> None:
    """Put an object into the store as it is: fifty thousand creates would take longer than what is measured."""
    resource = cluster.server.registry.find(kind.group, kind.plural)
    assert resource is not None
    storage, metadata = cluster.server.storage, obj["metadata"]
    revision = storage.next_revision()
    metadata.update(uid=f"uid-{revision}", resourceVersion=str(revision), creationTimestamp="2026-01-01T00:00:00Z")
    await storage.put(
        resource.collection, metadata.get("namespace", ""), metadata["name"], revision, msgspec.json.encode(obj)
    )


async def fill(cluster: Cluster) -> None:
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    for number in range(NODES):
        await store(cluster, kinds.NODE, {"metadata": {"name": f"node-{number}"}, "status": status})
    for number in range(PODS):
        body = pod(f"p{number}", cpu="500m", memory="1Gi")
        body["metadata"]["namespace"] = f"team-{number % 20}"
        body["spec"]["nodeName"] = f"node-{number % NODES}"
        await store(cluster, kinds.POD, {**body, "status": {"phase": "Running"}})


def _objects_are_read_few_at_a_time(patch: pytest.MonkeyPatch) -> None:
    async def by_pages(self: feed.Feed) -> None:
        await self.load()

    patch.setattr(feed, "PAGE", 50)
    patch.setattr(feed.Feed, "_load_by_stream", by_pages)


@pytest.mark.not_at_rest("50,000 pods without a life of their own: it ends with the first decision")
@pytest.mark.timeout(150)
@proven(without=_objects_are_read_few_at_a_time)
async def test_f047_the_first_decision_of_a_start_among_50000_pods_comes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """F47: 50,000 objects are there at the start. Holds: the first gang is dispatched within 8 s of CPU."""
    monkeypatch.setattr("tests.cluster.PATIENCE", 60.0)
    async with running(with_builtin=False) as cluster:
        await fill(cluster)
        await cluster.create(kinds.APP_WRAPPER, app_wrapper("first", pod("one", cpu="1")))
        controller = planned(cluster.client, AppWrapperSettings(trust_unstamped=True))
        began, spent = time.monotonic(), time.process_time()
        cluster.start(controller.run())
        await cluster.until(kinds.APP_WRAPPER, "first", lambda found: (found.get("status") or {}).get("canrun"))
        await cluster.until(kinds.POD, "one", lambda found: True)
        took, cpu = time.monotonic() - began, time.process_time() - spent
        assert cpu < BOUND
        assert len(controller.loop.caches.pods) >= PODS
        print(f"first gang dispatched {took:.1f} s after the start ({cpu:.1f} s of CPU, the server's share included)")
