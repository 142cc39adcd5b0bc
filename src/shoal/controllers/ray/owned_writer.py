"""Writes of what belongs to a Ray object: create once for its owner, delete this very object, change a status.

A `kube` Writer underneath. Every answer goes into the cache at once, so that the next look sees our own write (never a
second pod for one place). An object of the wanted name that belongs to another owner is left alone and reported.
"""

from __future__ import annotations

from typing import Any

from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.controllers.ray import view
from shoal.errors import ShoalError
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExists
from shoal.kube.writes import Writer, Writes


class Stranger(ShoalError):
    """An object of the name we need exists and is not ours."""


def owned_by(thing: Json, owner: Json) -> bool:
    owners = view.metadata(thing).get("ownerReferences") or []
    return any(reference.get("uid") == view.uid(owner) for reference in owners)


def key_of(thing: Json) -> Key:
    return Key(view.namespace(thing), view.name(thing))


class OwnedWriter:
    """One reconciler's writes. A write that fails is not repeated here: the reconciler comes back to it."""

    def __init__(self, writes: Writes, owner: str) -> None:
        self.client: Client = writes.client
        """For reading."""
        self._writer: Writer = writes.writer(owner, attempts=1)

    async def create(self, kind: Kind, body: Json, owner: Json, cache: Cache[Any] | None = None) -> bool:
        """Create; False when it was there already as ours. Raises Stranger when it belongs to another owner."""
        try:
            created = await self._writer.create(kind, body)
        except AlreadyExists:
            found = await self.client.get(kind, view.name(body), view.namespace(body))
            if not owned_by(found, owner):
                raise Stranger(
                    f"{kind.kind} {view.namespace(body)}/{view.name(body)} exists and belongs to another owner; "
                    f"delete or rename it, or rename {owner.get('kind')} {view.name(owner)}"
                ) from None
            if cache is not None:
                cache.note_write(found)
            return False
        if cache is not None:
            cache.note_write(created)
        return True

    async def delete(self, kind: Kind, thing: Json, cache: Cache[Any] | None = None) -> bool:
        """Delete this very object (by UID); False when it was gone already."""
        answer = await self._writer.end(kind, thing)
        if cache is not None:
            if answer is not None and answer.get("kind") != "Status" and view.deleting(answer):
                cache.note_write(answer)
            else:
                cache.note_delete(thing)
        return answer is not None

    async def replace_status(self, kind: Kind, thing: Json, status: Json, cache: Cache[Any]) -> None:
        """Write the whole status as it is. A merge patch would lose members that are null inside a list."""
        cache.note_write(await self._writer.update(kind, thing, {**thing, "status": status}, subresource="status"))

    async def write_status(
        self, kind: Kind, thing: Json, status: Json, now: int, cache: Cache[Any], stamp: str = "lastUpdateTime"
    ) -> None:
        """Replace what differs in the status, on the condition that the object is as we saw it."""
        old = thing.get("status") or {}
        kept = view.stored_part(status)
        changes: Json = {key: value for key, value in kept.items() if old.get(key) != value}
        changes.update({key: None for key in old if key not in kept})
        if stamp:
            changes[stamp] = seconds_text(now)
        change = {"status": merge_patch(old, changes)}
        cache.note_write(await self._writer.patch(kind, thing, change, subresource="status"))

    async def patch(self, kind: Kind, thing: Json, change: Json, cache: Cache[Any] | None = None) -> Json:
        """A merge patch of this very object."""
        written = await self._writer.patch(kind, thing, change, unchanged=False)
        if cache is not None:
            cache.note_write(written)
        return dict(written)

    async def set_finalizers(self, kind: Kind, thing: Json, finalizers: list[str], cache: Cache[Any]) -> Json:
        """Replace the list, on the condition that the object is as we saw it."""
        written = await self._writer.patch(kind, thing, {"metadata": {"finalizers": finalizers}})
        cache.note_write(written)
        return dict(written)


def merge_patch(old: Json, changes: Json) -> Json:
    """A merge patch for the changed members of a map; what is gone from a map, however deep, is named with null."""
    patch: Json = {}
    for key, value in changes.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            gone: Json = dict.fromkeys(member for member in before if member not in value)
            patch[key] = merge_patch(before, {**value, **gone})
        else:
            patch[key] = value
    return patch
