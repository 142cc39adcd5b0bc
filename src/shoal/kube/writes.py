"""How controllers write: few at a time, fair between controllers, nothing in vain, nothing twice.

A write that would leave the object as it is is not sent. Changes carry the revision that they were decided on,
deletes carry the UID, creates have fixed names: so a write whose fate is unknown is looked up first, and repeated
only where repeating cannot act twice.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Literal, TypeVar

import msgspec

from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.kube.backoff import Backoff
from shoal.kube.client import Client, Propagation
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.errors import (
    AlreadyExists,
    Conflict,
    KubeError,
    LeaseLost,
    NotFound,
    ServerError,
    TooManyRequests,
    Unknown,
    Unsent,
)
from shoal.kube.revisions import newer
from shoal.kube.slots import FairSlots

T = TypeVar("T")
log = logging.getLogger(__name__)


class WriteCounts(msgspec.Struct):
    sent: int = 0
    spared: int = 0
    """Writes that would have changed nothing."""
    unknown: int = 0
    repeated: int = 0


class Writes:
    """The places for writes in flight, shared by all controllers of a process."""

    def __init__(
        self,
        client: Client,
        *,
        in_flight: int = 24,
        attempts: int = 4,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self.client = client
        self.counts = WriteCounts()
        self.clock: Clock = clock or SystemClock()
        self._slots = FairSlots(in_flight)
        self._attempts = attempts
        self._random = random or Random()

    def writer(self, owner: str) -> Writer:
        """The same places, counted fairly under this controller's name."""
        return Writer(self, owner)

    async def run(self, owner: str, send: Callable[[], Awaitable[T]], look: Callable[[], Awaitable[T | None]]) -> T:
        """Send once a place is free. After an unknown outcome `look` says what it finds done, or None to repeat.

        Raises the unknown outcome itself when nobody could be asked: then the caller's next step must be a read, too.
        """
        backoff = Backoff(self._random)
        unsure: KubeError | None = None
        while True:
            try:
                if unsure is not None:
                    found = await look()
                    if found is not None:
                        return found
                    unsure = None
                    self.counts.repeated += 1
                async with self._slots.held(owner):
                    self.counts.sent += 1
                    return await send()
            except LeaseLost:
                raise
            except (Unsent, TooManyRequests) as error:  # certainly not carried out
                failed: KubeError = error
            except (Unknown, ServerError) as error:
                failed = error
                if unsure is None:
                    unsure = error
                    self.counts.unknown += 1
            if backoff.failures + 1 >= self._attempts:
                raise unsure or failed
            await self.clock.sleep(backoff.after(failed))


