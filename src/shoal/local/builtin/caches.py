"""Every kind of object that the server holds, each in one cache, shared by all built-in controllers.

The garbage collector and the namespace controller must know all objects of all kinds, the workload controllers the
whole of a few. Kinds that no controller reads are cached by their metadata alone. Kinds come and go with their CRDs;
subscribers are told of the objects of kinds that appear later, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json, OwnerReference, Part
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.errors import KubeError, NotFound

log = logging.getLogger(__name__)

WHOLE = (kinds.POD, kinds.NODE, kinds.NAMESPACE, kinds.SERVICE, kinds.REPLICA_SET,
         kinds.REPLICATION_CONTROLLER, kinds.DEPLOYMENT, kinds.STATEFUL_SET,
         kinds.DAEMON_SET, kinds.JOB, kinds.ENDPOINTS, kinds.ENDPOINT_SLICE, kinds.PERSISTENT_VOLUME_CLAIM,
         kinds.POD_DISRUPTION_BUDGET, kinds.CRD)  # fmt: skip
_IGNORED = frozenset(("events", "events.events.k8s.io"))  # short-lived, many, and never an owner
RETRY = 2.0
_NEEDED_VERBS = frozenset(("list", "watch", "delete"))


class HeadMeta(Part):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None
    finalizers: tuple[str, ...] | None = None


class Head(Part):
    """What the collector reads of any object."""

    metadata: HeadMeta = HeadMeta()


class Thing(msgspec.Struct, frozen=True):
    """One object, as far as ownership and namespaces are concerned."""

    kind: Kind
    key: Key
    uid: str
    resource_version: str
    deleting: bool
    owners: tuple[OwnerReference, ...]
    finalizers: tuple[str, ...]


def thing_of(kind: Kind, key: Key, obj: Any) -> Thing:
    metadata = obj.metadata if isinstance(obj, Head) else msgspec.convert(obj["metadata"], HeadMeta)
    return Thing(
        kind, key, metadata.uid, metadata.resource_version, metadata.deletion_timestamp is not None,
        metadata.owner_references or (), metadata.finalizers or (),
    )  # fmt: skip


def _owner_uids(obj: Json) -> list[str]:
    return [owner["uid"] for owner in obj["metadata"].get("ownerReferences") or () if owner.get("controller")]


def _namespace(obj: Json) -> list[str]:
    return [obj["metadata"].get("namespace", "")]


Listener = Callable[[Kind, Change], None]


class ObjectCaches:
    """All caches. `run` keeps them filled; `ready` is set once every kind known at the start has been read."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self.client = client
        self.clock = clock
        self.ready = asyncio.Event()
        self._whole: dict[Kind, Cache[Json]] = {
            kind: Cache(client, kind, indexes=_INDEXES, clock=clock) for kind in WHOLE
        }
        self._heads: dict[Kind, Cache[Head]] = {}
        self._running: dict[Kind, asyncio.Task[None]] = {}
        self._listeners: list[Listener] = []
        self._group: asyncio.TaskGroup | None = None

    def cache(self, kind: Kind) -> Cache[Json]:
        """The whole objects of one of the kinds in `WHOLE`."""
        return self._whole[kind]

    def kinds(self) -> list[Kind]:
        return [*self._whole, *self._heads]

    def known(self, api_version: str, name: str) -> Kind | None:
        """The cached kind that a reference means: its group decides, the version may be another."""
        group = api_version.rpartition("/")[0]
        return next((kind for kind in self.kinds() if kind.group == group and kind.kind == name), None)

    def listen(self, listener: Listener) -> None:
        """Call for every change of every object of every kind, those of later kinds included."""
        self._listeners.append(listener)
        for kind in self.kinds():
            self._cache_of(kind).subscribe(partial(listener, kind))

    def has(self, kind: Kind, key: Key) -> bool:
        """Whether an object is known; False also for kinds that are not."""
        held = next((other for other in self.kinds() if (other.group, other.kind) == (kind.group, kind.kind)), None)
        return held is not None and self._cache_of(held).get(key) is not None

    def in_namespace(self, kind: Kind, namespace: str) -> bool:
        """Whether any object of the kind is known there."""
        return any(key.namespace == namespace for key in self._cache_of(kind))

    def _cache_of(self, kind: Kind) -> Cache[Any]:
        return self._whole[kind] if kind in self._whole else self._heads[kind]

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for kind in self._whole:
                self._start(kind)
            for kind in await self._discover():
                self._add(kind)
            leave = self._whole[kinds.CRD].subscribe(self._on_crd)
            try:
                for kind in self.kinds():
                    await self._cache_of(kind).synced.wait()
                self.ready.set()
                await asyncio.Event().wait()
            finally:
                leave()  # a group that ends takes no more tasks

    def _start(self, kind: Kind) -> None:
        assert self._group is not None
        self._running[kind] = self._group.create_task(self._cache_of(kind).run())

    def _add(self, kind: Kind) -> None:
        if any(other.group == kind.group and other.kind == kind.kind for other in self.kinds()):
            return
        cache: Cache[Head] = Cache(self.client, kind, Head, clock=self.clock)
        self._heads[kind] = cache
        for listener in self._listeners:
            cache.subscribe(partial(listener, kind))
        self._start(kind)

    def _drop(self, kind: Kind) -> None:
        cache = self._heads.pop(kind, None)
        if cache is None:
            return
        self._running.pop(kind).cancel()
        for key in list(cache):
            obj = cache.get(key)
            for listener in self._listeners:
                listener(kind, Change("removed", key, obj, None))

    def _on_crd(self, change: Change) -> None:
        if change.new is None:
            wanted = _crd_kind(change.old)
            for kind in [k for k in self._heads if wanted and (k.group, k.plural) == (wanted.group, wanted.plural)]:
                self._drop(kind)
            return
        defined = _crd_kind(change.new)
        established = any(c.get("type") == "Established" and c.get("status") == "True"
                          for c in (change.new.get("status") or {}).get("conditions") or ())  # fmt: skip
        if defined is None or not established:
            return
        served = {version["name"] for version in change.new["spec"]["versions"] if version.get("served")}
        for kind in [k for k in self._heads if (k.group, k.plural) == (defined.group, defined.plural)]:
            if kind.version not in served:
                self._drop(kind)  # it is watched at a version that is no more
        self._add(defined)

    async def _discover(self) -> list[Kind]:
        """All kinds that can be listed, watched and deleted, each at its preferred version."""
        paths = [("", "v1", "/api/v1")]
        groups = await self._document("/apis")
        for group in groups.get("groups") or ():
            version = group["preferredVersion"]["version"]
            paths.append((group["name"], version, f"/apis/{group['name']}/{version}"))
        found = []
        for group, version, path in paths:
            for entry in (await self._document(path)).get("resources") or ():
                kind = Kind(group, version, entry["kind"], entry["name"], bool(entry.get("namespaced")))
                if (
                    "/" in kind.plural
                    or kind.resource in _IGNORED
                    or not set(entry.get("verbs") or ()) >= _NEEDED_VERBS
                ):
                    continue
                found.append(kind)
        return found

    async def _document(self, path: str) -> Json:
        while True:
            try:
                answer = await self.client.request("GET", path)
            except NotFound:
                return {}
            except KubeError as error:
                log.warning("the server's kinds cannot be read (again in %.0f s): %s", RETRY, error)
                await self.clock.sleep(RETRY)
                continue
            document: Json = msgspec.json.decode(answer.body)
            return document


