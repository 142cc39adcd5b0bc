"""The life of a namespace: what it is given at birth, and how it is emptied before it goes.

A new namespace gets its default service account and the CA bundle that pods read. One that is being deleted has all
its content deleted, kind by kind, and is released when the server itself says that nothing is left.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec

from shoal.api import kinds
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.kube.cache import Change
from shoal.kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound
from shoal.kube.runtime import Controller
from shoal.local.builtin.caches import Head, ObjectCaches

ROOT_CA = "kube-root-ca.crt"
FINALIZER = "kubernetes"
LOOK_AGAIN = 15.0  # should an event be lost; what is removed brings us back at once
MOST_READ = 500  # of one kind, to see which finalizers hold them


class Left(msgspec.Struct, frozen=True):
    """What is still there of one kind."""

    count: int
    finalizers: Counter[str]


class NamespaceController:
    def __init__(self, caches: ObjectCaches, root_ca: str = "") -> None:
        self._caches = caches
        self._client = caches.client
        self._root_ca = root_ca
        self._namespaces = caches.cache(kinds.NAMESPACE)
        self._doubtful: set[str] = set()  # namespaces whose CA bundle a client has written
        self.controller: Controller[Key] = Controller("namespaces", self.reconcile, workers=4, clock=caches.clock)

    async def run(self) -> None:
        self._caches.listen(self._on_change)
        await self._caches.ready.wait()
        await self.controller.run()

    def _on_change(self, kind: Kind, change: Change) -> None:
        if kind is kinds.NAMESPACE or kind == kinds.NAMESPACE:
            if change.new is not None:
                self.controller.enqueue(change.key)
            return
        if not change.key.namespace:
            return
        key = Key("", change.key.namespace)
        found = self._namespaces.get(key)
        if found is None:
            return
        restores = change.kind == "removed" and kind == kinds.SERVICE_ACCOUNT and change.key.name == "default"
        if self._root_ca and kind == kinds.CONFIG_MAP and change.key.name == ROOT_CA and change.old is not None:
            self._doubtful.add(change.key.namespace)
            restores = True
        if restores or (found["metadata"].get("deletionTimestamp") and change.kind != "changed"):
            self.controller.enqueue(key)

    async def reconcile(self, key: Key) -> float | None:
        namespace = self._namespaces.get(key)
        if namespace is None:
            return None
        if namespace["metadata"].get("deletionTimestamp"):
            return await self._empty(namespace)
        await self._furnish(key.name)
        return None

    async def _furnish(self, name: str) -> None:
        wanted: list[tuple[Kind, Json]] = [(kinds.SERVICE_ACCOUNT, {"metadata": {"name": "default"}})]
        if self._root_ca:
            wanted.append((kinds.CONFIG_MAP, {"metadata": {"name": ROOT_CA}, "data": {"ca.crt": self._root_ca}}))
        if name in self._doubtful:
            self._doubtful.discard(name)
            await self._restore_bundle(name)
        for kind, body in wanted:
            if self._caches.has(kind, Key(name, body["metadata"]["name"])):
                continue
            try:
                await self._client.create(kind, {"apiVersion": "v1", "kind": kind.kind, **body}, name)
            except (AlreadyExists, Forbidden, NotFound):
                continue  # there already, or the namespace is on its way out

    async def _restore_bundle(self, namespace: str) -> None:
        """Pods trust what is in it: no other client may change it."""
        try:
            held = await self._client.get(kinds.CONFIG_MAP, ROOT_CA, namespace)
            if held.get("data") != {"ca.crt": self._root_ca}:
                data = {**dict.fromkeys(held.get("data") or ()), "ca.crt": self._root_ca}
                await self._client.patch(kinds.CONFIG_MAP, ROOT_CA, namespace, {"data": data})
        except NotFound:
            return  # made again below

    async def _empty(self, namespace: Json) -> float | None:
        """Delete what is there, pods before all else, so that nothing they use goes before them; release the namespace
        when nothing is left."""
        name = namespace["metadata"]["name"]
        if FINALIZER not in ((namespace.get("spec") or {}).get("finalizers") or ()):
            return None
        left = [kind for kind in self._caches.kinds() if kind.namespaced and self._caches.in_namespace(kind, name)]
        if kinds.POD in left:
            await self._delete_all(kinds.POD, name)
        remaining = await self._remaining(name)
        if kinds.POD not in remaining and (left or remaining):
            await asyncio.gather(*(self._delete_all(kind, name) for kind in {*left, *remaining}))
            remaining = await self._remaining(name)
        if remaining:
            await self._publish(namespace, remaining)
            return LOOK_AGAIN
        await self._delete_all(kinds.EVENT, name)  # last: what went before them was told there
        finalizers = [one for one in namespace["spec"]["finalizers"] if one != FINALIZER]
        body = {**namespace, "spec": {**namespace["spec"], "finalizers": finalizers}}
        try:
            await self._client.update(kinds.NAMESPACE, body, name, subresource="finalize")
        except Conflict:
            return 0.01
        except NotFound:
            return None
        return None

    async def _delete_all(self, kind: Kind, namespace: str) -> None:
        try:
            await self._client.request("DELETE", kind.path(namespace), query={"propagationPolicy": "Background"})
        except ApiError as error:
            if error.code not in (404, 405):
                raise

    async def _remaining(self, namespace: str) -> dict[Kind, Left]:
        """Asked of the server itself, for a cache may lag: an object made a moment ago must not be left behind."""
        found: dict[Kind, Left] = {}
        for kind in [kind for kind in self._caches.kinds() if kind.namespaced]:
            try:
                page = await self._client.list_raw(kind, namespace, limit=MOST_READ)
            except NotFound:
                continue
            if page.items:
                heads = [msgspec.json.decode(item, type=Head) for item in page.items]
                finalizers = Counter(one for head in heads for one in head.metadata.finalizers or ())
                found[kind] = Left(len(heads) + (page.metadata.remaining_item_count or 0), finalizers)
        return found

    async def _publish(self, namespace: Json, remaining: dict[Kind, Left]) -> None:
        """The five conditions that Kubernetes writes, so that a client sees what it waits for."""
        content = ", ".join(f"{kind.resource} has {left.count} resource instances" for kind, left in
                            sorted(remaining.items()))  # fmt: skip
        finalizers: Counter[str] = sum((left.finalizers for left in remaining.values()), Counter())
        held_by = ", ".join(f"{name} in {count} resource instances" for name, count in sorted(finalizers.items()))
        wanted = [
            _condition("DeletionDiscoveryFailure", False, "ResourcesDiscovered",
                       "All resources successfully discovered"),
            _condition("DeletionGroupVersionParsingFailure", False, "ParsedGroupVersions",
                       "All legacy kube types successfully parsed"),
            _condition("DeletionContentFailure", False, "ContentDeleted",
                       "All content successfully deleted, may be waiting on finalization"),
            _condition("ContentRemaining", True, "SomeResourcesRemain", f"Some resources are remaining: {content}"),
            _condition("FinalizersRemaining", True, "SomeFinalizersRemain",
                       f"Some content in the namespace has finalizers remaining: {held_by}") if held_by else
            _condition("FinalizersRemaining", False, "ContentHasNoFinalizers",
                       "All content-preserving finalizers finished"),
        ]  # fmt: skip
        held = {one["type"]: one for one in (namespace.get("status") or {}).get("conditions") or ()}
        if all(one.items() <= held.get(one["type"], {}).items() for one in wanted):
            return
        now = seconds_text(self._caches.clock.now())
        for one in wanted:
            before = held.pop(one["type"], None)
            same = before is not None and before.get("status") == one["status"]
            one["lastTransitionTime"] = before["lastTransitionTime"] if before is not None and same else now
        change = {"status": {"conditions": [*held.values(), *wanted]}}
        name = namespace["metadata"]["name"]
        try:
            told = await self._client.patch(kinds.NAMESPACE, name, None, change, subresource="status")
        except (Conflict, NotFound):
            return
        self._namespaces.note_write(told)


def _condition(kind: str, holds: bool, reason: str, message: str) -> Json:
    return {"type": f"Namespace{kind}", "status": str(holds), "reason": reason, "message": message}
