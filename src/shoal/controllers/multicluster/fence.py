"""The hub's side of its leases in members: each made once a gang wants it, and granted whenever the member asks.

The moment of a grant is noted directly before it is sent: from then on the lease may hold for its whole time. Nothing
else prolongs it, so a hub that was silent for longer knows that it has ended there. It never decides what becomes of
the gangs there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.api.objects import annotation
from shoal.api.times import micro_text
from shoal.controllers.multicluster import words
from shoal.controllers.multicluster.lease import new_lease
from shoal.controllers.multicluster.settings import ClusterSettings
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.errors import AlreadyExists, Forbidden, NotFound
from shoal.kube.runtime import Controller
from shoal.kube.writes import Writer, Writes

log = logging.getLogger(__name__)
THE_LEASE = "lease"
TRY_AGAIN = 5.0
FRESH = 0.75
"""Share of the lease time for which a granted question counts as an answer: a member asks four times in it."""


class Fences:
    """One for each member, by name. `may_write(name)`: is it the cluster we know? `changed(name)`: it has one now."""

    def __init__(
        self, settings: ClusterSettings, clock: Clock, may_write: Callable[[str], bool], changed: Callable[[str], None]
    ) -> None:
        self._settings, self._clock, self._may_write, self._changed = settings, clock, may_write, changed
        self._fences: dict[str, MemberFence] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._begun = clock.monotonic()
        """What a hub before this one has granted, it granted earlier."""
        self._granted: dict[str, float] = {}

    def begin(self, name: str, client: Client, origin: str) -> None:
        """There is a member, or another credential for it."""
        self.end(name)

        def granting() -> None:
            self._granted[name] = self._clock.monotonic()

        writer = Writes(client, in_flight=1, clock=self._clock).writer("clusters")
        made = MemberFence(
            name,
            client,
            writer,
            origin,
            self._settings,
            self._clock,
            lambda: self._may_write(name),
            granting,
            lambda: self._changed(name),
        )
        self._fences[name] = made
        self._tasks[name] = asyncio.create_task(made.run(), name=f"lease in {name}")

    def end(self, name: str) -> None:
        self._fences.pop(name, None)
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()

    def holds(self, name: str) -> bool:
        """Does something there stop what would move, once this hub is not heard? Where not, it is seen to."""
        fence = self._fences.get(name)
        if fence is None:
            return False
        fence.want()
        return fence.holds

    def silent_for(self, name: str) -> float:
        """Seconds in which this hub has granted nothing there."""
        return self._clock.monotonic() - max(self._begun, self._granted.get(name, self._begun))


class MemberFence:
    """`may_write()`: is it the cluster we know? `changed()` tells that it has a fence now."""

    def __init__(
        self,
        name: str,
        client: Client,
        writer: Writer,
        origin: str,
        settings: ClusterSettings,
        clock: Clock,
        may_write: Callable[[], bool],
        granting: Callable[[], None],
        changed: Callable[[], None],
    ) -> None:
        self._name, self._client, self._writer, self._origin = name, client, writer, origin
        self._settings, self._clock, self._may_write = settings, clock, may_write
        self._granting, self._changed = granting, changed
        self._leases: Cache[Json] = Cache(
            client,
            kinds.LEASE,
            dict,
            namespace=settings.lease_namespace,
            label_selector=f"{words.HUB}={origin}",
            clock=clock,
            most=settings.answers.held,
            report=lambda trouble: None,
        )
        self._queue: Controller[str] = Controller(f"lease in {name}", self._keep, workers=1, clock=clock)
        self._wanted = False
        self._granted: float | None = None

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._leases.run())
            await self._leases.synced.wait()
            self._leases.subscribe(lambda change: self._queue.enqueue(THE_LEASE))
            self._queue.enqueue(THE_LEASE)
            tasks.create_task(self._queue.run())

    def want(self) -> None:
        """A gang would go there if it had a fence."""
        if not self._wanted:
            self._wanted = True
            self._queue.enqueue(THE_LEASE)

    @property
    def holds(self) -> bool:
        """Did something there ask lately, and was it granted?"""
        fresh = self._settings.lease_seconds * FRESH
        return self._granted is not None and self._clock.monotonic() - self._granted < fresh

    async def _keep(self, _: str) -> float | None:
        lease = next(iter(self._leases.list()), None)
        if lease is None:
            return await self._make() if self._wanted else None
        asked = annotation(lease, words.ASKED)
        if not asked or asked == annotation(lease, words.GRANTED):
            return None
        if not self._may_write():
            return TRY_AGAIN
        self._granting()
        now = self._clock.now()
        change = {
            "metadata": {"annotations": {words.GRANTED: asked}},
            "spec": {
                "leaseDurationSeconds": max(1, round(self._settings.lease_seconds)),
                "renewTime": micro_text(now),
            },
        }
        self._leases.note_write(await self._writer.patch(kinds.LEASE, lease, change))
        held, self._granted = self.holds, self._clock.monotonic()
        if not held:
            log.info("cluster %s stops what would move once this hub is not heard there", self._name)
            self._changed()
        return None

    async def _make(self) -> float | None:
        if not self._may_write():
            return TRY_AGAIN
        body = new_lease(self._origin, self._settings)
        try:
            self._leases.note_write(await self._writer.create(kinds.LEASE, body))
        except AlreadyExists:
            return TRY_AGAIN
        except NotFound:
            return await self._make_namespace()
        except Forbidden as error:
            log.warning("cluster %s gets no gangs that would move: %s", self._name, error)
            return self._settings.refused_seconds
        return None

    async def _make_namespace(self) -> float:
        """Shoal of one machine needs none of its own."""
        try:
            await self._writer.create(kinds.NAMESPACE, {"metadata": {"name": self._settings.lease_namespace}})
        except AlreadyExists:
            return TRY_AGAIN
        except Forbidden:
            log.warning("cluster %s has no namespace %s for a Lease", self._name, self._settings.lease_namespace)
            return self._settings.refused_seconds
        return 0.0
