"""What every part of the queue controller works with: caches, decisions in flight, writes, and telling people."""

from __future__ import annotations

from collections.abc import Callable

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.kueue_names import LONGEST_EVENT, bounded
from shoal.api.meta import Json
from shoal.controllers.planning.decisions import Decisions
from shoal.controllers.planning.observations import (
    CalledOff,
    Observations,
    ReservationRefused,
    WriteStored,
    WriteUnknown,
)
from shoal.controllers.queues.caches import QueueCaches
from shoal.controllers.queues.checks.draft import SECOND, EventType, WorkloadDraft
from shoal.controllers.queues.settings import QueueSettings
from shoal.controllers.queues.stored import StoredWorkload
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.errors import ApiError, BadRequest, Conflict, Forbidden, Invalid, NotFound, ServerError, Unknown
from shoal.kube.events import Recorder
from shoal.kube.writes import Writer
from shoal.remembered import Remembered

RETRY_REFUSED = 60.0
"""Seconds after which a reservation that the server refused to store is tried again."""
MOST_CONFLICTS = 1_000
"""That are remembered; then it starts over."""


class QueueContext:
    def __init__(
        self,
        client: Client,
        settings: QueueSettings,
        clock: Clock,
        caches: QueueCaches,
        decisions: Decisions,
        writer: Writer,
        recorder: Recorder,
    ) -> None:
        self.client = client
        self.settings = settings
        self.clock = clock
        self.caches = caches
        self.decisions = decisions
        self.writer = writer
        self.recorder = recorder
        self.stored: Callable[[WorkloadDraft], None] = lambda draft: None
        """Told of every status of a Workload that was written."""
        self.clusters_of: Callable[[str], tuple[str, ...]] = lambda uid: ()
        """The other clusters that were chosen for a gang, by UID: stored with its reservation."""
        self.observations = Observations()
        """What the reconciler learns, for the planning loop."""
        self._conflicts: Remembered[str, str] = Remembered(MOST_CONFLICTS)
        """By UID of a Workload: the revision on which a write of ours came too late."""

    def call_off(self, draft: WorkloadDraft) -> bool:
        """It was given quota and told to leave, and neither is stored: then it simply waits on. Where a write may have
        got through unseen, both are stored one after the other instead: the revision tells."""
        key, uid = _address(draft)
        overtaken = not draft.is_true("QuotaReserved") and self.decisions.is_overtaken(key, uid)
        if overtaken:
            self.observations.note(CalledOff(gang=key, uid=uid))
        return overtaken

    async def store(self, draft: WorkloadDraft) -> StoredWorkload:
        """Write the draft's status on the very revision it was read at; then tell people what changed."""
        change = draft.change
        if not change:
            return draft.workload
        key, uid = _address(draft)
        try:
            obj = draft.obj
            if draft.annotations:  # before the status: it counts only together with that
                obj = await self.writer.patch(kinds.WORKLOAD, obj, {"metadata": {"annotations": draft.annotations}})
            answer = await self.writer.patch(kinds.WORKLOAD, obj, {"status": change}, subresource="status")
        except (Unknown, ServerError):
            self.observations.note(WriteUnknown(gang=key, uid=uid))
            raise
        except (Invalid, Forbidden, BadRequest) as error:
            self._refuse(draft, error)
            raise
        except Conflict:
            await self._read_after(draft)
            raise
        self._conflicts.pop(uid, None)
        self.observations.note(WriteStored(gang=key, uid=uid))
        stored = self.caches.workloads.as_held(answer)
        self.caches.workloads.note_write(stored)
        self.stored(draft)
        for type, reason, message in draft.told:
            self.tell(draft.obj, type, reason, message)
            if type == "Warning":
                self._tell_job(draft, reason, message)
        if draft.preemptor is not None:
            victim = self.caches.cluster_queue_name(draft.workload)
            self.tell(draft.preemptor, "Normal", "PreemptedWorkload", _preempted(draft, draft.preemptor, victim))
        return stored

    async def _read_after(self, draft: WorkloadDraft) -> None:
        """Another client changed it. The watch brings that as a rule before the next try; where that was in vain as
        well, what is stored is read: what depends on a lost event would be tried until all is compared."""
        metadata = draft.workload.metadata
        if self._conflicts.get(metadata.uid) != metadata.resource_version:
            self._conflicts.remember(metadata.uid, metadata.resource_version)
            return
        try:
            found = await self.client.get(kinds.WORKLOAD, metadata.name, metadata.namespace)
        except NotFound:
            self.caches.workloads.note_delete(draft.workload)
        else:
            self.caches.workloads.note_write(found)

    def _refuse(self, draft: WorkloadDraft, error: ApiError) -> None:
        """Quota that cannot be stored is not kept from others."""
        key, uid = _address(draft)
        if draft.is_true("QuotaReserved") and self.decisions.reservation(key, uid) is not None:
            self.observations.note(ReservationRefused(gang=key, uid=uid, until=draft.now + int(RETRY_REFUSED * SECOND)))
            self.tell(draft.obj, "Warning", "QuotaRefused", f"its quota cannot be stored: {error}")

    def _tell_job(self, draft: WorkloadDraft, reason: str, message: str) -> None:
        """Why it waits, and what goes wrong, stands where people look first: `kubectl describe` of their job."""
        metadata = draft.workload.metadata
        found = self.caches.job_of(Key(metadata.namespace, metadata.name))
        if found is not None and found[0].kind != kinds.POD:
            self.tell(found[1], "Warning", reason, message)

    def tell(self, obj: Json, type: EventType, reason: str, message: str) -> None:
        if self.settings.events:
            self.recorder.event(obj, type, reason, bounded(message, LONGEST_EVENT))


def _address(draft: WorkloadDraft) -> tuple[str, str]:
    """Key and UID of its gang."""
    metadata = draft.workload.metadata
    return f"Workload/{metadata.namespace}/{metadata.name}", metadata.uid


def _preempted(draft: WorkloadDraft, preemptor: Json, queue: str) -> str:
    """What people of the preemptor's namespace are told of the gang that made way; of another namespace no names."""
    metadata = draft.workload.metadata
    which = f"workload {metadata.namespace}/{metadata.name} (UID: {metadata.uid})"
    if metadata.namespace != preemptor["metadata"]["namespace"]:
        which = "a workload of another namespace"
    return f"Preempted {which} in ClusterQueue {queue}"
