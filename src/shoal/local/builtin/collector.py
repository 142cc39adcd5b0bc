"""The garbage collector: an object whose owners are gone goes too.

Follows ownerReferences by UID, never by name alone, so an object that took over the name of a deleted owner never
inherits its dependants. Foreground deletion waits for dependants that block, orphaning cuts them loose, background
deletion follows the owner. Reacts to the watch at once; where the caches do not know an owner, the server is asked
before anything is deleted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from shoal.api.kind import Kind
from shoal.api.meta import Json, OwnerReference
from shoal.kube.cache import Change
from shoal.kube.client import Propagation
from shoal.kube.discovery import Discovery
from shoal.kube.errors import Conflict, NotFound
from shoal.kube.runtime import Controller
from shoal.local.builtin.caches import ObjectCaches, Thing, live, remove_finalizer, thing_of

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
REMEMBERED = 65_536
REMEMBERED_FOR = 1800.0
"""Seconds for which an owner is known to be gone; whose dependant comes later is asked for."""
UNKNOWN_KIND_RETRY = 60.0


class GarbageCollector:
    def __init__(self, caches: ObjectCaches) -> None:
        self._caches = caches
        self._client = caches.client
        self._discovery = Discovery(caches.client)
        self._things: dict[str, Thing] = {}
        self._dependants: dict[str, dict[str, None]] = {}
        self._gone: OrderedDict[str, float] = OrderedDict()
        """UIDs, which never come back, and when they went."""
        self.controller: Controller[str] = Controller(
            "garbage-collector", self.reconcile, workers=24, clock=caches.clock
        )

    async def run(self) -> None:
        self._caches.listen(self._on_change)
        await self._caches.ready.wait()
        for thing in list(self._things.values()):
            self._consider(thing)
        await self.controller.run()

    # --- the graph

    def _on_change(self, kind: Kind, change: Change) -> None:
        before = thing_of(kind, change.key, change.old) if change.old is not None else None
        if before is not None:
            self._forget(before)
        if change.new is not None:
            thing = thing_of(kind, change.key, change.new)
            if before is not None and before.owners != thing.owners:
                self._look_above(before)  # an owner may have waited for a reference that blocks no more
            self._things[thing.uid] = thing
            for owner in thing.owners:
                self._dependants.setdefault(owner.uid, {})[thing.uid] = None
            if self._caches.ready.is_set():
                self._consider(thing)
        elif before is not None:
            self._removed(before)

    def _forget(self, thing: Thing) -> None:
        self._things.pop(thing.uid, None)
        for owner in thing.owners:
            others = self._dependants.get(owner.uid)
            if others is not None:
                others.pop(thing.uid, None)
                if not others:
                    del self._dependants[owner.uid]

    def _removed(self, thing: Thing) -> None:
        self._gone[thing.uid] = now = self._caches.clock.monotonic()
        while len(self._gone) > REMEMBERED or next(iter(self._gone.values())) + REMEMBERED_FOR < now:
            self._gone.popitem(last=False)
        for uid in self._dependants.get(thing.uid, ()):
            self.controller.enqueue(uid)
        self._look_above(thing)  # one less to wait for

    def _look_above(self, thing: Thing) -> None:
        for owner in thing.owners:
            above = self._things.get(owner.uid)
            if above is not None and above.deleting:
                self.controller.enqueue(owner.uid)

    def _consider(self, thing: Thing) -> None:
        if thing.deleting and (FOREGROUND in thing.finalizers or ORPHAN in thing.finalizers):
            self.controller.enqueue(thing.uid)
            for uid in self._dependants.get(thing.uid, ()):
                self.controller.enqueue(uid)
        elif any(self._doubtful(owner) for owner in thing.owners):
            self.controller.enqueue(thing.uid)

    def _doubtful(self, owner: OwnerReference) -> bool:
        found = self._things.get(owner.uid)
        return found is None or (found.deleting and FOREGROUND in found.finalizers)

    # --- acting

    async def reconcile(self, uid: str) -> float | None:
        thing = self._things.get(uid)
        if thing is None:
            return None
        if thing.deleting and ORPHAN in thing.finalizers:
            await self._orphan(thing)
            return None
        if thing.deleting and FOREGROUND in thing.finalizers:
            await self._finish_foreground(thing)
            return None
        if thing.owners:
            return await self._judge(thing)
        return None

    async def _orphan(self, owner: Thing) -> None:
        """Cut every dependant loose, then let the owner go."""
        for uid in list(self._dependants.get(owner.uid, ())):
            dependant = self._things.get(uid)
            if dependant is not None and _reaches(dependant, owner):
                await self._cut(dependant, {owner.uid})
        await remove_finalizer(self._client, owner.kind, owner.key, owner.uid, ORPHAN)

    async def _finish_foreground(self, owner: Thing) -> None:
        """Let the owner go once nothing that blocks it is left; dependants are deleted on their own turn."""
        if any(self._blocks(uid, owner) for uid in self._dependants.get(owner.uid, ())):
            return
        await remove_finalizer(self._client, owner.kind, owner.key, owner.uid, FOREGROUND)

    def _blocks(self, uid: str, owner: Thing) -> bool:
        thing = self._things.get(uid)
        if thing is None or not _reaches(thing, owner):
            return False
        return any(one.uid == owner.uid and one.block_owner_deletion for one in thing.owners)

    async def _judge(self, thing: Thing) -> float | None:
        """Delete what has no owner left; take references off that lead nowhere while a real owner remains."""
        absent: set[str] = set()
        waiting: set[str] = set()
        for owner in thing.owners:
            found = self._things.get(owner.uid)
            if found is not None and _reaches(thing, found):
                if found.deleting and FOREGROUND in found.finalizers:
                    waiting.add(owner.uid)
                continue
            there = await self._exists(thing, owner)
            if there is None:
                return UNKNOWN_KIND_RETRY
            if not there:
                absent.add(owner.uid)
        if not absent and not waiting:
            return None
        if len(absent) + len(waiting) < len({owner.uid for owner in thing.owners}):
            await self._cut(thing, absent | waiting)
            return None
        if thing.deleting:
            return None
        dependants = [self._things[uid] for uid in self._dependants.get(thing.uid, ()) if uid in self._things]
        if waiting and any(one.deleting and FOREGROUND in one.finalizers for one in dependants):
            await self._unblock(thing)  # it waits for its owner and its owner for it: one must go first
        await self._delete(thing, "Foreground" if waiting and dependants else _policy(thing.finalizers))
        return None

    async def _exists(self, thing: Thing, owner: OwnerReference) -> bool | None:
        """Whether the owner is there; None when its kind is not known, which is no proof of anything."""
        if owner.uid in self._gone:
            return False
        kind = self._caches.known(owner.api_version, owner.kind)
        kind = kind or await self._discovery.kind_of(owner.api_version, owner.kind)
        if kind is None:
            return None
        if kind.namespaced and not thing.key.namespace:
            return None  # a reference that no object can satisfy: left alone, as a misconfiguration
        key = type(thing.key)(thing.key.namespace if kind.namespaced else "", owner.name)
        found = await live(self._client, kind, key)
        return found is not None and found["metadata"]["uid"] == owner.uid

    async def _cut(self, thing: Thing, uids: set[str]) -> None:
        """Take these owners off."""
        await self._change_owners(thing, lambda owners: [owner for owner in owners if owner.get("uid") not in uids])

    async def _unblock(self, thing: Thing) -> None:
        """Let no owner wait for this one any longer."""
        await self._change_owners(thing, lambda owners: [{**owner, "blockOwnerDeletion": False} for owner in owners])

    async def _change_owners(self, thing: Thing, change: Callable[[list[Json]], list[Json]]) -> None:
        for _ in range(10):
            obj = await live(self._client, thing.kind, thing.key)
            if obj is None or obj["metadata"]["uid"] != thing.uid:
                return
            owners = obj["metadata"].get("ownerReferences") or []
            wanted = change(owners)
            if wanted == owners:
                return
            metadata: Json = {
                "uid": thing.uid,
                "resourceVersion": obj["metadata"]["resourceVersion"],
                "ownerReferences": wanted,
            }
            try:
                await self._client.patch(
                    thing.kind, thing.key.name, thing.key.namespace or None, {"metadata": metadata}
                )
                return
            except Conflict:
                continue
            except NotFound:
                return

    async def _delete(self, thing: Thing, policy: Propagation) -> None:
        """Only this object and only as it was judged: if it changed meanwhile, its owners are looked at again."""
        revision = thing.resource_version
        for _ in range(10):
            try:
                await self._client.delete(thing.kind, thing.key.name, thing.key.namespace or None, uid=thing.uid,
                                          resource_version=revision, propagation=policy)  # fmt: skip
                return
            except NotFound:
                return
            except Conflict:
                obj = await live(self._client, thing.kind, thing.key)
                if obj is None or obj["metadata"]["uid"] != thing.uid or obj["metadata"].get("deletionTimestamp"):
                    return
                now = {owner.get("uid") for owner in obj["metadata"].get("ownerReferences") or ()}
                if now != {owner.uid for owner in thing.owners}:
                    return  # a controller adopted or released it; the watch brings it back to us
                revision = obj["metadata"]["resourceVersion"]


def _reaches(dependant: Thing, owner: Thing) -> bool:
    """Whether a reference between them counts: owners are in the dependant's own namespace, or in none.

    A UID is no secret: what names it from another namespace neither holds its deletion up nor goes with it.
    """
    return owner.key.namespace in ("", dependant.key.namespace)


def _policy(finalizers: tuple[str, ...]) -> Propagation:
    if ORPHAN in finalizers:
        return "Orphan"
    return "Foreground" if FOREGROUND in finalizers else "Background"
