"""The one way in which controllers write: few at a time, fair between controllers, nothing in vain, nothing twice.

A process has one `Writes` per API server, handed to every controller by the entry point; its limit is the limit. Each
controller takes a `Writer` under its own name: names that wait get places in turn, and a quarter of the places is kept
from any one name, so that not even writes that hang hold up another controller.
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

IN_FLIGHT = 64
"""Writes that a process has under way to one API server, all controllers together."""
OF_ONE_CONTROLLER = IN_FLIGHT - IN_FLIGHT // 4
"""The most of them that one controller may have."""
ATTEMPTS = 4

T = TypeVar("T")
log = logging.getLogger(__name__)


class WriteCounts(msgspec.Struct):
    sent: int = 0
    spared: int = 0
    """Writes that would have changed nothing."""
    unknown: int = 0
    repeated: int = 0


class Writes:
    """The places for writes under way, shared by all controllers of a process."""

    def __init__(
        self,
        client: Client,
        *,
        in_flight: int = IN_FLIGHT,
        attempts: int = ATTEMPTS,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self.client = client
        self.counts = WriteCounts()
        self.clock: Clock = clock or SystemClock()
        self._slots = FairSlots(in_flight, most=in_flight - in_flight // 4)
        self.attempts = attempts
        self._random = random or Random()

    def writer(self, owner: str, client: Client | None = None, *, attempts: int = 0) -> Writer:
        """The same places, counted fairly under this controller's name.

        `client` writes as another user to the same server. `attempts=1` is for a reconciler that sees its own failed
        write and comes back to it.
        """
        return Writer(self, owner, client or self.client, attempts or self.attempts)

    async def run(
        self,
        owner: str,
        send: Callable[[], Awaitable[T]],
        look: Callable[[], Awaitable[T | None]],
        attempts: int = ATTEMPTS,
    ) -> T:
        """Send once a place is free. After an unknown outcome `look` says what it finds done, or None to repeat.

        Raises the unknown outcome itself when the server could not be asked: then the caller's next step must be a
        read, too.
        """
        backoff: Backoff | None = None
        unsure: KubeError | None = None
        while True:
            try:
                if unsure is not None:
                    found = await look()
                    if found is not None:
                        return found
                    unsure = None
                    self.counts.repeated += 1
                await self._slots.take(owner)
                try:
                    self.counts.sent += 1
                    return await send()
                finally:
                    self._slots.give_back(owner)
            except LeaseLost:
                raise
            except (Unsent, TooManyRequests) as error:  # certainly not carried out
                failed: KubeError = error
            except (Unknown, ServerError) as error:
                failed = error
                if unsure is None:
                    unsure = error
                    self.counts.unknown += 1
            backoff = backoff or Backoff(self._random)
            if backoff.failures + 1 >= attempts:
                raise unsure or failed
            await self.clock.sleep(backoff.after(failed))


class Writer:
    """One controller's writes. Objects are plain dictionaries as the server gave them."""

    def __init__(self, writes: Writes, owner: str, client: Client, attempts: int) -> None:
        self.owner = owner
        self._writes = writes
        self._client = client
        self._attempts = attempts

    async def send(
        self, write: Callable[[Client], Awaitable[T]], look: Callable[[], Awaitable[T | None]] | None = None
    ) -> T:
        """A write of the caller's own making, in its turn; without `look` it is not repeated.

        Whatever is written must be safe to repeat by itself: conditional on a UID or a revision, or idempotent.
        """

        async def never() -> T | None:
            return None

        attempts = self._attempts if look is not None else 1
        return await self._writes.run(self.owner, lambda: write(self._client), look or never, attempts)

    async def _run(self, send: Callable[[], Awaitable[T]], look: Callable[[], Awaitable[T | None]]) -> T:
        return await self._writes.run(self.owner, send, look, self._attempts)

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

        return await self._run(send, look)

    async def patch(
        self,
        kind: Kind,
        obj: Json,
        change: Json,
        *,
        subresource: Literal["status", "scale"] | None = None,
        unchanged: bool = True,
    ) -> Json:
        """Merge `change` into `obj` as we saw it, or raise Conflict. What holds already is not sent.

        Without `unchanged` it is merged into this very object, whatever became of it since.
        """
        if not would_change(obj, change):
            self._writes.counts.spared += 1
            return obj
        metadata = obj["metadata"]
        name, namespace, revision = metadata["name"], metadata.get("namespace"), metadata["resourceVersion"]
        condition = {"uid": metadata["uid"]}
        if unchanged:
            condition["resourceVersion"] = revision
        body = {**change, "metadata": {**change.get("metadata", {}), **condition}}

        async def send() -> Json:
            patched: Json = await self._client.patch(kind, name, namespace, body, subresource=subresource)
            return patched

        async def look() -> Json | None:
            return await self._seen_done(
                kind, obj, lambda found: not would_change(found, change), repeats=not unchanged
            )

        return await self._run(send, look)

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

        return await self._run(send, look)

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
        answer = await self.end(kind, obj, propagation=propagation, grace_seconds=grace_seconds, unchanged=unchanged)
        return answer is not None

    async def end(
        self,
        kind: Kind,
        obj: Json,
        *,
        propagation: Propagation | None = "Background",
        grace_seconds: int | None = None,
        unchanged: bool = False,
    ) -> Json | None:
        """`delete`, with the server's answer, the object where it is only on its way out; None where it is gone."""
        metadata = obj["metadata"]
        name, namespace, uid = metadata["name"], metadata.get("namespace"), metadata["uid"]
        absent: Json = {}

        async def send() -> Json:
            try:
                return await self._client.delete(
                    kind,
                    name,
                    namespace,
                    uid=uid,
                    resource_version=metadata["resourceVersion"] if unchanged else "",
                    propagation=propagation,
                    grace_seconds=grace_seconds,
                )
            except NotFound:
                return absent
            except Conflict:
                found = await self._alive(kind, name, namespace)
                if found is not None and found["metadata"]["uid"] == uid:
                    raise
                return absent

        async def look() -> Json | None:
            found = await self._alive(kind, name, namespace)
            if found is None or found["metadata"]["uid"] != uid:
                return {"kind": "Status", "status": "Success"}
            return found if found["metadata"].get("deletionTimestamp") else None

        answer = await self._run(send, look)
        return None if answer is absent else answer

    async def _alive(self, kind: Kind, name: str, namespace: str | None) -> Json | None:
        try:
            return await self._client.get(kind, name, namespace)
        except NotFound:
            return None

    async def _seen_done(
        self, kind: Kind, old: Json, holds: Callable[[Json], bool], *, repeats: bool = False
    ) -> Json | None:
        """After an unknown change: the object when it holds, None when it was not carried out, Conflict when lost.

        `repeats`: what another client changed meanwhile is no reason not to write.
        """
        metadata = old["metadata"]
        found = await self._client.get(kind, metadata["name"], metadata.get("namespace"))
        if found["metadata"]["uid"] != metadata["uid"]:
            raise Conflict(409, "Conflict", f"{kind.resource} {metadata['name']} was deleted and made again")
        if not newer(found["metadata"]["resourceVersion"], metadata["resourceVersion"]):
            return None
        if holds(found):
            return found
        if repeats:
            return None
        raise Conflict(409, "Conflict", f"{kind.resource} {metadata['name']} was changed by another client meanwhile")


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
