"""A client for the real control plane, and objects to try it on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shoal.api.kind import Kind
from shoal.api.kinds import CRD
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.discovery import Discovery
from shoal.kube.errors import NotFound
from shoal.kube.history import History, RecordingTransport
from shoal.kube.kubeconfig import load
from tests.checker import assert_holds
from tests.controlplane.plane import ControlPlane
from tests.integration.conftest import judged

WIDGET = Kind("example.test", "v1", "Widget", "widgets")
Start = Callable[[Coroutine[Any, Any, Any]], "asyncio.Task[Any]"]


@pytest.fixture(scope="package")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for all modules here: they use namespaces and names of their own, and leave it working."""
    yield from judged(ControlPlane(tmp_path_factory.mktemp("plane") / "state", audit=True))


@pytest.fixture(scope="package")
def hands() -> Iterator[ThreadPoolExecutor]:
    """A thread that stays: what it starts dies with it, and it must not block the loop meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[Client]:
    """Every request is recorded, and the whole history judged when the test has ended."""
    history = History()
    transport = load(control_plane.kubeconfig)
    yield Client(RecordingTransport(transport, history, replica="test"))
    await transport.close()
    assert_holds(history.entries)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Run something in the background until the test ends."""
    tasks: list[asyncio.Task[Any]] = []

    def begin(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        tasks.append(asyncio.ensure_future(work))
        return tasks[-1]

    yield begin
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def config_map(name: str, namespace: str = "default", **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


def widget_crd(kind: Kind = WIDGET) -> Json:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.resource},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower()},
            "versions": [version],
        },
    }


async def install(client: Client, kind: Kind = WIDGET) -> None:
    """Create the CRD and wait until the server serves it and tells of it: each follows in its own time."""
    await client.create(CRD, widget_crd(kind))
    async with asyncio.timeout(60):
        while not await is_served(client, kind):  # noqa: ASYNC110 (no event tells it)
            await asyncio.sleep(0.1)


async def is_served(client: Client, kind: Kind) -> bool:
    try:
        await client.list_raw(kind, limit=1)
    except NotFound:
        return False
    return await Discovery(client).kind_of(kind.api_version, kind.kind) is not None
