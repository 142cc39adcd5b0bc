"""The AppWrapper controller put together: watch → facts → plan → writes → watch.

`intake` turns changes into facts, `planner` keeps decisions until they are stored, `reconciler` brings one AppWrapper
to where its status says, and this loop makes one plan for all changes that came together.
"""

from __future__ import annotations

import asyncio
import logging

from shoal.api.appwrapper import AppWrapper
from shoal.api.meta import Json
from shoal.controllers.appwrapper.dispatch import Objects
from shoal.controllers.appwrapper.facts import Facts
from shoal.controllers.appwrapper.growth import Growth
from shoal.controllers.appwrapper.house import House
from shoal.controllers.appwrapper.intake import Address, Intake
from shoal.controllers.appwrapper.metrics import Metrics
from shoal.controllers.appwrapper.planner import Planner
from shoal.controllers.appwrapper.quota import QuotaStatus
from shoal.controllers.appwrapper.reconciler import Reconciler
from shoal.controllers.appwrapper.settings import AppWrapperSettings
from shoal.controllers.appwrapper.store import Store
from shoal.controllers.appwrapper.world import World
from shoal.controllers.planning.lacking import Lacking, lacking
from shoal.controllers.planning.loop_guard import LoopGuard
from shoal.controllers.planning.provisioning import NodeProvisioning
from shoal.controllers.planning.source import Guest
from shoal.engine import Engine, Settings
from shoal.engine.model import Amounts, Gang, Plan
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.events import Recorder
from shoal.kube.runtime import Controller
from shoal.kube.writes import Writes

log = logging.getLogger(__name__)

QUOTA_PAUSE = 1.0
"""Least seconds between two rounds of quota status."""


GROWTH_PAUSE = 5.0
"""Seconds until a gate that could not be opened is tried again."""