def _node(obj: Json) -> list[str]:
    node = (obj.get("spec") or {}).get("nodeName") if obj["kind"] == "Pod" else None
    return [node] if node else []


def _orphan(obj: Json) -> list[str]:
    """The namespace, for a pod or a ReplicaSet without a controller."""
    if obj["kind"] not in ("Pod", "ReplicaSet") or _owner_uids(obj):
        return []
    return [obj["metadata"].get("namespace", "")]


def _crd_kind(crd: Json) -> Kind | None:
    """The kind that a CRD defines, at its stored version."""
    spec = crd.get("spec") or {}
    names = spec.get("names") or {}
    served = [version for version in spec.get("versions") or () if version.get("served")]
    stored = next((version for version in served if version.get("storage")), served[0] if served else None)
    if stored is None or not names.get("kind") or not names.get("plural"):
        return None
    return Kind(spec["group"], stored["name"], names["kind"], names["plural"], spec.get("scope") == "Namespaced")


async def live(client: Client, kind: Kind, key: Key) -> Json | None:
    """The object as the server has it now."""
    try:
        return await client.get(kind, key.name, key.namespace or None)
    except NotFound:
        return None


async def remove_finalizer(client: Client, kind: Kind, key: Key, uid: str, finalizer: str) -> None:
    """Take one finalizer off this very object, however often others write to it meanwhile."""
    for _ in range(10):
        obj = await live(client, kind, key)
        if obj is None or obj["metadata"]["uid"] != uid:
            return
        finalizers = obj["metadata"].get("finalizers") or []
        if finalizer not in finalizers:
            return
        change = {"uid": uid, "resourceVersion": obj["metadata"]["resourceVersion"],
                  "finalizers": [name for name in finalizers if name != finalizer]}  # fmt: skip
        try:
            await client.patch(kind, key.name, key.namespace or None, {"metadata": change})
            return
        except NotFound:
            return
        except KubeError as error:
            if getattr(error, "code", 0) != 409:
                raise
    log.debug("%s %s: its finalizer %s stays for now; others keep writing", kind.resource, key, finalizer)


_INDEXES = {"owner": _owner_uids, "node": _node, "orphan": _orphan, "namespace": _namespace}
