"""One gang of the hub, from its quota to another cluster and back: what is stored at the hub, step by step.

Every step stores an intention here before any cluster acts on it, and nothing here talks to another cluster: members
do, each at its own pace. It is offered (`offering`), the first cluster that admits it wins, the others' copies go, and
its job is created there only after the hub has admitted it.
"""

from __future__ import annotations

import logging

import msgspec

from shoal.api.codec import merge_patch
from shoal.api.kind import Key
from shoal.api.kueue_names import bounded
from shoal.api.labels import CLUSTER_LOSS, KUEUE_MULTIKUEUE
from shoal.api.meta import Json
from shoal.api.objects import annotation, key_of
from shoal.controllers.multicluster.copies import chosen_cluster, stays
from shoal.controllers.multicluster.hub import Hub
from shoal.controllers.multicluster.loss import loss_policy
from shoal.controllers.multicluster.member import Member
from shoal.controllers.multicluster.members import Members
from shoal.controllers.multicluster.offering import Offering
from shoal.controllers.multicluster.queued import QueuedPlaces
from shoal.controllers.multicluster.record import FORMAT, record_of
from shoal.controllers.multicluster.records import Records, State
from shoal.controllers.multicluster.settings import ClusterSettings
from shoal.controllers.queues.checks import multikueue, steps
from shoal.controllers.queues.checks.draft import Draft
from shoal.controllers.queues.jobs import GangJob
from shoal.kube.clock import Clock
from shoal.kube.errors import Forbidden, Invalid, NotFound
from shoal.kube.events import Recorder
from shoal.kube.writes import Writer

log = logging.getLogger(__name__)
DRAIN_AGAIN = 2.0
"""Seconds between two looks for room elsewhere, of a gang whose cluster is drained."""
UNMANAGED = (
    "the job must say from the start that it runs in another cluster: create it with spec.managedBy: "
    + KUEUE_MULTIKUEUE
)


