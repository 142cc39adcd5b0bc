"""Adds up what Workloads hold at every revision of a run of Kueue's runner, and says where it was more than the quota.

The runner's own record is a sample, and it drops events where many come at once. This follows all Workloads in the
order in which the API server stored them, beside the subject (`kueue_runner.watched`), decides nothing, and writes what
it knows every second, as it is killed with the run. It has no cache between the server and itself: after a watch that
was cut a cache lists, and a list is in the order of names.

    python -m tests.controlplane.quota_watch --out FILE --kubeconfig FILE
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from pathlib import Path

import msgspec

from shoal.api import kinds, quantity
from shoal.api.kueue import ClusterQueue
from shoal.api.kueue_workload import Workload
from shoal.controllers.queues.stored import is_true
from shoal.kube.client import Client
from shoal.kube.errors import Gone, KubeError
from shoal.kube.kubeconfig import load
from shoal.kube.revisions import read_mark

EVERY = 1.0
"""Seconds between two writes of the record."""
AGAIN = 0.2
"""Seconds after an answer that was an error: at the beginning the kind is not served yet."""


class QuotaRecord(msgspec.Struct, kw_only=True):
    """What was seen so far."""

    workloads: int = 0
    started: int = 0
    """Workloads that had quota once."""
    finished: int = 0
    lists: int = 0
    """One at the beginning. With another one, revisions before it were not seen."""
    revision: str = ""
    peaks: dict[str, int] = {}
    """By cohort: the most that its queues held together at one moment, in milli."""
    excess: list[str] = []
    """Moments at which a cohort held more than the quota of its queues."""


class QuotaWatch:
    """Of one flavor with cpu alone, as the runner makes its queues."""

    def __init__(self, queues: Callable[[], Awaitable[Iterable[ClusterQueue]]]) -> None:
        """`queues` reads them: asked for one that is not known, and before a cohort is said to hold too much."""
        self.record = QuotaRecord(peaks={}, excess=[])
        self._read_queues = queues
        self._cohorts: dict[str, str] = {}
        """Of each ClusterQueue."""
        self._nominal: Counter[str] = Counter()
        self._used: Counter[str] = Counter()
        """By cohort."""
        self._held: dict[str, tuple[str, int]] = {}
        """By UID: the cohort, and how much."""
        self._seen: set[str] = set()
        self._started: set[str] = set()
        self._finished: set[str] = set()

    async def listed(self, workloads: Iterable[Workload], revision: str) -> None:
        """All Workloads at one revision: one step, whatever their order."""
        self.record.lists += 1
        self._held.clear()
        self._used.clear()
        cohorts = [await self._count(workload) for workload in workloads]
        for cohort in {*filter(None, cohorts)}:
            await self._judge(cohort, f"the list at revision {revision}")

    async def changed(self, workload: Workload) -> None:
        self._forget(workload.metadata.uid)
        if cohort := await self._count(workload):
            await self._judge(cohort, f"{workload.metadata.name} at revision {workload.metadata.resource_version}")

    def deleted(self, workload: Workload) -> None:
        self._forget(workload.metadata.uid)

    def _forget(self, uid: str) -> None:
        cohort, held = self._held.pop(uid, ("", 0))
        self._used[cohort] -= held

    async def _count(self, workload: Workload) -> str | None:
        """The cohort where it holds quota."""
        uid, admission, held = workload.metadata.uid, workload.status.admission, _held(workload)
        self._seen.add(uid)
        if is_true(workload, "Finished"):
            self._finished.add(uid)
        if held and admission is not None:
            self._started.add(uid)
            if admission.cluster_queue not in self._cohorts:
                await self._learn_queues()
            cohort = self._cohorts[admission.cluster_queue]
            self._held[uid] = (cohort, held)
            self._used[cohort] += held
        counts = len(self._seen), len(self._started), len(self._finished)
        self.record.workloads, self.record.started, self.record.finished = counts
        return self._held.get(uid, (None, 0))[0]

    async def _judge(self, cohort: str, moment: str) -> None:
        used, record = self._used[cohort], self.record
        record.peaks[cohort] = max(used, record.peaks.get(cohort, 0))
        if used > self._nominal[cohort]:
            await self._learn_queues()
        if used > self._nominal[cohort]:
            record.excess.append(f"{cohort}: {used} of {self._nominal[cohort]} with {moment}")

    async def _learn_queues(self) -> None:
        self._nominal.clear()
        for queue in await self._read_queues():
            cohort = queue.spec.cohort_name or f"queue {queue.metadata.name}"
            self._cohorts[queue.metadata.name] = cohort
            for group in queue.spec.resource_groups or ():
                quotas = [one for flavor in group.flavors for one in flavor.resources]
                self._nominal[cohort] += sum(quantity.amount("cpu", one.nominal_quota) for one in quotas)


def _held(workload: Workload) -> int:
    """In milli; 0 for one without quota, or whose quota is free since its end."""
    admission = workload.status.admission
    if admission is None or not is_true(workload, "QuotaReserved") or is_true(workload, "Finished"):
        return 0
    return sum(quantity.amount("cpu", (one.resource_usage or {})["cpu"]) for one in admission.pod_set_assignments)


def read(path: Path) -> QuotaRecord:
    return msgspec.json.decode(path.read_bytes(), type=QuotaRecord)


async def follow(client: Client, out: Path) -> None:
    watch = QuotaWatch(lambda: client.list(kinds.CLUSTER_QUEUE, type=ClusterQueue))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_follow_workloads(client, watch))
        while True:
            await asyncio.sleep(EVERY)
            new = out.with_suffix(".new")
            new.write_bytes(msgspec.json.encode(watch.record))
            new.replace(out)


async def _follow_workloads(client: Client, watch: QuotaWatch) -> None:
    decoder, record = msgspec.json.Decoder(Workload), watch.record
    while True:
        try:
            if not record.revision:
                page = await client.list_raw(kinds.WORKLOAD)
                record.revision = page.metadata.resource_version
                await watch.listed([decoder.decode(raw) for raw in page.items or ()], record.revision)
            async with aclosing(client.watch(kinds.WORKLOAD, resource_version=record.revision)) as events:
                async for event in events:
                    record.revision = read_mark(event.object).resource_version
                    if event.type == "DELETED":
                        watch.deleted(decoder.decode(event.object))
                    elif event.type != "BOOKMARK":
                        await watch.changed(decoder.decode(event.object))
        except Gone:
            record.revision = ""
        except KubeError:
            await asyncio.sleep(AGAIN)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    await follow(Client(load(asked.kubeconfig), manager="quota-watch"), asked.out)


if __name__ == "__main__":
    asyncio.run(main())
