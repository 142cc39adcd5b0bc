"""A gang with quota is offered to other clusters until one admits it: which of them are asked, and what is stored.

The settings name a dispatcher: ours asks the cluster that the engine chose, and the next where that one does not admit
the gang in time; MultiKueue's ask all at once, or some more from time to time; any other is a controller that writes
`status.nominatedClusterNames`. Nothing here talks to another cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec

from shoal.api.kind import Key
from shoal.api.labels import CLUSTER_LOSS
from shoal.api.meta import Json
from shoal.api.objects import annotation, key_of
from shoal.controllers.multicluster.hub import Hub
from shoal.controllers.multicluster.lease import fence_seconds
from shoal.controllers.multicluster.loss import Loss, loss_policy
from shoal.controllers.multicluster.member import Member
from shoal.controllers.multicluster.members import Members
from shoal.controllers.multicluster.queued import QueuedPlaces
from shoal.controllers.multicluster.record import Record, record_of
from shoal.controllers.multicluster.records import Records
from shoal.controllers.multicluster.settings import ALL_AT_ONCE, INCREMENTAL, ClusterSettings
from shoal.controllers.queues.checks.draft import Draft
from shoal.controllers.queues.jobs import GangJob
from shoal.kube.clock import Clock
from shoal.kube.events import Recorder

log = logging.getLogger(__name__)
SECOND = 1_000_000
replace = msgspec.structs.replace


class AskedClusters(msgspec.Struct, frozen=True):
    """Clusters that are asked now; why the others are not; seconds until time alone changes that."""

    more: tuple[str, ...] = ()
    reasons: dict[str, str] = {}
    wait: float | None = None


class Offering:
    """`is_cleared(workload, name)`: is nothing of it in this cluster, or stored that it must go?"""

    def __init__(
        self,
        hub: Hub,
        members: Members,
        records: Records,
        queued: QueuedPlaces,
        recorder: Recorder,
        settings: ClusterSettings,
        clock: Clock,
        is_cleared: Callable[[Json, str], Awaitable[bool]],
    ) -> None:
        self._hub, self._members, self._records, self._queued = hub, members, records, queued
        self._recorder, self._settings, self._clock, self._is_cleared = recorder, settings, clock, is_cleared
        self.nowhere: set[Key] = set()
        """Workloads that hold quota, and that no cluster would start: each waits for room."""

    async def offer(self, workload: Json, check: Json, kind: GangJob, job: Json) -> float | None:
        """Those that are asked hold a copy, of which the first that is admitted wins."""
        names = self._hub.clusters_of(check["name"]) or ()
        usable = {
            name: member
            for name in names
            if (cluster := self._members.cluster(name)) is not None
            and self._members.takes_gangs(name, cluster)
            and (member := self._members.get(name)) is not None
        }
        workload = await self._take_back(workload, usable)
        record = record_of(workload)
        holding = self._members.holding(key_of(workload))
        keeping = [name for name in holding if name in usable and usable[name].holds_younger(workload)]
        if keeping:
            said = f"cluster {keeping[0]} holds a copy that this hub does not remember making; delete it there"
            await self._records.answer(workload, check, "Pending", said)
            return self._settings.refused_seconds
        if not record.on and any(self._members.is_unsure(name) for name in names):
            return self._settings.probe_seconds  # after a start: clusters that may hold a part of it are asked first
        if self._settings.chooses and not open_offers(record):
            self.nowhere.add(key_of(workload))  # before it is asked about: what changes meanwhile is not missed
        asked = self._asked(workload, check["name"], job, record, usable)
        if asked.more:
            self.nowhere.discard(key_of(workload))
        if not record.on:
            if not asked.more:
                return await self._nowhere(workload, check, names, usable, asked)
            if why := await self._hub.rights.refusal(kind.kind, job):
                await self._records.answer(workload, check, "Rejected", why)
                return None
            workload = await self._records.store(workload, self._next(record, workload, job, asked), held=True)
        elif asked.more:
            more = replace(record, on=(*record.on, *asked.more), asked=self._clock.now())
            workload = await self._records.store(workload, more, held=True)
        workload = await self._show_nominated(workload)
        winner = self._winner(workload, names, usable)
        if winner is not None:
            await self._choose(workload, check["name"], winner.name)
            return None
        record = record_of(workload)
        if self._settings.chooses and not open_offers(record):
            return await self._nowhere(workload, check, names, usable, asked)
        refused = [name for name in record.on if name not in usable or usable[name].refusal(workload)]
        if not self._settings.chooses and usable and len(refused) == len(record.on):
            await self._records.answer(workload, check, "Retry", self._told(workload, names, usable, {}), later=True)
            return None
        if check.get("message") or not self._settings.chooses or self._says_why(workload, usable):
            await self._records.answer(workload, check, "Pending", self._told(workload, names, usable, asked.reasons))
        return self._next_look(record, asked)

    def _says_why(self, workload: Json, usable: dict[str, Member]) -> bool:
        """Does one that is asked say why it does not start it yet? That it is asked, its nomination says."""
        members = [usable[name] for name in open_offers(record_of(workload)) if name in usable]
        return any(one.refusal(workload) or waits(one.copy_of(workload)) for one in members)

    def _next(self, record: Record, workload: Json, job: Json, asked: AskedClusters) -> Record:
        said = self._hub.queue_loss(workload)
        moves = self._loss(workload, job) == "move"
        fence = fence_seconds(self._settings, workload.get("spec") or {}) if moves else 0
        return record.next(self._clock.now(), asked.more, said, fence)

    def _loss(self, workload: Json, job: Json) -> Loss:
        return loss_policy((annotation(job, CLUSTER_LOSS), self._hub.queue_loss(workload)), self._settings.loss)

    # --- which clusters are asked

    def _asked(self, workload: Json, check: str, job: Json, record: Record, usable: dict[str, Member]) -> AskedClusters:
        if record.fence if record.on else self._loss(workload, job) == "move":  # only where a fence holds
            usable = {name: member for name, member in usable.items() if self._members.fences.holds(name)}
        fresh = [name for name in usable if name not in record.on]
        nominated = (workload.get("status") or {}).get("nominatedClusterNames") or ()
        if self._settings.chooses:
            if open_offers(record):
                return AskedClusters()
            if not record.on and (told := tuple(name for name in nominated if name in usable)):
                self._queued.keep_for(workload, told)
                return AskedClusters(told)
            said = {**(job["metadata"].get("annotations") or {}), CLUSTER_LOSS: self._loss(workload, job)}
            found = self._queued.nominate_again(workload, check, said)
            more = tuple(name for name in found.clusters if name in fresh)
            if more:
                self._queued.keep_for(workload, more)
            return AskedClusters(more, found.reasons)
        if self._settings.dispatcher == ALL_AT_ONCE:
            return AskedClusters(tuple(fresh))
        if self._settings.dispatcher != INCREMENTAL:
            return AskedClusters(tuple(name for name in fresh if name in nominated))
        left = record.last_asked / SECOND + self._settings.step_seconds - self._clock.now() / SECOND
        if record.on and left > 0 and fresh:
            return AskedClusters(wait=left)
        return AskedClusters(tuple(fresh[: self._settings.step_size]), wait=self._settings.step_seconds)

    async def _take_back(self, workload: Json, usable: dict[str, Member]) -> Json:
        """A cluster that is cordoned gives back what it was offered and what was not chosen yet; under our dispatcher
        also one that does not answer, refuses it or is too slow."""
        record = record_of(workload)
        leaving = {name for name in record.on if self._members.is_cordoned(name)}
        if self._settings.chooses:
            for name in open_offers(record):
                if why := self._gives_up(workload, record, name, usable.get(name)):
                    self._queued.refuse(workload["metadata"]["uid"], name, why)
                    leaving.add(name)
        if leaving - set(record.leaving):
            every = tuple(sorted(leaving | set(record.leaving)))
            workload = await self._records.store(workload, replace(record, leaving=every), held=True)
        record = record_of(workload)
        cleared = [name for name in record.leaving if await self._is_cleared(workload, name)]
        return await self._records.store(workload, record.without(*cleared), held=True) if cleared else workload

    def _gives_up(self, workload: Json, record: Record, name: str, member: Member | None) -> str:
        """Why this cluster, which was asked, does not get it; empty while it may."""
        if member is None:
            return "" if self._members.is_unsure(name) else self._members.trouble(name)
        if refusal := member.refusal(workload):
            return refusal
        copy = member.copy_of(workload)
        if copy is not None and Draft(copy, 0).is_true("Admitted"):
            return ""
        if self._time_left(record) > 0:
            return ""
        return f"it did not start it in {self._settings.admit_seconds:g} seconds: {waits(copy) or 'no answer'}"

    def _time_left(self, record: Record) -> float:
        return record.last_asked / SECOND + self._settings.admit_seconds - self._clock.now() / SECOND

    def _next_look(self, record: Record, asked: AskedClusters) -> float | None:
        return max(self._time_left(record), 0.1) if self._settings.chooses else asked.wait

    # --- what is stored

    async def _nowhere(
        self, workload: Json, check: Json, names: tuple[str, ...], usable: dict[str, Member], asked: AskedClusters
    ) -> float | None:
        """Nothing is asked. Chosen by the engine, it gives its quota back and waits for room, where its queue asks for
        that; else it waits here."""
        told = self._told(workload, names, usable, asked.reasons)
        if self._settings.chooses and self._queued.has_queue and names:
            await self._records.answer(workload, check, "Retry", told)
            return None
        await self._records.answer(workload, check, "Pending", told)
        return self._settings.refused_seconds if self._settings.chooses else asked.wait

    async def _show_nominated(self, workload: Json) -> Json:
        nominated = open_offers(record_of(workload))
        if list((workload.get("status") or {}).get("nominatedClusterNames") or ()) == nominated:
            return workload
        draft = Draft(workload, self._clock.now())
        draft.set("nominatedClusterNames", nominated or None)
        return await self._records.write(draft)

    def _winner(self, workload: Json, names: tuple[str, ...], usable: dict[str, Member]) -> Member | None:
        """The cluster that admitted it first; of two at the same second, the first in the configuration."""
        admitted = []
        offers = open_offers(record_of(workload))
        for at, name in enumerate(names):
            member = usable.get(name)
            copy = member.copy_of(workload) if member is not None and name in offers else None
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
        self._records.put(draft, check, "Ready", said)
        await self._records.write(draft)
        if self._settings.chooses:
            self._queued.keep_for(workload, (cluster,))
        self._recorder.event(workload, "Normal", "MultiKueue", said)
        log.info("%s goes to cluster %s", key_of(workload), cluster)

    def _told(self, workload: Json, names: tuple[str, ...], usable: dict[str, Member], reasons: dict[str, str]) -> str:
        """Why no cluster has taken it yet, cluster by cluster."""
        if not names:
            return "the check names no clusters: see its MultiKueueConfig"
        offers = open_offers(record_of(workload))
        parts = [reasons[""]] if "" in reasons else []
        for name in names:
            member = usable.get(name)
            if member is None:
                parts.append(f"{name}: {self._members.trouble(name)}")
            elif name in offers:
                refusal = member.refusal(workload)
                parts.append(f"{name}: {refusal or waits(member.copy_of(workload)) or 'asked'}")
            else:
                parts.append(f"{name}: {reasons.get(name) or 'not asked'}")
        return "; ".join(parts)


def open_offers(record: Record) -> list[str]:
    """Clusters that are asked and may still take it."""
    return [name for name in record.on if name not in record.leaving]


def waits(copy: Json | None) -> str:
    """What a copy says of why it is not admitted."""
    draft = Draft(copy or {"metadata": {}}, 0)
    return draft.message("Admitted") if draft.is_true("QuotaReserved") else draft.message("QuotaReserved")
