"""The AppWrapper controller put together: a source of workloads for the planning loop.

`intake` turns changes into facts, `reconciler` brings one AppWrapper to where its status says; the loop that plans is
`controllers/planning`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapper
from shoal.api.codec import typed
from shoal.api.gang import GROWTH
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.controllers.appwrapper.caches import WrapperCaches
from shoal.controllers.appwrapper.context import WrapperContext
from shoal.controllers.appwrapper.destinations import Destinations, stored_round
from shoal.controllers.appwrapper.dispatch import Objects
from shoal.controllers.appwrapper.facts import AppWrapperFacts
from shoal.controllers.appwrapper.intake import Address, Intake
from shoal.controllers.appwrapper.metrics import AppWrapperMetrics
from shoal.controllers.appwrapper.quota import QuotaStatus, consumers
from shoal.controllers.appwrapper.reconciler import AppWrapperReconciler
from shoal.controllers.appwrapper.settings import AppWrapperSettings
from shoal.controllers.appwrapper.store import Store
from shoal.controllers.appwrapper.subjects import wrapper_subject
from shoal.controllers.appwrapper.wrapped import gang_key, owner_reference
from shoal.controllers.planning import NodeRequester, PlanningLoop
from shoal.controllers.planning.cluster_line import ClusterLine
from shoal.controllers.planning.growth import Growth
from shoal.controllers.planning.loop_guard import LoopGuard
from shoal.controllers.planning.observations import Observation, Observations
from shoal.controllers.planning.other_clusters import OtherClusters, StoredRound
from shoal.controllers.planning.pods import SeenPod
from shoal.controllers.planning.questions.subject import QuestionSubject
from shoal.engine.model import Amounts, Gang, Plan, Shortfall
from shoal.kube.cache import Cache
from shoal.kube.runtime import Controller

log = logging.getLogger(__name__)

QUOTA_PAUSE = 1.0
"""Least seconds between two rounds of quota status."""


CHOICE_PAUSE = 0.02
"""Seconds between a change in another cluster and the next look at gangs that could go there."""


class AppWrapperController:
    """A `WorkloadSource` of the planning loop that it joins."""

    def __init__(
        self,
        planning: PlanningLoop,
        settings: AppWrapperSettings | None = None,
        elsewhere: OtherClusters | None = None,
    ) -> None:
        """`elsewhere`: other clusters, to which AppWrappers of v1beta1 go where there is room for them."""
        self.settings = settings = settings or AppWrapperSettings()
        self.planning = planning
        self.clock = planning.clock
        self.metrics = AppWrapperMetrics()
        self.caches = WrapperCaches(planning.client, self.clock)
        self.queue: Controller[Address] = Controller("appwrapper", self._reconcile, workers=64, clock=self.clock)
        self._guard = LoopGuard(self.clock)
        facts = AppWrapperFacts(settings, planning.stamps.creator)
        writer = planning.writes.writer("appwrapper")
        self.context = WrapperContext(
            settings=settings,
            clock=self.clock,
            planning=planning,
            caches=self.caches,
            facts=facts,
            intake=Intake(planning, self.caches, facts, self.queue.enqueue, self._gone),
            store=Store(planning.client, self.caches, writer),
            objects=Objects(planning.writes, as_creator=settings.create_as_creator, creator=planning.stamps.creator),
            recorder=planning.recorder,
            metrics=self.metrics,
            elsewhere=elsewhere,
            observations=Observations(),
        )
        self._destinations: Destinations | None = None
        self._choices_due = asyncio.Event()
        if elsewhere is not None:
            self._destinations = Destinations(elsewhere, planning, self.caches.wrapper_by_uid)
            self.context.intake.destinations = self._destinations
            elsewhere.subscribe(self._room_changed, self.context.intake.wake_gang, self._stored_round)
        self.reconciler = AppWrapperReconciler(self.context)
        self._quota = QuotaStatus(writer, self.caches, planning.engine)
        self._quota_due = asyncio.Event()
        self._growth = Growth(writer, planning.caches.pods, GROWTH, self._growth_waits)
        self.metrics.measure(self._used)
        planning.join(self)

    def _stored_round(self, uid: str) -> StoredRound | None:
        if not self.planning.ready.is_set():
            return StoredRound("unsure")
        wrapper = self.caches.wrapper_by_uid(uid)
        return stored_round(wrapper) if wrapper is not None else None

    # --- a source of workloads

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.caches.run())
            await self.planning.ready.wait()  # nothing is looked at before all was read, and planned once
            tasks.create_task(self.queue.run())
            tasks.create_task(self._check_now_and_then())
            tasks.create_task(self.reconciler.messages.keep_true())
            tasks.create_task(self._publish_quota())
            tasks.create_task(self._growth.run(self.clock))
            if self._destinations is not None and self.context.elsewhere is not None:
                self.context.elsewhere.everything_is_read()
                tasks.create_task(self._choose_again(self._destinations.line))

    async def synced(self) -> None:
        await self.caches.synced()

    def subscribe(self) -> None:
        self.context.intake.subscribe()
        self._growth.subscribe()

    def gang_of(self, namespace: str, mark: str, owners: Sequence[str]) -> str:
        return self.caches.gang_of(namespace, mark, owners)

    def known_as(self, key: str) -> str:
        return key

    def pods_changed(self, gang: str, after: float) -> None:
        self.context.intake.wake_gang(gang, after)

    def observed(self, observation: Observation) -> None:
        self.context.intake.observed(observation)

    def planned(self, plan: Plan, touched: Sequence[str]) -> None:
        if self._destinations is not None and self._destinations.planned(plan):
            self._choices_due.set()
        for key in touched:
            address = self.context.intake.addresses.get(key)
            if address is not None:
                self.queue.enqueue(address)
        self.reconciler.messages.changed()
        self._quota_due.set()  # an end that starts no other gang frees quota too; only differences are written
        self._growth.planned(plan)

    def keeps(self, request: Json) -> bool:
        return False

    def requester(self, uid: str) -> NodeRequester | None:
        wrapper = self.caches.wrapper_by_uid(uid)
        if wrapper is None:
            return None
        return NodeRequester(
            gang=gang_key(wrapper),
            generation=wrapper.metadata.generation,
            owner=owner_reference(wrapper),
            about=wrapper,
            update=lambda: self.context.intake.update(wrapper),
        )

    def consumers(self, group: str, kind: str, key: Key) -> Mapping[str, Sequence[str]] | None:
        for one, cache in self.caches.subtrees.items():
            subtree = cache.get(key) if one.kind == kind and group in ("", one.group) else None
            if subtree is not None:
                return consumers(subtree, self.planning.engine.quota_use())
        return None

    def subject(self, group: str, kind: str, key: Key) -> QuestionSubject | None:
        if kind != kinds.APP_WRAPPER.kind:
            return None
        found = wrapper_subject(self.caches, self.planning, group, key)
        if found is None or self._destinations is None or not self._destinations.line.doubt(found.uid):
            return found
        self.context.intake.choose_again([found.uid])  # what other clusters say of it may be older than the question
        self.planning.replan_now()
        return wrapper_subject(self.caches, self.planning, group, key)

    def draft(self, manifest: Json, now: int) -> Gang | None:
        if manifest.get("kind") != kinds.APP_WRAPPER.kind:
            return None
        wrapper = typed(manifest, AppWrapper)
        gang = self.context.facts.gang(wrapper, now)
        self.context.facts.forget(wrapper.metadata.uid)
        return gang if wrapper.spec.suspend else msgspec.structs.replace(gang, state="waiting")

    def collect(self) -> Iterator[Any]:
        return self.metrics.collect()

    def watched(self) -> list[Cache[Any]]:
        return self.caches.all

    # --- its own rounds

    async def _check_now_and_then(self) -> None:
        """Events wake AppWrappers long before; this finds what they did not: admitted and not started, or undecided."""
        while True:
            await self.clock.sleep(self.settings.backoff_seconds)
            for cache in self.caches.wrappers.values():
                for wrapper in cache.list():
                    unstarted = wrapper.status.state in ("", "Pending") and not wrapper.status.is_dispatched
                    if wrapper.status.can_run and unstarted:
                        key = (wrapper.metadata.namespace, wrapper.metadata.name)
                        log.info("AppWrapper %s/%s is admitted and not started yet; looking again", *key)
                        self.context.intake.wake_gang(wrapper.metadata.uid)
            if self._destinations is not None:
                self.context.intake.choose_again(self._destinations.line.refresh())
            self.planning.plan_again()

    async def _publish_quota(self) -> None:
        while True:
            await self._quota_due.wait()
            self._quota_due.clear()
            if any(len(cache) for cache in self.caches.subtrees.values()) and not await self._quota.publish():
                self._quota_due.set()
            await self.clock.sleep(QUOTA_PAUSE)

    def _room_changed(self, cluster: str) -> None:
        if self._destinations is not None:
            self._destinations.line.changed(cluster)
            self._choices_due.set()

    async def _choose_again(self, line: ClusterLine) -> None:
        """What changes in other clusters within a moment is looked at once."""
        await self.planning.ready.wait()
        pause = CHOICE_PAUSE
        while True:
            await self._choices_due.wait()
            await self.clock.sleep(pause)
            self._choices_due.clear()
            began = self.clock.monotonic()
            self.context.intake.choose_again(line.look())
            pause = max(CHOICE_PAUSE, 4 * (self.clock.monotonic() - began))  # where very many wait

    def _growth_waits(self, pod: SeenPod, missing: tuple[Shortfall, ...]) -> None:
        wrapper = self.caches.wrapper_by_uid(self.planning.cluster.gang_of(pod))
        if wrapper is not None:
            lacks = "; ".join(one.message for one in missing)
            text = f"Pod {pod.metadata.name} is more than was admitted and waits for quota: {lacks}"
            self.context.tell_people(wrapper, "Normal", "GrowthWaits", text)

    async def _reconcile(self, address: Address) -> float | None:
        await self._guard.count(address)
        try:
            return await self.reconciler.reconcile(address)
        finally:
            self.planning.observe(self.context.observations.take())

    def _gone(self, address: Address, wrapper: AppWrapper) -> bool:
        self._quota_due.set()
        return self.reconciler.forget(address, wrapper)

    def _used(self) -> Amounts:
        used: Amounts = {}
        engine = self.planning.engine
        for key in self.context.intake.addresses:
            gang = engine.gang(key)
            if gang is not None and gang.state in ("admitted", "stopping"):
                for pod in self.planning.pods(gang.uid):
                    if pod.is_live and pod.fact.node:
                        for resource, amount in pod.fact.requests.items():
                            used[resource] = used.get(resource, 0) + amount
        return used
