"""One gang of the hub, from its quota to another cluster and back: what is stored at the hub, step by step.

Every step stores an intention here before any cluster acts on it, and nothing here talks to another cluster: members
do, each at its own pace. As MultiKueue: all reachable clusters are offered the gang, the first that admits it wins,
the others' copies go. One rule is ours: its job is created there only after the hub has admitted it.
"""

from __future__ import annotations

import logging
from typing import Literal

import msgspec

from shoal.api import kinds
from shoal.api.codec import merge_patch
from shoal.api.kind import Key
from shoal.api.kueue_names import bounded
from shoal.api.meta import Json
from shoal.api.objects import key_of
from shoal.controllers.multicluster import words
from shoal.controllers.multicluster.copies import chosen_cluster, stays
from shoal.controllers.multicluster.hub import Hub
from shoal.controllers.multicluster.member import Member
from shoal.controllers.multicluster.members import Members
from shoal.controllers.multicluster.record import FORMAT, Record, record_of, stored
from shoal.controllers.multicluster.settings import ClusterSettings
from shoal.controllers.queues.checks import multikueue, steps
from shoal.controllers.queues.checks.draft import Draft
from shoal.controllers.queues.jobs import GangJob
from shoal.kube.clock import Clock
from shoal.kube.errors import Forbidden, Invalid, NotFound
from shoal.kube.events import Recorder
from shoal.kube.writes import Writer

log = logging.getLogger(__name__)
State = Literal["Pending", "Ready", "Retry", "Rejected"]
UNMANAGED = (
    "the job must say from the start that it runs in another cluster: create it with spec.managedBy: " + words.CHECK
)