class Writer:
    """One controller's writes. Objects are plain dictionaries as the server gave them."""

    def __init__(self, writes: Writes, owner: str) -> None:
        self._writes = writes
        self._client = writes.client
        self._owner = owner

    async def create(self, kind: Kind, body: Json) -> Json:
        """Create under a fixed name. After an unknown outcome, an object that holds what we wanted is ours."""
        metadata = body["metadata"]
        name, namespace = metadata.get("name"), metadata.get("namespace")
        if not name:
            raise ValueError("a create needs a fixed name: one without cannot be repeated safely")
        unsure = False

        async def send() -> Json:
            try:
                created: Json = await self._client.create(kind, body, namespace)
            except AlreadyExists:
                if not unsure:
                    raise
                found = await look()
                if found is None:
                    raise
                return found
            return created

        async def look() -> Json | None:
            nonlocal unsure
            unsure = True
            try:
                found = await self._client.get(kind, name, namespace)
            except NotFound:
                return None
            if not contains(found, body):
                raise AlreadyExists(
                    409, "AlreadyExists", f"{kind.resource} {name} exists and is not what was to be created"
                )
            return found

        return await self._writes.run(self._owner, send, look)

    async def patch(
        self, kind: Kind, obj: Json, change: Json, *, subresource: Literal["status", "scale"] | None = None
    ) -> Json:
        """Merge `change` into `obj` as we saw it, or raise Conflict. What holds already is not sent."""
        if not would_change(obj, change):
            self._writes.counts.spared += 1
            return obj
        metadata = obj["metadata"]
        name, namespace, revision = metadata["name"], metadata.get("namespace"), metadata["resourceVersion"]
        body = {
            **change,
            "metadata": {**change.get("metadata", {}), "uid": metadata["uid"], "resourceVersion": revision},
        }

        async def send() -> Json:
            patched: Json = await self._client.patch(kind, name, namespace, body, subresource=subresource)
            return patched

        async def look() -> Json | None:
            return await self._seen_done(kind, obj, lambda found: not would_change(found, change))

        return await self._writes.run(self._owner, send, look)

    async def update(self, kind: Kind, old: Json, new: Json, *, subresource: Literal["status"] | None = None) -> Json:
        """Replace `old` by `new`, which keeps its resourceVersion."""
        if old == new:
            self._writes.counts.spared += 1
            return old
        metadata = old["metadata"]
        if new["metadata"].get("resourceVersion") != metadata["resourceVersion"]:
            raise ValueError("an update must carry the resourceVersion that it was made from")

        async def send() -> Json:
            updated: Json = await self._client.update(
                kind, new, metadata["name"], metadata.get("namespace"), subresource=subresource
            )
            return updated

        async def look() -> Json | None:
            return await self._seen_done(kind, old, lambda found: contains(found, _ours(new)))

        return await self._writes.run(self._owner, send, look)

    async def delete(
        self,
        kind: Kind,
        obj: Json,
        *,
        propagation: Propagation | None = "Background",
        grace_seconds: int | None = None,
        unchanged: bool = False,
    ) -> bool:
        """Delete this very object; False when it is gone or its name taken by another. `unchanged`: only as seen."""
        metadata = obj["metadata"]
        name, namespace, uid = metadata["name"], metadata.get("namespace"), metadata["uid"]

        async def send() -> bool:
            try:
                await self._client.delete(
                    kind,
                    name,
                    namespace,
                    uid=uid,
                    resource_version=metadata["resourceVersion"] if unchanged else "",
                    propagation=propagation,
                    grace_seconds=grace_seconds,
                )
            except NotFound:
                return False
            except Conflict:
                found = await self._alive(kind, name, namespace)
                if found is not None and found["metadata"]["uid"] == uid:
                    raise
                return False
            return True

        async def look() -> bool | None:
            found = await self._alive(kind, name, namespace)
            gone = found is None or found["metadata"]["uid"] != uid or bool(found["metadata"].get("deletionTimestamp"))
            return True if gone else None

        return await self._writes.run(self._owner, send, look)

    async def _alive(self, kind: Kind, name: str, namespace: str | None) -> Json | None:
        try:
            return await self._client.get(kind, name, namespace)
        except NotFound:
            return None

    async def _seen_done(self, kind: Kind, old: Json, holds: Callable[[Json], bool]) -> Json | None:
        """After an unknown change: the object when it holds, None when it was not carried out, Conflict when lost."""
        metadata = old["metadata"]
        found = await self._client.get(kind, metadata["name"], metadata.get("namespace"))
        if found["metadata"]["uid"] != metadata["uid"]:
            raise Conflict(409, "Conflict", f"{kind.resource} {metadata['name']} was deleted and made again")
        if not newer(found["metadata"]["resourceVersion"], metadata["resourceVersion"]):
            return None
        if holds(found):
            return found
        raise Conflict(409, "Conflict", f"{kind.resource} {metadata['name']} was changed by someone else meanwhile")


def would_change(obj: Any, change: Any) -> bool:
    """Whether a merge patch would alter the object."""
    if not isinstance(change, dict) or not isinstance(obj, dict):
        return bool(obj != change)
    for name, value in change.items():
        if value is None:
            if name in obj:
                return True
        elif name not in obj:
            if value != {} or not isinstance(value, dict):
                return True
        elif would_change(obj[name], value):
            return True
    return False


def contains(found: Any, wanted: Any) -> bool:
    """Whether `found` holds all that was asked for; the server may have added defaults."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            contains(found.get(name), value) for name, value in wanted.items() if value is not None and value != {}
        )
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(contains, found, wanted))
    return bool(found == wanted)


def _ours(obj: Json) -> Json:
    """What a writer decides; the server counts the rest up by itself."""
    counted = ("resourceVersion", "generation", "managedFields")
    return {**obj, "metadata": {name: value for name, value in obj["metadata"].items() if name not in counted}}
