"""Objects that ask for far too much at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.local.builtin import pods
from shoal.local.builtin.context import WorkloadContext
from tests.cluster import Cluster
from tests.faults import proven
from tests.patience import PATIENCE


@proven(without=lambda patch: patch.setattr(pods, "MOST_AT_ONCE", 1 << 31))
@pytest.mark.parametrize(
    "kind, spec",
    [
        (kinds.REPLICA_SET, {"replicas": 5000}),
        (kinds.JOB, {"parallelism": 5000, "completions": 5000}),
    ],
)
async def test_f123_a_set_of_thousands_grows_by_pieces(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, kind: Kind, spec: Json
) -> None:
    """F123: a set asks for a huge number of pods. Holds: so many a turn as Kubernetes makes, never all in memory."""
    asked: list[int] = []
    seen = asyncio.Event()

    async def create_pods(self: WorkloadContext, owner: Json, bodies: list[Json]) -> None:
        asked.append(len(bodies))
        seen.set()

    monkeypatch.setattr(WorkloadContext, "create_pods", create_pods)
    template: Any = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    if kind is kinds.JOB:
        template["spec"]["restartPolicy"] = "Never"
    else:
        spec = {**spec, "selector": {"matchLabels": {"a": "b"}}}
    await cluster.client.create(kind, {"metadata": {"name": "huge"}, "spec": {**spec, "template": template}}, "default")
    await asyncio.wait_for(seen.wait(), PATIENCE)
    assert max(asked) == 500
