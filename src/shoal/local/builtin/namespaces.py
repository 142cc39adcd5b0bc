"""The life of a namespace: what it is given at birth, and how it is emptied before it goes.

A new namespace gets its default service account and the CA bundle that pods read. One that is being deleted has all
its content deleted, kind by kind, and is released when the server itself says that nothing is left.
"""

from __future__ import annotations

import asyncio

from shoal.api import kinds
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.kube.cache import Change
from shoal.kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound
from shoal.kube.runtime import Controller
from shoal.local.builtin.census import Census

ROOT_CA = "kube-root-ca.crt"
FINALIZER = "kubernetes"
LOOK_AGAIN = 15.0  # should an event be lost; what is removed brings us back at once


class Namespaces:
    def __init__(self, census: Census, root_ca: str = "") -> None:
        self._census = census
        self._client = census.client
        self._root_ca = root_ca
        self._namespaces = census.cache(kinds.NAMESPACE)
        self.controller: Controller[Key] = Controller("namespaces", self.reconcile, workers=4, clock=census.clock)

    async def run(self) -> None:
        self._census.listen(self._on_change)
        await self._census.ready.wait()
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
        restores = change.kind == "removed" and (
            (kind == kinds.SERVICE_ACCOUNT and change.key.name == "default")
            or (kind == kinds.CONFIG_MAP and change.key.name == ROOT_CA)
        )
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
        for kind, body in wanted:
            if self._census.has(kind, Key(name, body["metadata"]["name"])):
                continue
            try:
                await self._client.create(kind, {"apiVersion": "v1", "kind": kind.kind, **body}, name)
            except (AlreadyExists, Forbidden, NotFound):
                continue  # there already, or the namespace is on its way out

    async def _empty(self, namespace: Json) -> float | None:
        """Delete what is there; release the namespace when nothing is left."""
        name = namespace["metadata"]["name"]
        if FINALIZER not in ((namespace.get("spec") or {}).get("finalizers") or ()):
            return None
        left = [kind for kind in self._census.kinds() if kind.namespaced and self._census.in_namespace(kind, name)]
        if left:
            await asyncio.gather(*(self._delete_all(kind, name) for kind in left))
        remaining = await self._remaining(name)
        if remaining:
            await self._tell(namespace, remaining)
            return LOOK_AGAIN
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

    async def _remaining(self, namespace: str) -> dict[Kind, int]:
        """Asked of the server itself, for a cache may lag: an object made a moment ago must not be left behind."""
        found: dict[Kind, int] = {}
        for kind in [kind for kind in self._census.kinds() if kind.namespaced]:
            try:
                page = await self._client.list_raw(kind, namespace, limit=1)
            except NotFound:
                continue
            if page.items:
                found[kind] = len(page.items) + (page.metadata.remaining_item_count or 0)
        return found

    async def _tell(self, namespace: Json, remaining: dict[Kind, int]) -> None:
        now = seconds_text(self._census.clock.now())
        words = ", ".join(
            f"{kind.resource} has {count} resource instances" for kind, count in sorted(remaining.items())
        )
        wanted: Json = {"type": "NamespaceContentRemaining", "status": "True", "reason": "SomeResourcesRemain",
                        "message": f"Some resources are remaining: {words}"}  # fmt: skip
        conditions = [dict(c) for c in (namespace.get("status") or {}).get("conditions") or ()]
        held = next((c for c in conditions if c["type"] == wanted["type"]), None)
        if held is not None and held.get("message") == wanted["message"]:
            return
        since = held["lastTransitionTime"] if held else now
        kept = [c for c in conditions if c["type"] != wanted["type"]]
        change = {"status": {"conditions": [*kept, {**wanted, "lastTransitionTime": since}]}}
        name = namespace["metadata"]["name"]
        try:
            told = await self._client.patch(kinds.NAMESPACE, name, None, change, subresource="status")
        except (Conflict, NotFound):
            return
        self._namespaces.note_write(told)
