"""Which queues, cohorts, flavors and checks are to publish their status, and when.

Told of Workloads that were counted and of queue objects that changed; each status is written by its address, numbers at
the pace of `pacing.py`. Decides nothing about gangs.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.api import kinds
from shoal.api.kind import Key, Kind
from shoal.api.kueue_workload import Workload
from shoal.api.objects import key_of
from shoal.controllers.queues.context import QueueContext
from shoal.controllers.queues.counts import Address
from shoal.controllers.queues.pacing import STATUS_PAUSE, StatusPace
from shoal.controllers.queues.queue_status import QueueStatus
from shoal.engine import Engine
from shoal.engine.model import Gang
from shoal.kube.runtime import Controller


class Publishing:
    def __init__(self, context: QueueContext, engine: Engine) -> None:
        self._caches, self._settings = context.caches, context.settings
        self.status = QueueStatus(context, engine)
        self._pace = StatusPace(context.clock, lambda one: self._caches.others[one[0]].get(one[1]) is not None)
        self.statuses: Controller[Address] = Controller("queue-status", self._publish, workers=8, clock=context.clock)

    async def run(self) -> None:
        await self.statuses.run()

    async def _publish(self, address: Address) -> None:
        self._pace.published(address)
        await self.status.publish(*address)

    # --- Workloads

    def update(self, workload: Workload, gang: Gang) -> None:
        """Count a Workload as it is stored; `gang` is what it alone says."""
        self._numbers_changed(self.status.update(workload, gang))

    def forget(self, uid: str) -> None:
        self._numbers_changed(self.status.counts.forget(uid))

    def _numbers_changed(self, addresses: Iterable[Address]) -> None:
        for address in addresses:
            self.statuses.enqueue(address, self._pace.pause(address, self.status.counts.of(*address).is_empty))
            if address[0] == kinds.CLUSTER_QUEUE:
                self.cohorts_above(address[1].name)

    # --- queue objects

    def now(self, kind: Kind, key: Key) -> None:
        self.statuses.enqueue((kind, key))

    def soon(self, kind: Kind, key: Key) -> None:
        """With what else changes within a moment."""
        self.statuses.enqueue((kind, key), STATUS_PAUSE)

    def cluster_queues(self) -> None:
        for queue in self._caches.cluster_queues:
            self.soon(kinds.CLUSTER_QUEUE, queue)
            self.local_queues(queue.name)

    def local_queues(self, cluster_queue: str) -> None:
        for local in self._caches.local_queues_of(cluster_queue):
            self.soon(kinds.LOCAL_QUEUE, key_of(local))

    def shares(self) -> None:
        """A cohort is another: what it gives changes the shares of all that are below and beside it."""
        if not self._settings.fair_sharing:
            return
        for cohort in self._caches.cohorts:
            self.soon(kinds.COHORT, cohort)
        self.cluster_queues()

    def cohorts_above(self, cluster_queue: str) -> None:
        """The shares of all cohorts above it have changed with its own."""
        if not self._settings.fair_sharing:
            return
        queue = self._caches.cluster_queue(cluster_queue)
        above, seen = queue.spec.cohort_name if queue is not None else "", set[str]()
        while above and above not in seen:
            seen.add(above)
            self.soon(kinds.COHORT, Key("", above))
            cohort = self._caches.cohorts.get(Key("", above))
            above = cohort.spec.parent_name if cohort is not None else ""