class AppWrapperController:
    """One engine, one work queue. `run` until cancelled."""

    def __init__(
        self,
        client: Client,
        settings: AppWrapperSettings,
        clock: Clock | None = None,
        guest: Guest | None = None,
        *,
        wrappers: bool = True,
    ) -> None:
        """Without `wrappers` it only hosts the guest: it keeps the ledger and makes the plans."""
        self.settings = settings
        self.guest = guest
        self.clock: Clock = clock or SystemClock()
        self.metrics = Metrics()
        self.world = World(client, self.clock, settings.stamps, wrappers=wrappers)
        self.planner = Planner(Engine(engine_settings(settings), guest.queue_settings if guest is not None else None))
        self.recorder = Recorder(client, "shoal", clock=self.clock)
        self.queue: Controller[Address] = Controller("appwrapper", self._reconcile, workers=64, clock=self.clock)
        self._guard = LoopGuard(self.clock)
        self._changed = asyncio.Event()
        facts = Facts(settings, self.world.stamps.creator)
        writes = Writes(client, in_flight=64, clock=self.clock)
        intake = Intake(self.world, facts, self.planner, self.clock, self.queue.enqueue, self.replan, self._gone)
        self.house = House(
            settings=settings,
            clock=self.clock,
            world=self.world,
            facts=facts,
            planner=self.planner,
            intake=intake,
            store=Store(client, self.world, writes),
            objects=Objects(client, writes, as_creator=settings.create_as_creator),
            recorder=self.recorder,
            metrics=self.metrics,
        )
        self.obtaining: NodeProvisioning | None = None
        if settings.obtain:
            self.obtaining = NodeProvisioning(
                self.world,
                self.planner,
                self.recorder,
                self.clock,
                intake.tell,
                self.replan,
                *((guest.keeps, guest.asker) if guest is not None else ()),
            )
            self.planner.overlay = self.obtaining.asked
        self.reconciler = Reconciler(self.house)
        self._quota = QuotaStatus(client, self.world, self.planner.engine)
        self._quota_due = asyncio.Event()
        self._growth = Growth(client, self.house)
        self._growth_due = asyncio.Event()
        self._wake: asyncio.Task[None] | None = None
        from shoal.controllers.appwrapper.leader import desk_of  # it knows all dialects, and so this module, too

        self.desk = desk_of(self, client)
        self._plans = 0
        self.metrics.measure(self._measured)
        if guest is not None:
            self.world.guest_gang, intake.pods_changed = guest.gang_of, guest.pods_changed
            self.world.guest_known_as = guest.known_as
            guest.join(self)

    async def run(self) -> None:
        """Nothing is decided before everything that a decision depends on was read once."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.world.run(self.house.intake.between_changed))
                await self.world.synced()
                if self.obtaining is not None:
                    known = asyncio.Event()
                    tasks.create_task(self.obtaining.run(known))
                    await known.wait()
                    self.obtaining.subscribe()
                if self.guest is not None:
                    tasks.create_task(self.guest.run())
                    await self.guest.synced()
                    self.guest.subscribe()
                self.house.intake.subscribe()
                self._growth.subscribe()
                self.plan()
                tasks.create_task(self.queue.run())
                tasks.create_task(self.desk.run())
                tasks.create_task(self._plan_on_change())
                tasks.create_task(self._check_now_and_then())
                tasks.create_task(self.reconciler.messages.keep_true())
                tasks.create_task(self._publish_quota())
                tasks.create_task(self._open_gates())
        finally:
            if self._wake is not None:
                self._wake.cancel()
            await self.recorder.close()

    def plan(self) -> Plan:
        plan = self.planner.plan(self.clock.now())
        self._plans += 1
        decided = [one.gang for part in (plan.admits, plan.preempts, plan.holds, plan.reseats) for one in part]
        if self.obtaining is not None:
            for obtain in plan.obtains:
                self.obtaining.wants(obtain)
        for key in decided:
            address = self.house.intake.addresses.get(key)
            if address is not None:
                self.queue.enqueue(address)
        self.reconciler.messages.changed()
        self._quota_due.set()  # an end that starts nobody frees quota too; only differences are written
        self._growth_due.set()
        if self.guest is not None:
            self.guest.planned(plan)
        if plan.unfinished:
            self._changed.set()
        if plan.wake_at:
            self._plan_at(plan.wake_at)
        return plan

    # --- the host of other dialects

    @property
    def engine(self) -> Engine:
        return self.planner.engine

    @property
    def turn(self) -> int:
        return self.reconciler.messages.turn

    def plan_again(self) -> None:
        """Ask for a plan though the engine was told nothing."""
        self._changed.set()

    def replan(self) -> None:
        """The engine was told something."""
        self.reconciler.messages.turn += 1
        self._changed.set()

    def replan_now(self) -> int:
        """Plan if anything changed since the last plan; returns the number of the plan."""
        if self._changed.is_set():
            self._changed.clear()
            self.plan()
        return self._plans

    def pods_left(self, gang: str) -> int:
        return sum(pod.is_live for pod in self.house.intake.pods(gang))

    def lacking(self, gang: str, wanted: int) -> Lacking | None:
        return lacking(self.house.intake.pods(gang), wanted)

    def look_for_pods(self, owner: str) -> None:
        self.house.intake.look_for_pods(owner)

    def asked(self, gang: Gang) -> Gang:
        return self.obtaining.asked(gang) if self.obtaining is not None else gang

    def look_at_asker(self, uid: str, generation: int) -> None:
        if self.obtaining is not None:
            self.obtaining.look(uid, generation)

    def look_at_booking(self, request: Json) -> None:
        if self.obtaining is not None:
            self.obtaining.bookings.look(request)

    async def _plan_on_change(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(0)  # let everything that arrived together become one plan
            self._changed.clear()
            self.plan()

    def _plan_at(self, moment: int) -> None:
        if self._wake is not None:
            self._wake.cancel()

        async def later() -> None:
            await self.clock.sleep(max(0.0, (moment - self.clock.now()) / 1_000_000))
            self._changed.set()

        self._wake = asyncio.get_running_loop().create_task(later())

    async def _check_now_and_then(self) -> None:
        """Events wake everyone long before; this finds what they did not: admitted and not started, or undecided."""
        while True:
            await self.clock.sleep(self.settings.backoff_seconds)
            for cache in self.world.wrappers.values():
                for wrapper in cache.list():
                    if wrapper.status.can_run and wrapper.status.state in ("", "Pending"):
                        key = (wrapper.metadata.namespace, wrapper.metadata.name)
                        log.info("AppWrapper %s/%s is admitted and not started yet; looking again", *key)
                        self.house.intake.wake_gang(wrapper.metadata.uid)
            self._changed.set()

    async def _publish_quota(self) -> None:
        while True:
            await self._quota_due.wait()
            self._quota_due.clear()
            if self.world_has_subtrees and not await self._quota.publish():
                self._quota_due.set()
            await self.clock.sleep(QUOTA_PAUSE)

    async def _open_gates(self) -> None:
        """After every plan, which goes first: who waits with a whole gang before who wants more."""
        while True:
            await self._growth_due.wait()
            self._growth_due.clear()
            if not await self._growth.open_gates():
                await self.clock.sleep(GROWTH_PAUSE)
                self._growth_due.set()

    @property
    def world_has_subtrees(self) -> bool:
        return any(len(cache) for cache in self.world.subtrees.values())

    async def _reconcile(self, address: Address) -> float | None:
        await self._guard.look(address)
        return await self.reconciler.reconcile(address)

    def _gone(self, address: Address, wrapper: AppWrapper) -> bool:
        self._quota_due.set()
        return self.reconciler.forget(address, wrapper)

    def _measured(self) -> tuple[int, Amounts, Amounts]:
        used: Amounts = {}
        for key in self.house.intake.addresses:
            gang = self.planner.engine.gang(key)
            if gang is not None and gang.state in ("admitted", "stopping"):
                for pod in self.house.intake.pods(gang.uid):
                    if pod.is_live and pod.fact.node:
                        for resource, amount in pod.fact.requests.items():
                            used[resource] = used.get(resource, 0) + amount
        return self.planner.engine.waiting, self.planner.engine.reserved, used


def engine_settings(settings: AppWrapperSettings) -> Settings:
    policy = "priority-slope" if settings.dynamic_priority and settings.policy == "priority" else settings.policy
    return Settings(
        policy=policy,
        preemption=settings.preemption,
        quota=settings.quota != "never",
        head_hold=int(settings.head_of_line_seconds * 1_000_000),
    )
