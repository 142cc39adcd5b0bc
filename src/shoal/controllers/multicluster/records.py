"""The writes that a hub makes about one of its Workloads: its record, its check's answer, its status.

Each is made only where something differs, and is in the cache before the next step reads it.
"""

from __future__ import annotations

from typing import Literal

from shoal.api import kinds
from shoal.api.kueue_names import bounded
from shoal.api.labels import HELD_ELSEWHERE
from shoal.api.meta import Json
from shoal.controllers.multicluster import words
from shoal.controllers.multicluster.hub import Hub
from shoal.controllers.multicluster.record import Record, stored
from shoal.controllers.multicluster.settings import ClusterSettings
from shoal.controllers.queues.checks.draft import Draft
from shoal.kube.clock import Clock
from shoal.kube.errors import NotFound
from shoal.kube.writes import Writer

State = Literal["Pending", "Ready", "Retry", "Rejected"]


class Records:
    def __init__(self, hub: Hub, writer: Writer, settings: ClusterSettings, clock: Clock) -> None:
        self._hub, self._writer, self._settings, self._clock = hub, writer, settings, clock

    async def store(self, workload: Json, record: Record, *, held: bool) -> Json:
        """The record and its finalizer, in one write."""
        finalizers = [one for one in workload["metadata"].get("finalizers") or () if one != HELD_ELSEWHERE]
        if held:
            finalizers.append(HELD_ELSEWHERE)
        change = {
            "metadata": {"annotations": {words.RECORD: stored(record)}, "finalizers": finalizers or None},
        }
        try:
            made = await self._writer.patch(kinds.WORKLOAD, workload, change)
        except NotFound:
            return workload
        if made["metadata"].get("finalizers") or not made["metadata"].get("deletionTimestamp"):
            self._hub.workloads.note_write(made)
        return made

    async def answer(self, workload: Json, check: Json, state: State, message: str, *, later: bool = False) -> None:
        """Our entry of its checks; written only where it differs."""
        draft = Draft(workload, self._clock.now())
        self.put(draft, check["name"], state, message, later=later)
        await self.write(draft)

    def put(self, draft: Draft, check: str, state: State, message: str, *, later: bool = False) -> None:
        entries = [dict(one) for one in draft.get("admissionChecks") or ()]
        for one in entries:
            if one["name"] == check:
                one["message"] = bounded(message)
                if one.get("state") != state:
                    one["state"] = state
                    one["lastTransitionTime"] = draft.moment(one)
                if later:
                    one["requeueAfterSeconds"] = int(self._settings.refused_seconds)
        draft.set("admissionChecks", entries)

    async def write(self, draft: Draft) -> Json:
        if not draft.change:
            return draft.obj
        made = await self._writer.patch(kinds.WORKLOAD, draft.obj, {"status": draft.change}, subresource="status")
        self._hub.workloads.note_write(made)
        return made
