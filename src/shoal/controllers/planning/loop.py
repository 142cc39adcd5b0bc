"""The planning loop: it owns the engine, makes one plan for all changes that came together, for every source at once.

watch → cache → facts → plan → writes → watch. Sources (`source.py`) update what is stored of their gangs, the shared
caches bring nodes and pods, `decisions` keeps what is decided and not stored yet, `provisioning` requests nodes for
gangs that wait. Nothing is decided before everything that a decision depends on was read once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shoal.api.kind import Key
from shoal.api.kinds import POD
from shoal.api.meta import Json
from shoal.controllers.planning.caches import SharedCaches
from shoal.controllers.planning.cluster_facts import ClusterFacts
from shoal.controllers.planning.decision_log import HOLDING, DecisionLog
from shoal.controllers.planning.decisions import Decisions
from shoal.controllers.planning.history.log_keeper import GangName, LogKeeper, Whose
from shoal.controllers.planning.history.log_store import LogStore
from shoal.controllers.planning.history.notices import Notices, NoticeSettings
from shoal.controllers.planning.history.recorder import GangHistory
from shoal.controllers.planning.history.records import GangFacts
from shoal.controllers.planning.history.store import HistoryStore
from shoal.controllers.planning.lacking import Lacking, lacking
from shoal.controllers.planning.metrics import PlanningMetrics
from shoal.controllers.planning.observations import (
    CalledOff,
    NotKept,
    NotStored,
    Observation,
    ReservationRefused,
    WriteStored,
    WriteUnknown,
)
from shoal.controllers.planning.pace import STOCK, PlanPace
from shoal.controllers.planning.pods import GangPod, SeenPod
from shoal.controllers.planning.preemptors import Preemptors
from shoal.controllers.planning.provisioning import NodeProvisioning
from shoal.controllers.planning.questions.alone import subject_alone
from shoal.controllers.planning.questions.desk import Desk
from shoal.controllers.planning.questions.subject import QuestionSubject
from shoal.controllers.planning.settings import PlanningSettings
from shoal.controllers.planning.source import WorkloadSource
from shoal.controllers.planning.stamps import Stamps
from shoal.engine import Engine
from shoal.engine.model import Gang, Plan
from shoal.kube import tracing
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock, sleep_or
from shoal.kube.events import Recorder
from shoal.kube.writes import Writes

log = logging.getLogger(__name__)

RAY_MAKERS = ("RayJob", "RayCluster", "Ray", "RayService", "AppWrapper")


class PlanningLoop:
    """One engine for all sources that `join`; then `run` until cancelled."""

    def __init__(
        self,
        client: Client,
        settings: PlanningSettings | None = None,
        clock: Clock | None = None,
        writes: Writes | None = None,
        history: HistoryStore | None = None,
        notices: NoticeSettings | None = None,
    ) -> None:
        """`writes` is the process's; without one the loop and its sources are alone and share their own. `history`:
        where rounds of gangs are kept, and their logs; None: they are not. `notices`: what is
        allowed to be told of them by HTTP."""
        self.client = client
        self.settings = settings or PlanningSettings()
        self.clock: Clock = clock or SystemClock()
        self.writes = writes or Writes(client, clock=self.clock)
        self.caches = SharedCaches(client, self.clock, self.settings.stamps, self.settings.record_namespace)
        self.engine = Engine(self.settings.decisions, self.settings.queues)
        self.decisions = Decisions()
        self.decision_log = DecisionLog()
        self._preemptors = Preemptors(self.engine.uids)
        telling = Notices(notices, self.clock) if notices is not None else None
        self.history = GangHistory(history, self.clock, telling) if history is not None else None
        self.logs: LogKeeper | None = None
        if history is not None and self.history is not None and history.keep_logs:
            self.logs = LogKeeper(client, self.history, LogStore(history), self.clock, self._gang_name)
        self.recorder = Recorder(client, "shoal", clock=self.clock)
        self.sources: list[WorkloadSource] = []
        """In the order in which a pod is offered to them. A later one may hold objects of an earlier one in its queues:
        it is told first what is stored, and answers first when one is asked about."""
        self.cluster = ClusterFacts(
            self.engine, self.caches, self.clock, self.settings.node_health, self.sources, self.replan
        )
        self.provisioning: NodeProvisioning | None = None
        if self.settings.provisioning:
            self.provisioning = NodeProvisioning(
                self.engine, self.caches, self.sources, self.writes, self.recorder, self.clock, self.replan
            )
        self.desk = Desk(self.writes, self.clock, self)
        self.metrics = PlanningMetrics(self.engine, self.sources, self.decision_log)
        self.turn = 0
        """Counts what the engine was told."""
        self._plans = 0
        self.pace = PlanPace()
        self.ready = asyncio.Event()
        """Set after the first plan, which is made when everything was read."""
        self._changed = asyncio.Event()
        self._stock_spent = asyncio.Event()
        """Set when few decisions are left to be stored."""
        self._wake: asyncio.Task[None] | None = None
        self._warned: frozenset[str] = frozenset()

    def join(self, source: WorkloadSource) -> None:
        """To be called before `run`."""
        self.sources.append(source)

    async def run(self) -> None:
        began = self.clock.monotonic()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.caches.run(self.cluster.owner_changed))
                for source in self.sources:
                    tasks.create_task(source.run())
                await self._synced(tasks)
                for source in reversed(self.sources):
                    source.subscribe()
                self.cluster.subscribe()
                await self._keep_logs(tasks)
                self.plan()
                self.metrics.took_over(self.clock.monotonic() - began)
                self.ready.set()
                tasks.create_task(self.desk.run())
                if self.history is not None:
                    tasks.create_task(self.history.run())
                    if self.history.notices is not None:
                        tasks.create_task(self.history.notices.run())
                tasks.create_task(self._plan_on_change())
        finally:
            if self._wake is not None:
                self._wake.cancel()
            await self.recorder.close()
            if self.history is not None:
                await self.history.close()

    async def _keep_logs(self, tasks: asyncio.TaskGroup) -> None:
        if self.logs is not None:
            await self.logs.begin()
            self.caches.pods.subscribe(self.logs.changed)
            tasks.create_task(self.logs.run())

    def keeper_for(self, client: Client, whose: Whose) -> LogKeeper | None:
        """One for pods of another cluster, whose logs are kept beside those of this one; None: none are kept."""
        return self.logs.beside(client, whose) if self.logs is not None else None

    def _gang_name(self, pod: SeenPod) -> GangName | None:
        """None for a pod of no gang. A submitter is no pod of its Ray job's gang, and is of interest all the same."""
        made = GangName(*self.caches.maker(pod))
        return made if made.kind in RAY_MAKERS or self.cluster.gang_of(pod) else None

    async def _synced(self, tasks: asyncio.TaskGroup) -> None:
        await self.caches.synced()
        if self.provisioning is not None:
            known = asyncio.Event()
            tasks.create_task(self.provisioning.run(known))
            await known.wait()
        await asyncio.gather(*(source.synced() for source in self.sources))
        if self.provisioning is not None:
            self.provisioning.subscribe()

    # --- facts, from the sources

    def update(self, gang: Gang, remembered: Callable[[], GangFacts] | None = None) -> None:
        """What is stored of a gang; a decision about it that is being written stays in force until it is stored.
        `remembered`: what history keeps of it; None for a gang that another source tells of."""
        if self.history is not None and remembered is not None:
            self.history.seen(gang, remembered)
        gang = self._preemptors.resolved(gang)
        self.decisions.settle(gang)
        self._note_stock()
        self.decision_log.told(gang, self.engine.gang(gang.key), self.clock.monotonic())
        assumed = self.decisions.assumed(gang)
        if self.provisioning is not None:
            assumed = self.provisioning.with_request(assumed)
        self.engine.update(assumed)
        self.replan()
        for earlier in self._preemptors.learnt(gang):
            self.update(earlier)

    def update_fact(self, fact: Any) -> None:
        """Anything else that the engine counts with: a queue, a flavor, a quota tree, a namespace."""
        self.engine.update(fact)
        self.replan()

    def remove_fact(self, key: str) -> None:
        self.engine.remove(key)
        self.replan()

    def forget(self, key: str, uid: str, *, keep_room: bool = False) -> None:
        """A gang is gone; `keep_room`: its pods are counted as its own until they end."""
        if self.history is not None:
            self.history.gone(uid)
        held = self.engine.gang(key)
        self.decisions.forget(key, uid)
        self._note_stock()
        self.decision_log.gone(key, uid, held is not None and held.state in HOLDING, self.clock.monotonic())
        self._preemptors.forget(key, uid)
        self.engine.remove(key)
        if keep_room and held is not None and held.uid == uid:
            self.cluster.gang_gone(held)
        self.replan()

    def settle(self, key: str, uid: str) -> None:
        """A gang that was told to be finished is over for good, and no pod is left of it: there may be very many, and
        nothing is decided about them. Should it be told again, all is as before."""
        self._preemptors.forget(key, uid)
        self.engine.remove(key)

    def refresh_requests(self, uid: str, generation: int) -> None:
        """The gang with this UID is not what it was: nodes may have been requested for it."""
        if self.provisioning is not None:
            self.provisioning.refresh(uid, generation)

    def refresh_booking(self, request: Json) -> None:
        """What keeps the room that this ProvisioningRequest has booked may have changed."""
        if self.provisioning is not None:
            self.provisioning.bookings.refresh(request)

    def observe(self, observations: Iterable[Observation]) -> None:
        """What a source's reconcilers have learnt: decisions follow, then the source updates what it concerns."""
        for one in observations:
            match one:
                case WriteUnknown():
                    self.decisions.doubt(one.gang)
                case WriteStored():
                    self.decisions.believe(one.gang)
                case NotStored() | NotKept():
                    self.decisions.withdraw(one.gang)
                    self.decision_log.withdrawn(one.gang)
                case ReservationRefused():
                    self.decisions.refuse(one.gang, one.until)
                    self.decision_log.withdrawn(one.gang)
                case CalledOff():
                    self.decisions.call_off(one.gang)
                    self.decision_log.withdrawn(one.gang)
            for source in self.sources:
                source.observed(one)
        self._note_stock()

    # --- pods of a gang, by its UID

    def pods(self, gang: str) -> list[GangPod]:
        return self.cluster.pods(gang)

    def pods_left(self, gang: str) -> int:
        """How many have not ended."""
        return sum(pod.is_live for pod in self.cluster.pods(gang))

    def lacking(self, gang: str, wanted: int) -> Lacking | None:
        """Those without a node, of a gang that should have so many pods."""
        return lacking(self.cluster.pods(gang), wanted)

    # --- plans

    def replan(self) -> None:
        """The engine was told something: ask for a plan. What comes together becomes one plan."""
        self.turn += 1
        self._changed.set()

    def plan_again(self) -> None:
        """Ask for a plan though the engine was told nothing."""
        self._changed.set()

    def replan_now(self) -> int:
        """Plan if anything changed since the last plan; returns the number of the plan."""
        if self._changed.is_set():
            self._changed.clear()
            self.plan()
        return self._plans

    def plan(self) -> Plan:
        now, began = self.clock.now(), self.clock.monotonic()
        most = self.pace.most(self.engine.crowd, self.decisions.unstored, self.decisions.stored)
        plan = self.engine.plan(now, most)
        ended = self.clock.monotonic()
        self.metrics.planned(ended - began, bool(plan.admits or plan.reservations))
        self.decision_log.decided(plan, now, ended)
        decided = {"reserved": plan.reservations, "admitted": plan.admits, "preempted": plan.preempts}
        counts = {f"shoal.{verb}": len(found) for verb, found in decided.items()}
        if any(counts.values()):
            tracing.past("plan", ended - began, lambda: counts)
        self._plans += 1
        for warning in plan.warnings:
            if warning not in self._warned:
                log.warning("%s", warning)
        self._warned = frozenset(plan.warnings)
        touched = self.decisions.planned(plan, now)
        if self.provisioning is not None:
            for obtain in plan.obtains:
                self.provisioning.wants(obtain)
        for source in self.sources:
            source.planned(plan, touched)
        if plan.unfinished:
            self._changed.set()
        if plan.wake_at:
            self._plan_at(plan.wake_at)
        return plan

    async def _plan_on_change(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(0)  # let everything that arrived together become one plan
            if left := self.pace.left(self.clock.monotonic(), self.engine.crowd, self.engine.standing):
                await self.clock.sleep(left)
            if left := self.pace.left_with_stock(self.clock.monotonic(), self.engine.crowd):
                await self._while_in_stock(left)
            self._changed.clear()
            began = self.clock.monotonic()
            plan = self.plan()
            starts = max(len(plan.admits), len(plan.reservations))
            self.pace.planned(began, self.clock.monotonic(), self.engine.crowd, starts)

    async def _while_in_stock(self, seconds: float) -> None:
        """Until few decisions are left to be stored, or so long."""
        self._stock_spent.clear()
        self._note_stock()
        if not self._stock_spent.is_set():
            await sleep_or(self._stock_spent, self.clock, seconds)

    @property
    def is_behind(self) -> bool:
        """Are many decisions yet to be stored?"""
        return self.decisions.unstored > STOCK

    def _note_stock(self) -> None:
        if not self._stock_spent.is_set() and not self.is_behind:
            self._stock_spent.set()

    def _plan_at(self, moment: int) -> None:
        if self._wake is not None:
            self._wake.cancel()

        async def later() -> None:
            await self.clock.sleep(max(0.0, (moment - self.clock.now()) / 1_000_000))
            self._changed.set()

        self._wake = asyncio.get_running_loop().create_task(later())

    # --- questions

    @property
    def stamps(self) -> Stamps:
        return self.caches.stamps

    def watched(self) -> list[Cache[Any]]:
        """Everything that a decision depends on."""
        return [*self.caches.all, *(cache for source in self.sources for cache in source.watched())]

    def known_as(self, key: str) -> str:
        """What people call the gang with this key, or what made the pod with it."""
        if key.startswith(f"{POD.kind}/"):
            return self.caches.made_pod(key)
        return next((name for one in self.sources if (name := one.known_as(key)) != key), key)

    def consumers(self, group: str, kind: str, key: Key) -> Mapping[str, Sequence[str]] | None:
        found = (source.consumers(group, kind, key) for source in self.sources)
        return next((one for one in found if one is not None), None)

    def draft(self, manifest: Json) -> Gang | None:
        """The gang that an object would be that is not stored; None where no source would plan it."""
        now = self.clock.now()
        return next((gang for one in reversed(self.sources) if (gang := one.draft(manifest, now)) is not None), None)

    async def subject(self, group: str, kind: str, key: Key) -> QuestionSubject | None:
        """A source's word comes before what the pods of an object tell."""
        for source in reversed(self.sources):
            found = source.subject(group, kind, key)
            if found is not None:
                return found
        return await subject_alone(self.client, group, kind, key, self.caches.pods_below)
