"""Ray's workers as its dashboard tells of them, and the drain call that a small job makes."""

from __future__ import annotations

import ast
import json
import shlex
from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.controllers.ray import RaySettings
from shoal.controllers.ray.job import DashboardError, DashboardTarget, HttpDashboard
from shoal.controllers.ray.nodes import SCRIPT, DashboardNodes, read_nodes
from shoal.kube.errors import NotFound

NODES = {"head": "a" * 56, "busy": "b" * 56, "idle": "c" * 56, "dead": "d" * 56}


def summary(**used: str) -> bytes:
    """As the dashboard answers, without what is not read."""
    nodes = [
        {
            "raylet": {
                "nodeId": NODES[name],
                "instanceId": f"ray-{name}",
                "state": "DEAD" if name == "dead" else "ALIVE",
                "isHeadNode": name == "head",
            }
        }
        for name in NODES
    ]
    resources = {NODES[name]: text for name, text in used.items()}
    return json.dumps({"result": True, "data": {"summary": nodes, "nodeLogicalResources": resources}}).encode()


USED = {
    "head": "0.0/1.0 CPU",
    "busy": "1.0/1.0 CPU\n0B/18.11GiB memory",
    "idle": "0.0/1.0 CPU\n0B/18.11GiB memory\n0B/76.29MiB object_store_memory",
    "dead": "0.0/1.0 CPU",
}


def test_workers_that_live_are_read_and_idle_is_what_uses_nothing() -> None:
    assert list(read_nodes(summary(**USED))) == [("ray-busy", NODES["busy"], False), ("ray-idle", NODES["idle"], True)]
    assert [one[2] for one in read_nodes(summary())] == [False, False], "nothing is known of what they use"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"data": 1}', b'{"data": {"summary": [1, {"raylet": []}]}}'])
def test_a_dashboard_that_answers_nonsense_names_no_worker(body: bytes) -> None:
    assert list(read_nodes(body)) == []


class Answering(HttpDashboard):
    def __init__(self, body: bytes = b"", code: int = 200, error: str = "") -> None:
        super().__init__()
        self.body, self.code, self.error = body, code, error
        self.calls: list[tuple[str, str, Any]] = []

    async def call(self, method: str, target: DashboardTarget, path: str, body: bytes = b"") -> tuple[int, bytes]:
        self.calls.append((method, path, json.loads(body) if body else None))
        if self.error:
            raise DashboardError(self.error)
        return self.code, self.body if method == "GET" else b"{}"


class Stored:
    """An API server with one RayCluster."""

    async def get(self, kind: Any, name: str, namespace: str | None = None) -> Any:
        if kind is not kinds.RAY_CLUSTER or name != "ray":
            raise NotFound(404, "NotFound", "it is gone")
        return {"metadata": {"name": "ray", "namespace": "default", "uid": "1"}, "spec": {"headGroupSpec": {}}}


def nodes(dashboard: Answering) -> DashboardNodes:
    return DashboardNodes(Stored(), RaySettings(token_by_agent=False), dashboard)  # type: ignore[arg-type]


async def test_ray_is_told_of_the_workers_by_their_node_ids_and_with_the_moment() -> None:
    dashboard = Answering(summary(**USED))
    told = await nodes(dashboard).drain(Key("default", "ray"), ["ray-busy", "not-in-ray-yet"], 1_700_000_000_000_000)
    assert not told, "of the other it is told once it knows it"
    (_, path, _), (method, where, job) = dashboard.calls
    assert (path, method, where) == ("/nodes?view=summary&nocache=1", "POST", "/api/jobs/")
    command = shlex.split(job["entrypoint"])
    assert command[:2] == ["python", "-c"] and command[3] == "1700000000000" and command[5:] == [NODES["busy"]]
    assert job["submission_id"].startswith("shoal-drain-")
    again = Answering(summary(**USED))
    assert await nodes(again).drain(Key("default", "ray"), ["ray-busy"], 1_700_000_000_000_000)
    assert again.calls[1][2] == job, "told twice is told once"


def test_the_script_is_python() -> None:
    assert ast.parse(SCRIPT)


async def test_idle_workers_are_named() -> None:
    assert await nodes(Answering(summary(**USED))).idle(Key("default", "ray")) == {"ray-idle"}


@pytest.mark.parametrize("dashboard", [Answering(error="no"), Answering(code=500)])
async def test_a_cluster_that_does_not_answer_was_not_told(dashboard: Answering) -> None:
    assert await nodes(dashboard).idle(Key("default", "ray")) == frozenset()
    assert not await nodes(dashboard).drain(Key("default", "ray"), ["ray-busy"], 1)
    assert not await nodes(dashboard).drain(Key("default", "gone"), ["ray-busy"], 1)
