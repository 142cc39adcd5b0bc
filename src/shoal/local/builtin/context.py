"""What all workload controllers work with: the caches, careful writes, events, and fresh names.

Whatever is written here is noted in the caches at once, so that the next look sees it: a controller never makes a pod
twice because the watch was slow.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any, Literal

from shoal.api import kinds
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.kube.cache import Cache, Change
from shoal.kube.errors import ApiError, Conflict, NotFound
from shoal.kube.events import Recorder
from shoal.kube.runtime import Controller
from shoal.kube.writes import Writes
from shoal.local.builtin.caches import ObjectCaches

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: names spell no words
BURST = 500


class WorkloadContext:
    """One per controller; `owner` names it in events and among writers."""

    def __init__(self, caches: ObjectCaches, writes: Writes, owner: str, chance: random.Random) -> None:
        self.caches = caches
        self.client = caches.client
        self.clock = caches.clock
        self.pods = caches.cache(kinds.POD)
        self.events = Recorder(caches.client, owner, clock=caches.clock)
        self._writer = writes.writer(owner)
        self._chance = chance

    def now(self) -> str:
        return seconds_text(self.clock.now())

    def fresh(self, prefix: str) -> str:
        """A name that is not in use, as the server's own generateName makes them."""
        return prefix[:58] + "".join(self._chance.choice(_LETTERS) for _ in range(5))

    def cache(self, kind: Kind) -> Cache[Json]:
        return self.caches.cache(kind)

    async def create(self, kind: Kind, body: Json) -> Json:
        created = await self._writer.create(kind, body)
        self._note(kind, created)
        return created

    async def patch(self, kind: Kind, obj: Json, change: Json, *, status: bool = False) -> Json:
        """Merge into what we saw; a write that would change nothing is not sent. Raises Conflict when overtaken."""
        subresource: Literal["status"] | None = "status" if status else None
        try:
            patched = await self._writer.patch(kind, obj, change, subresource=subresource)
        except NotFound:
            if not status:
                raise
            return obj  # its status no longer matters
        self._note(kind, patched)
        return patched

    async def delete(self, kind: Kind, obj: Json, *, grace: int | None = None) -> None:
        """Delete this very object; one that is gone is no error."""
        metadata = obj["metadata"]
        try:
            answer = await self.client.delete(
                kind, metadata["name"], metadata.get("namespace"), uid=metadata["uid"], propagation="Background",
                grace_seconds=grace,
            )  # fmt: skip
        except (NotFound, Conflict):
            return  # gone, or its name is another object's by now
        if (answer.get("metadata") or {}).get("deletionTimestamp"):
            self._note(kind, answer)
        elif kind in self.caches.kinds():
            self.caches.cache(kind).note_delete(obj)

    def _note(self, kind: Kind, obj: Json) -> None:
        self.caches.cache(kind).note_write(obj)

    async def create_pods(self, owner: Json, bodies: list[Json]) -> None:
        """Make pods, the first few alone: if the server refuses one, it is not asked five hundred times."""
        done, size = 0, 1
        while done < len(bodies[:BURST]):
            batch = bodies[done : done + size]
            results = await asyncio.gather(*(self._create_pod(owner, body) for body in batch), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            done, size = done + len(batch), size * 2

    async def _create_pod(self, owner: Json, body: Json) -> None:
        try:
            created = await self.create(kinds.POD, body)
        except ApiError as error:
            if "being terminated" not in error.message:
                self.events.event(owner, "Warning", "FailedCreate", f"Error creating: {error.message}")
            raise
        self.events.event(owner, "Normal", "SuccessfulCreate", f"Created pod: {created['metadata']['name']}")

    async def delete_pods(self, owner: Json, pods: Iterable[Json]) -> None:
        doomed = list(pods)
        await asyncio.gather(*(self.delete(kinds.POD, pod) for pod in doomed))
        for pod in doomed:
            self.events.event(owner, "Normal", "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}")

    def owned_pods(self, owner: Json) -> list[Json]:
        return self.pods.by_index("owner", owner["metadata"]["uid"])


def key_of(obj: Json) -> Key:
    return Key(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])


def watch_owned(controller: Controller[Key], cache: Cache[Json], owner_kind: Kind) -> None:
    """Look at an owner again whenever something that it controls changes."""

    def on_change(change: Change) -> None:
        for obj in (change.old, change.new):
            owner = controller_of(obj) if obj is not None else None
            if owner is not None and owner.get("kind") == owner_kind.kind and in_group(owner, owner_kind):
                controller.enqueue(Key(change.key.namespace, owner["name"]))

    cache.subscribe(on_change)


def watch_own(controller: Controller[Key], cache: Cache[Json]) -> None:
    cache.subscribe(lambda change: controller.enqueue(change.key))


def watch_orphans(controller: Controller[Key], pods: Cache[Json], owners: Cache[Json],
                  matches: Callable[[Json, Json], bool]) -> None:  # fmt: skip
    """Look at owners that may adopt a pod without a controller."""

    def on_change(change: Change) -> None:
        pod = change.new
        if pod is None or controller_of(pod) is not None or pod["metadata"].get("deletionTimestamp"):
            return
        for owner in owners.list(change.key.namespace):
            if matches(owner, pod):
                controller.enqueue(key_of(owner))

    pods.subscribe(on_change)


async def run_sets(
    context: WorkloadContext,
    controller: Controller[Key],
    kind: Kind,
    owners: Cache[Json],
    matches: Callable[[Json, Json], bool],
) -> None:
    """How every controller of sets of pods begins: its sets, their pods, and pods that may become theirs."""
    watch_own(controller, owners)
    watch_owned(controller, context.pods, kind)
    watch_orphans(controller, context.pods, owners, matches)
    await context.caches.ready.wait()
    await controller.run()


def controller_of(obj: Json) -> Json | None:
    return next((owner for owner in obj["metadata"].get("ownerReferences") or () if owner.get("controller")), None)


def in_group(owner: Json, kind: Kind) -> bool:
    return str(owner.get("apiVersion") or "").rpartition("/")[0] == kind.group


def reference_to(kind: Kind, owner: Json) -> Json:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}  # fmt: skip


def number(value: Any, default: int = 0) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
