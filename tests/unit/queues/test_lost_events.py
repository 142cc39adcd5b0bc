"""What the watch of Workloads lost is found by the writes that depend on it, long before all is compared."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.controllers.queues.context import QueueContext
from shoal.kube.revisions import RevisionMark, read_mark
from tests.cluster import Cluster
from tests.faults import proven
from tests.patience import PATIENCE, patiently
from tests.unit.queues.build import cluster_queue, flavor, job, local_queue, make, name_of, said, true
from tests.unit.queues.conftest import decide


def never_reads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def trust_the_watch(self: QueueContext, draft: Any) -> None:
        return None

    monkeypatch.setattr(QueueContext, "_read_after", trust_the_watch)


@proven(without=never_reads_again)
async def test_f861_a_workload_whose_change_the_watch_lost_gets_its_quota(quiet: Cluster) -> None:
    """F861: the watch loses the event of a change of a Workload, so that every write on the revision that is held comes
    too late. Holds: the Workload is read, and its gang starts."""
    workloads = decide(quiet).caches.workloads
    await make(quiet, flavor(), cluster_queue("a", quota={"cpu": "0"}), local_queue("q", "a"))
    (made,) = await make(quiet, job("late", queue="q"))
    name = name_of(made)
    await quiet.until(kinds.WORKLOAD, name, lambda one: said(one, "QuotaReserved")[0] == "False")
    taken, lost = workloads.take, asyncio.Event()

    def loses(raw: msgspec.Raw, **named: Any) -> RevisionMark | None:
        lost.set()
        return read_mark(raw)

    workloads.take = loses  # type: ignore[method-assign]
    change = {"metadata": {"annotations": {"team.example/note": "changed"}}}
    await quiet.client.patch(kinds.WORKLOAD, name, "default", change)
    async with patiently(PATIENCE):
        await lost.wait()
    workloads.take = taken  # type: ignore[method-assign]
    await quiet.client.patch(kinds.CLUSTER_QUEUE, "a", None, {"spec": cluster_queue("a", quota={"cpu": "2"})["spec"]})
    await quiet.until(kinds.WORKLOAD, name, true("Admitted"))