class Dispatcher:
    def __init__(
        self,
        hub: Hub,
        members: Members,
        queued: QueuedPlaces,
        writer: Writer,
        recorder: Recorder,
        settings: ClusterSettings,
        clock: Clock,
    ) -> None:
        self._hub, self._members, self._writer = hub, members, writer
        self._recorder, self._clock, self._settings = recorder, clock, settings
        self._queued = queued
        self._records = Records(hub, writer, settings, clock)
        self._offering = Offering(hub, members, self._records, queued, recorder, settings, clock, self._is_cleared)

    @property
    def nowhere(self) -> tuple[Key, ...]:
        """Workloads that hold quota and that no cluster would start: they are to be looked at when there is room."""
        return tuple(self._offering.nowhere)

    async def reconcile(self, key: Key) -> float | None:
        """Bring the hub's record of one gang a step further. Level-triggered: safe to call at any time."""
        self._offering.nowhere.discard(key)
        workload = self._hub.workloads.get(key)
        if workload is None:
            return None
        if record_of(workload).format > FORMAT:
            log.warning("%s: its record was stored by a later release of Shoal and is left as it is", key)
            return None
        if not stays(workload):
            return await self._withdraw(workload)
        check = self._hub.our_check(workload)
        if chosen_cluster(workload) and record_of(workload).on:
            return await self._follow(workload, check)
        if check is None or record_of(workload).ends:
            return await self._withdraw(workload)
        if check.get("state") in ("Retry", "Rejected") or not self._others_are_ready(workload, check["name"]):
            return None
        found = self._hub.job_of(workload)
        if found is None:
            await self._records.answer(
                workload, check, "Rejected", "no job of a kind that can be given to another cluster"
            )
            return None
        if not await self._claim(workload, check, *found):
            return None
        return await self._offering.offer(workload, check, *found)

    # --- before it is offered

    def _others_are_ready(self, workload: Json, ours: str) -> bool:
        entries = (workload.get("status") or {}).get("admissionChecks") or ()
        return all(one.get("state") == "Ready" for one in entries if one["name"] != ours)

    async def _claim(self, workload: Json, check: Json, kind: GangJob, job: Json) -> bool:
        """The hub's own controllers leave the job alone from now on, whatever its status says."""
        if multikueue.is_managed(job):
            return True
        if (job.get("spec") or {}).get("managedBy"):
            await self._records.answer(workload, check, "Rejected", UNMANAGED)
            return False
        try:
            made = await self._writer.patch(kind.kind, job, {"spec": {"managedBy": KUEUE_MULTIKUEUE}})
        except (Invalid, Forbidden):
            await self._records.answer(workload, check, "Rejected", UNMANAGED)
            return False
        self._hub.jobs[kind.kind].note_write(made)
        return True

    # --- following

    async def _follow(self, workload: Json, check: Json | None) -> float | None:
        """The chosen cluster runs it: what becomes of it there is shown here."""
        if check is not None and check.get("state") in ("Retry", "Rejected"):
            return None
        cluster, record = chosen_cluster(workload), record_of(workload)
        member = self._members.usable(cluster)
        if member is None:
            left = self._until_lost(workload, cluster)
            if left is not None and left <= 0:
                await self._send_back(workload, check, f'Admitting remote lost: cluster "{cluster}"', "Retry")
                return None
            if check is not None and check.get("state") == "Ready":
                since = self._members.silent_since(cluster)
                said = f'The workload was admitted on "{cluster}", which cannot be reached'
                said += f", its state is unknown since {since}: " if since else ": "
                await self._records.answer(workload, check, "Ready", said + self._members.trouble(cluster))
            return left if left is None or left > 0 else None
        if self._members.is_leaving(cluster):
            await self._send_back(workload, check, f'cluster "{cluster}" is taken away', "Retry")
            return None
        if check is not None and (target := self._next_place(workload, check, cluster)):
            await self._send_back(workload, check, f'cluster "{cluster}" is drained: it moves to "{target}"', "Retry")
            return None
        if check is not None and check.get("state") == "Ready":
            await self._records.answer(workload, check, "Ready", f'The workload was admitted on "{cluster}"')
        workload = self._hub.workloads.get(key_of(workload)) or workload
        await self._drop_others(workload, cluster)
        workload = self._hub.workloads.get(key_of(workload)) or workload
        copy, job = member.copy_of(workload), member.job_of(workload)
        if job is not None:
            if record.job != job[1]["metadata"]["uid"]:
                made = msgspec.structs.replace(record_of(workload), job=job[1]["metadata"]["uid"])
                workload = await self._records.store(workload, made, held=True)
            if await self._mirror(workload, job[1]):
                return None
        elif record.job:
            said = f'its job on "{cluster}" is gone and its end was never read; set spec.active to run it again'
            await self._send_back(workload, check, said, "Rejected")
            return None
        if copy is None:
            await self._send_back(workload, check, f'its copy on "{cluster}" is gone', "Retry")
            return None
        again = await self._follow_copy(workload, check, copy, cluster, member)
        return DRAIN_AGAIN if again is None and self._members.moves_away(cluster) else again

    def _next_place(self, workload: Json, check: Json, cluster: str) -> str:
        """Where it would start now, while its cluster is drained and no other gang leaves it; empty: it stays."""
        found = self._hub.job_of(workload)
        if found is None or not self._settings.chooses or not self._members.moves_away(cluster):
            return ""
        if any(not stays(one) for one in self._hub.workloads.by_index("on", cluster)):
            return ""
        said = {CLUSTER_LOSS: self._hub.queue_loss(workload), **(found[1]["metadata"].get("annotations") or {})}
        return self._queued.other_place(workload, check["name"], said)

    async def _follow_copy(
        self, workload: Json, check: Json | None, copy: Json, cluster: str, member: Member
    ) -> float | None:
        there = Draft(copy, 0)
        if there.is_true("Finished"):
            draft = Draft(workload, self._clock.now())
            steps.finish(draft, there.reason("Finished"), there.message("Finished"))
            await self._records.write(draft)
        elif there.is_true("Evicted") or not there.is_true("Admitted"):
            why = there.message("Evicted") or there.message("QuotaReserved")
            await self._send_back(workload, check, f'it was evicted on "{cluster}": {why}', "Retry")
        elif refusal := member.refusal(workload):
            await self._send_back(workload, check, f'cluster "{cluster}": {refusal}', "Retry", later=True)
        return None

    async def _drop_others(self, workload: Json, cluster: str) -> None:
        """Clusters that were not chosen leave the record once nothing of it is there."""
        record = record_of(workload)
        done = []
        for name in record.on:
            if name != cluster and await self._is_cleared(workload, name):
                done.append(name)
        if done:
            await self._records.store(workload, record.without(*done), held=True)

    async def _mirror(self, workload: Json, there: Json) -> bool:
        """The hub's job shows what the copy says. True when it has ended, which the queue controller sees then."""
        found = self._hub.job_of(workload)
        if found is None:
            return False
        kind, job = found
        status = there.get("status") or {}
        if status:
            await self._show(kind, job, status)
        return kind.end(there) is not None

    async def _show(self, kind: GangJob, job: Json, status: Json) -> None:
        change = merge_patch(job.get("status") or {}, status)
        if not change:
            return
        try:
            made = await self._writer.patch(kind.kind, job, {"status": change}, subresource="status")
        except NotFound:
            return
        self._hub.jobs[kind.kind].note_write(made)

    async def _send_back(
        self, workload: Json, check: Json | None, why: str, state: State, *, later: bool = False
    ) -> None:
        """The hub's queue takes it back: evicted, its copies removed, and offered again where it may be."""
        self._recorder.event(workload, "Warning", "MultiKueue", bounded(why, 1000))
        log.warning("%s: %s", key_of(workload), why)
        if check is not None:
            await self._records.answer(workload, check, state, why, later=later)
            return
        draft = Draft(workload, self._clock.now())
        if state == "Rejected":
            draft.put("DeactivationTarget", True, "AdmissionCheck", why)
        else:
            steps.evict(draft, "AdmissionCheck", why)
        await self._records.write(draft)

    def _until_lost(self, workload: Json, cluster: str) -> float | None:
        """Seconds until it may start elsewhere although this cluster cannot say what runs there; None: it answers, or
        that is waited for."""
        record = record_of(workload)
        if record.fence:
            return self._members.until_stopped(cluster, record.fence, workload.get("spec") or {})
        left = self._members.until_lost(cluster)
        if not self._members.exists(cluster) or self._members.is_forgotten(cluster):
            return left
        found = self._hub.job_of(workload)
        texts = (annotation(found[1], CLUSTER_LOSS) if found is not None else "", record.loss)
        return left if loss_policy(texts, self._settings.loss) == "move-anyway" else None

    # --- leaving

    async def _withdraw(self, workload: Json) -> float | None:
        """Nothing of it may be anywhere: the Workload is let go only when that is known, or stored where it is not."""
        if not multikueue.is_held(workload):
            return None
        record = record_of(workload)
        if stays(workload) and not record.ends:
            workload = await self._records.store(workload, msgspec.structs.replace(record, ends=True), held=True)
        record = record_of(workload)
        cleared = [name for name in record.on if await self._is_cleared(workload, name)]
        left = record.without(*cleared)
        if left.on:
            await self._records.store(workload, left, held=True)
            waits = [self._until_lost(workload, name) for name in left.on]
            return min((max(one, 1.0) for one in waits if one is not None), default=None)
        found = self._hub.job_of(workload)
        finished = Draft(workload, 0).is_true("Finished")
        if found is not None and not finished and not found[0].is_on_hold(found[1]) and found[0].end(found[1]) is None:
            await self._show(*found, found[0].resting())
        await self._records.store(workload, record.over(), held=False)
        for name in record.on:
            if member := self._members.get(name):
                member.forget(workload)
        return None

    async def _is_cleared(self, workload: Json, name: str) -> bool:
        """Is nothing of it there, or is it stored that it must go? A cluster in sight is asked; a lost one is not
        waited for, nor is any that cannot be reached when the gang is deleted."""
        if self._members.usable(name) is not None:
            member = self._members.get(name)
            assert member is not None
            if not member.is_gone(workload):
                member.queue.enqueue(key_of(workload))
                return False
            return True
        left = self._until_lost(workload, name)
        is_lost = left is not None and left <= 0
        if not is_lost and not workload["metadata"].get("deletionTimestamp"):
            return False
        return await self._members.remember_removal(name, workload["metadata"]["uid"], record_of(workload).epoch)