class Dispatcher:
    def __init__(
        self,
        hub: Hub,
        members: Members,
        writer: Writer,
        recorder: Recorder,
        settings: ClusterSettings,
        clock: Clock,
    ) -> None:
        self._hub, self._members, self._writer = hub, members, writer
        self._recorder, self._settings, self._clock = recorder, settings, clock

    async def reconcile(self, key: Key) -> float | None:
        """Bring the hub's record of one gang a step further. Level-triggered: safe to call at any time."""
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
            await self._answer(workload, check, "Rejected", "no job of a kind that can be given to another cluster")
            return None
        if not await self._claim(workload, check, *found):
            return None
        return await self._offer(workload, check, *found)

    # --- offering

    def _others_are_ready(self, workload: Json, ours: str) -> bool:
        entries = (workload.get("status") or {}).get("admissionChecks") or ()
        return all(one.get("state") == "Ready" for one in entries if one["name"] != ours)

    async def _claim(self, workload: Json, check: Json, kind: GangJob, job: Json) -> bool:
        """The hub's own controllers leave the job alone from now on, whatever its status says."""
        if multikueue.is_managed(job):
            return True
        if (job.get("spec") or {}).get("managedBy"):
            await self._answer(workload, check, "Rejected", UNMANAGED)
            return False
        try:
            made = await self._writer.patch(kind.kind, job, {"spec": {"managedBy": words.CHECK}})
        except (Invalid, Forbidden):
            await self._answer(workload, check, "Rejected", UNMANAGED)
            return False
        self._hub.jobs[kind.kind].note_write(made)
        return True

    async def _offer(self, workload: Json, check: Json, kind: GangJob, job: Json) -> float | None:
        """All reachable clusters hold a copy, of which the first that is admitted wins."""
        names = self._hub.clusters_of(check["name"]) or ()
        usable = {
            name: member
            for name in names
            if (member := self._members.usable(name)) is not None
            and not self._members.is_leaving(name)
            and not self._members.is_cordoned(name)
        }
        workload = await self._take_from_cordoned(workload)
        record = record_of(workload)
        keeping = [name for name, member in usable.items() if member.holds_younger(workload)]
        if keeping:
            said = f"cluster {keeping[0]} holds a copy that this hub does not remember making; delete it there"
            await self._answer(workload, check, "Pending", said)
            return self._settings.refused_seconds
        if not record.on and any(self._members.is_unsure(name) for name in names):
            return self._settings.probe_seconds  # after a start: clusters that may hold a part of it are asked first
        if not usable and not record.on:
            await self._answer(workload, check, "Pending", self._told(workload, names, usable))
            return None
        if not record.on:
            if why := await self._hub.rights.refusal(kind.kind, job):
                await self._answer(workload, check, "Rejected", why)
                return None
            workload = await self._store(workload, record.next(self._clock.now(), tuple(usable)), held=True)
        elif missing := [name for name in usable if name not in record.on]:
            more = msgspec.structs.replace(record, on=(*record.on, *missing))
            workload = await self._store(workload, more, held=True)
        record = record_of(workload)
        nominated = [name for name in record.on if name not in record.leaving]
        if list((workload.get("status") or {}).get("nominatedClusterNames") or ()) != nominated:
            draft = Draft(workload, self._clock.now())
            draft.set("nominatedClusterNames", nominated or None)
            workload = await self._write(draft)
        winner = self._winner(workload, names, usable)
        if winner is not None:
            await self._choose(workload, check["name"], winner.name)
            return None
        refused = [name for name in record.on if name not in usable or usable[name].refusal(workload)]
        if usable and len(refused) == len(record.on):
            await self._answer(workload, check, "Retry", self._told(workload, names, usable), later=True)
            return None
        await self._answer(workload, check, "Pending", self._told(workload, names, usable))
        return None

    async def _take_from_cordoned(self, workload: Json) -> Json:
        """A cordoned cluster gives back what it was offered and what was not chosen yet."""
        record = record_of(workload)
        cordoned = {name for name in record.on if self._members.is_cordoned(name)}
        if cordoned - set(record.leaving):
            leaving = tuple(sorted(cordoned | set(record.leaving)))
            workload = await self._store(workload, msgspec.structs.replace(record, leaving=leaving), held=True)
        record = record_of(workload)
        cleared = [name for name in record.leaving if await self._is_cleared(workload, name)]
        return await self._store(workload, record.without(*cleared), held=True) if cleared else workload

    def _winner(self, workload: Json, names: tuple[str, ...], usable: dict[str, Member]) -> Member | None:
        """The cluster that admitted it first; of two at the same second, the first in the configuration."""
        admitted = []
        for at, name in enumerate(names):
            member = usable.get(name)
            copy = member.copy_of(workload) if member is not None else None
            if member is None or copy is None or not member.is_vetted(workload) or member.refusal(workload):
                continue
            draft = Draft(copy, 0)
            if draft.is_true("Admitted") and not draft.is_true("Evicted") and not draft.is_true("Finished"):
                admitted.append((draft.since("Admitted"), at, member))
        return min(admitted, key=lambda one: one[:2])[2] if admitted else None

    async def _choose(self, workload: Json, check: str, cluster: str) -> None:
        """From this write on the gang belongs to one cluster."""
        draft = Draft(workload, self._clock.now())
        draft.set("clusterName", cluster)
        draft.set("nominatedClusterNames", None)
        said = f'The workload was admitted on "{cluster}"'
        self._put(draft, check, "Ready", said)
        await self._write(draft)
        self._recorder.event(workload, "Normal", "MultiKueue", said)
        log.info("%s goes to cluster %s", key_of(workload), cluster)

    def _told(self, workload: Json, names: tuple[str, ...], usable: dict[str, Member]) -> str:
        """Why no cluster has taken it yet, cluster by cluster."""
        if not names:
            return "the check names no clusters: see its MultiKueueConfig"
        parts = []
        for name in names:
            member = usable.get(name)
            if member is None:
                parts.append(f"{name}: {self._members.trouble(name)}")
                continue
            draft = Draft(member.copy_of(workload) or {"metadata": {}}, 0)
            waits = draft.message("Admitted") if draft.is_true("QuotaReserved") else draft.message("QuotaReserved")
            parts.append(f"{name}: {member.refusal(workload) or waits or 'asked'}")
        return "; ".join(parts)

    # --- following

    async def _follow(self, workload: Json, check: Json | None) -> float | None:
        """The chosen cluster runs it: what becomes of it there is shown here."""
        if check is not None and check.get("state") in ("Retry", "Rejected"):
            return None
        cluster, record = chosen_cluster(workload), record_of(workload)
        member = self._members.usable(cluster)
        if member is None:
            left = self._members.until_lost(cluster)
            if left is not None and left <= 0:
                await self._send_back(workload, check, f'Admitting remote lost: cluster "{cluster}"', "Retry")
                return None
            if check is not None and check.get("state") == "Ready":
                said = f'The workload was admitted on "{cluster}", which cannot be reached: '
                await self._answer(workload, check, "Ready", said + self._members.trouble(cluster))
            return left
        if self._members.is_leaving(cluster):
            await self._send_back(workload, check, f'cluster "{cluster}" is taken away', "Retry")
            return None
        if check is not None and check.get("state") == "Ready":
            await self._answer(workload, check, "Ready", f'The workload was admitted on "{cluster}"')
        workload = self._hub.workloads.get(key_of(workload)) or workload
        await self._drop_others(workload, cluster)
        workload = self._hub.workloads.get(key_of(workload)) or workload
        copy, job = member.copy_of(workload), member.job_of(workload)
        if job is not None:
            if record.job != job[1]["metadata"]["uid"]:
                made = msgspec.structs.replace(record_of(workload), job=job[1]["metadata"]["uid"])
                workload = await self._store(workload, made, held=True)
            if await self._mirror(workload, job[1]):
                return None
        elif record.job:
            said = f'its job on "{cluster}" is gone and its end was never read; set spec.active to run it again'
            await self._send_back(workload, check, said, "Rejected")
            return None
        if copy is None:
            await self._send_back(workload, check, f'its copy on "{cluster}" is gone', "Retry")
            return None
        return await self._follow_copy(workload, check, copy, cluster, member)

    async def _follow_copy(
        self, workload: Json, check: Json | None, copy: Json, cluster: str, member: Member
    ) -> float | None:
        there = Draft(copy, 0)
        if there.is_true("Finished"):
            draft = Draft(workload, self._clock.now())
            steps.finish(draft, there.reason("Finished"), there.message("Finished"))
            await self._write(draft)
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
            await self._store(workload, record.without(*done), held=True)

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
            await self._answer(workload, check, state, why, later=later)
            return
        draft = Draft(workload, self._clock.now())
        if state == "Rejected":
            draft.put("DeactivationTarget", True, "AdmissionCheck", why)
        else:
            steps.evict(draft, "AdmissionCheck", why)
        await self._write(draft)

    # --- leaving

    async def _withdraw(self, workload: Json) -> float | None:
        """Nothing of it may be anywhere: the Workload is let go only when that is known, or stored where it is not."""
        if not multikueue.is_held(workload):
            return None
        record = record_of(workload)
        if stays(workload) and not record.ends:
            workload = await self._store(workload, msgspec.structs.replace(record, ends=True), held=True)
        record = record_of(workload)
        cleared = [name for name in record.on if await self._is_cleared(workload, name)]
        left = record.without(*cleared)
        if left.on:
            await self._store(workload, left, held=True)
            waits = [self._members.until_lost(name) for name in left.on]
            return min((max(one, 0.1) for one in waits if one is not None), default=None)
        found = self._hub.job_of(workload)
        finished = Draft(workload, 0).is_true("Finished")
        if found is not None and not finished and not found[0].is_on_hold(found[1]) and found[0].end(found[1]) is None:
            await self._show(*found, found[0].resting())
        await self._store(workload, record.over(), held=False)
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
        left = self._members.until_lost(name)
        lost = left is not None and left <= 0
        if not lost and not workload["metadata"].get("deletionTimestamp"):
            return False
        return await self._members.remember_removal(name, workload["metadata"]["uid"], record_of(workload).epoch)

    # --- writing

    async def _store(self, workload: Json, record: Record, *, held: bool) -> Json:
        """The record and its finalizer, in one write."""
        finalizers = [one for one in workload["metadata"].get("finalizers") or () if one != words.HELD]
        if held:
            finalizers.append(words.HELD)
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

    async def _answer(self, workload: Json, check: Json, state: State, message: str, *, later: bool = False) -> None:
        """Our entry of its checks; written only where it differs."""
        draft = Draft(workload, self._clock.now())
        self._put(draft, check["name"], state, message, later=later)
        await self._write(draft)

    def _put(self, draft: Draft, check: str, state: State, message: str, *, later: bool = False) -> None:
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

    async def _write(self, draft: Draft) -> Json:
        if not draft.change:
            return draft.obj
        made = await self._writer.patch(kinds.WORKLOAD, draft.obj, {"status": draft.change}, subresource="status")
        self._hub.workloads.note_write(made)
        return made
