"""The member's side of hubs' leases: what a hub sent as one that moves is stopped once that hub is not heard.

It runs in every Shoal and does nothing until a hub has made a Lease here. It asks four times in a lease time; the lease
holds for that time from the question that was granted last, on this machine's own monotonic clock. One that starts
again goes by when its question was asked, as stored, by this cluster's clock. What it stops it marks: copies of
AppWrappers with the gate, which the AppWrapper controller obeys, Workloads as not active. It never deletes anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from random import Random
from typing import Any

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.labels import FENCED, GATED, KUEUE_MULTIKUEUE_ORIGIN
from shoal.api.meta import Json
from shoal.api.objects import annotation, key_of, label
from shoal.controllers.multicluster import words
from shoal.controllers.multicluster.lease import is_fenced, moment, question
from shoal.controllers.multicluster.wrapper_copies import ENDED, KINDS
from shoal.controllers.planning.caches import UNREADABLE
from shoal.controllers.queues.checks.draft import Draft
from shoal.kube.awaited import Awaited
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.errors import Conflict, NotFound
from shoal.kube.runtime import Controller
from shoal.kube.writes import Writes

log = logging.getLogger(__name__)
SECOND = 1_000_000
ASKS = 4
"""Questions in one lease time."""
REMEMBERED = 4 * ASKS
CHANCE = 1 / 8
"""Share of the lease time in which a hub may answer one that starts again, before anything stops."""


class _Questions:
    """What was asked of one hub, and until when its lease holds."""

    def __init__(self) -> None:
        self.asked: dict[str, float] = {}
        """When each was asked, on this process's monotonic clock."""
        self.next = 0.0
        self.until: float | None = None
        """None: nothing was looked at yet."""
        self.told = False


class HubLeases:
    """`namespace`: of Shoal here, where hubs make their Leases."""

    def __init__(
        self,
        client: Client,
        namespace: str = "shoal-system",
        clock: Clock | None = None,
        writes: Writes | None = None,
        random: Random | None = None,
    ) -> None:
        self._clock: Clock = clock or SystemClock()
        self._random = random or Random()
        self._writer = (writes or Writes(client, clock=self._clock)).writer("leases")
        self._awaited = Awaited()
        self.leases = self._cache(client, kinds.LEASE, words.HUB, namespace=namespace)
        self._copies: dict[Kind, Cache[Json]] = {
            **{kind: self._cache(client, kind, words.HUB) for kind in KINDS},
            kinds.WORKLOAD: self._cache(client, kinds.WORKLOAD, KUEUE_MULTIKUEUE_ORIGIN),
        }
        self._hubs: dict[str, _Questions] = {}
        self.queue: Controller[str] = Controller("hub leases", self.reconcile, workers=1, clock=self._clock)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.leases.run())
            await self._first_lease()
            for cache in self._copies.values():
                tasks.create_task(cache.run())
            await self._awaited.known(self._copies.values())
            for cache in self._copies.values():
                cache.subscribe(self._copy_changed)
            self.leases.subscribe(lambda change: self.queue.enqueue(_hub(change.new or change.old)))
            for lease in self.leases.list():
                self.queue.enqueue(_hub(lease))
            tasks.create_task(self.queue.run())

    async def _first_lease(self) -> None:
        found = asyncio.Event()
        end = self.leases.subscribe(lambda change: found.set())
        await found.wait()
        end()

    def _copy_changed(self, change: Change) -> None:
        if change.new is not None and is_fenced(change.new):
            self.queue.enqueue(_hub(change.new))

    # --- one hub

    async def reconcile(self, hub: str) -> float | None:
        """Ask again when it is time, and stop what must not run any more. Level-triggered."""
        lease = next((one for one in self.leases.list() if _hub(one) == hub), None)
        state = self._hubs.setdefault(hub, _Questions())
        seconds = float(((lease or {}).get("spec") or {}).get("leaseDurationSeconds") or 0)
        until = self._learn(state, annotation(lease, words.GRANTED) if lease is not None else "", seconds)
        if until <= self._clock.monotonic():
            await self._stop(hub, state)
        else:
            state.told = False
        if lease is None or not seconds:
            return None
        if state.next <= self._clock.monotonic():
            await self._ask(lease, state, seconds)
        now = self._clock.monotonic()
        return min([seconds / ASKS, *(at - now for at in (until, state.next) if at > now)])

    def _learn(self, state: _Questions, granted: str, seconds: float) -> float:
        """Until when the lease holds."""
        if state.until is None:
            asked = moment(granted)  # by this cluster's Shoal, before it started again
            left = asked / SECOND + seconds - self._clock.now() / SECOND if asked is not None else 0.0
            state.until = self._clock.monotonic() + max(min(left, seconds), seconds * CHANCE)
        elif granted in state.asked:
            state.until = max(state.until, state.asked[granted] + seconds)
        return state.until

    async def _ask(self, lease: Json, state: _Questions, seconds: float) -> None:
        now, text = self._clock.monotonic(), question(f"{self._random.getrandbits(64):016x}", self._clock.now())
        state.asked[text] = now
        state.next = now + seconds / ASKS
        for old in [*state.asked][:-REMEMBERED]:
            del state.asked[old]
        change = {"metadata": {"annotations": {words.ASKED: text}}}
        try:
            self.leases.note_write(await self._writer.patch(kinds.LEASE, lease, change))
        except (Conflict, NotFound):
            state.next = now  # the hub wrote meanwhile

    async def _stop(self, hub: str, state: _Questions) -> None:
        """Everything that the hub has sent and that would move: what was not released, too, so that a release that is
        on its way starts nothing."""
        for kind, copy in self._of(hub):
            if not state.told:
                log.warning("hub %s is not heard: what it sent stops here, for it may start elsewhere", hub)
                state.told = True
            change: Json = {"metadata": {"annotations": {GATED: FENCED}}}
            if kind == kinds.WORKLOAD:
                change = {"spec": {"active": False}}
            try:
                made = await self._writer.patch(kind, copy, change, unchanged=False)
            except (Conflict, NotFound):
                continue
            self._copies[kind].note_write(made)
            log.info("%s %s is stopped", kind.kind, key_of(copy))

    def _of(self, hub: str) -> Iterable[tuple[Kind, Json]]:
        for kind, cache in self._copies.items():
            for copy in cache.list():
                if _hub(copy) == hub and is_fenced(copy) and not _rests(kind, copy):
                    yield kind, copy

    def _cache(self, client: Client, kind: Kind, selector: str, **options: Any) -> Cache[Json]:
        report = self._awaited.report(kind, lambda trouble: trouble.reason in UNREADABLE)
        return Cache(client, kind, dict, label_selector=selector, clock=self._clock, report=report, **options)


def _hub(obj: Json) -> str:
    return label(obj, words.HUB) or label(obj, KUEUE_MULTIKUEUE_ORIGIN)


def _rests(kind: Kind, copy: Json) -> bool:
    """Has it ended, or is it stopped already?"""
    if copy["metadata"].get("deletionTimestamp"):
        return True
    if kind == kinds.WORKLOAD:
        return (copy.get("spec") or {}).get("active") is False or Draft(copy, 0).is_true("Finished")
    return annotation(copy, GATED) == FENCED or (copy.get("status") or {}).get("state") in ENDED
