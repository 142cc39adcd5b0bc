"""Adds up what Workloads hold at every revision of a run of Kueue's runner, and says where it was more than the quota.

The runner's own record is a sample, and it drops events where many come at once. This watches all Workloads in the
order in which the API server stored them, beside the subject (`kueue_runner.watched`), decides nothing, and writes what
it knows every second, as it is killed with the run.

    python -m tests.controlplane.quota_watch --out FILE --kubeconfig FILE
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from pathlib import Path

import msgspec

from shoal.api import kinds, quantity
from shoal.api.kueue import ClusterQueue
from shoal.api.kueue_workload import Workload
from shoal.controllers.queues.stored import is_true
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.kubeconfig import load

EVERY = 1.0
"""Seconds between two writes of the record."""


class QuotaRecord(msgspec.Struct, kw_only=True):
    """What was seen so far."""

    workloads: int = 0
    started: int = 0
    """Workloads that had quota once."""
    finished: int = 0
    peaks: dict[str, int] = {}
    """By cohort: the most that its queues held together at one moment, in milli."""
    excess: list[str] = []
    """Moments at which a cohort held more than the quota of its queues."""


class QuotaWatch:
    """Of one flavor with cpu alone, as the runner makes its queues."""

    def __init__(self) -> None:
        self.record = QuotaRecord(peaks={}, excess=[])
        self._cohorts: dict[str, str] = {}
        """Of each ClusterQueue."""
        self._nominal: Counter[str] = Counter()
        self._used: Counter[str] = Counter()
        self._held: dict[str, tuple[str, int]] = {}
        """By UID: the cohort, and how much."""
        self._started: set[str] = set()
        self._finished: set[str] = set()

    def queue_changed(self, change: Change) -> None:
        """Queues come before their Workloads, and stay."""
        queue: ClusterQueue | None = change.new
        if queue is None or change.key.name in self._cohorts:
            return
        cohort = queue.spec.cohort_name or f"queue {change.key.name}"
        self._cohorts[change.key.name] = cohort
        quotas = [
            one for group in queue.spec.resource_groups or () for flavor in group.flavors for one in flavor.resources
        ]
        self._nominal[cohort] += sum(quantity.amount("cpu", one.nominal_quota) for one in quotas)

    def workload_changed(self, change: Change) -> None:
        workload: Workload = change.new or change.old
        uid, record = workload.metadata.uid, self.record
        record.workloads += change.old is None
        held = _held(workload) if change.new is not None else 0
        before = self._held.pop(uid, None)
        if before is not None:
            self._used[before[0]] -= before[1]
        if is_true(workload, "Finished"):
            self._finished.add(uid)
        if held and workload.status.admission is not None:
            cohort = self._cohorts[workload.status.admission.cluster_queue]
            self._held[uid] = (cohort, held)
            self._started.add(uid)
            self._add(cohort, held, str(change.key))
        record.started, record.finished = len(self._started), len(self._finished)

    def _add(self, cohort: str, held: int, name: str) -> None:
        self._used[cohort] += held
        used, record = self._used[cohort], self.record
        record.peaks[cohort] = max(used, record.peaks.get(cohort, 0))
        if used > self._nominal[cohort]:
            record.excess.append(f"{cohort}: {used} of {self._nominal[cohort]} with {name}")


def _held(workload: Workload) -> int:
    """In milli; 0 for one without quota, or whose quota is free since its end."""
    admission = workload.status.admission
    if admission is None or not is_true(workload, "QuotaReserved") or is_true(workload, "Finished"):
        return 0
    return sum(quantity.amount("cpu", (one.resource_usage or {})["cpu"]) for one in admission.pod_set_assignments)


def read(path: Path) -> QuotaRecord:
    return msgspec.json.decode(path.read_bytes(), type=QuotaRecord)


async def follow(client: Client, out: Path) -> None:
    watch = QuotaWatch()
    queues = Cache(client, kinds.CLUSTER_QUEUE, ClusterQueue)
    workloads = Cache(client, kinds.WORKLOAD, Workload)
    queues.subscribe(watch.queue_changed)
    workloads.subscribe(watch.workload_changed)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(queues.run())
        tasks.create_task(workloads.run())
        while True:
            await asyncio.sleep(EVERY)
            new = out.with_suffix(".new")
            new.write_bytes(msgspec.json.encode(watch.record))
            new.replace(out)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    await follow(Client(load(asked.kubeconfig), manager="quota-watch"), asked.out)


if __name__ == "__main__":
    asyncio.run(main())
