"""Gangs of the hub in a member in which nothing of ours runs: the wrapped objects themselves.

Each is created stopped (suspended, without replicas, or behind a scheduling gate), compared with what was sent, and
released with one change on the very revision that was seen. Every object carries the hub's mark, the UID of the hub's
AppWrapper and the round; only by these is it ever taken for ours. The kinds that were ever sent here are stored with
the MultiKueueCluster before the first object of a kind is made, so that a hub that starts again finds all of them.
Writes only into its own cluster, deletes by UID.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

from shoal.api.kind import Key, Kind
from shoal.api.labels import GATED
from shoal.api.meta import Json
from shoal.api.objects import annotation, label
from shoal.controllers.demand.stopped import Stopped, stopped
from shoal.controllers.multicluster import words
from shoal.controllers.multicluster.copies import altered, marks
from shoal.controllers.multicluster.settings import ClusterSettings
from shoal.controllers.planning.caches import UNREADABLE
from shoal.controllers.planning.other_clusters import ObjectName
from shoal.kube.awaited import Awaited
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.discovery import Discovery
from shoal.kube.errors import AlreadyExists, Conflict, NotFound
from shoal.kube.writes import Writer

RELEASE_ATTEMPTS = 4
_decoder = msgspec.json.Decoder(dict[str, Any])
COMPARED = ("spec", "data", "stringData", "binaryData")


class NotTaken(Exception):
    """This member does not take one of the objects; the text says why."""


class BareGang(msgspec.Struct, frozen=True):
    """What a round of a gang is made of, and whose it is."""

    uid: str
    epoch: int
    namespace: str


class BareCopies:
    """`heard(uid)` tells of a change of a gang's object; `remember(names)` stores kinds, as `apiVersion/kind`."""

    def __init__(
        self,
        client: Client,
        writer: Writer,
        origin: str,
        settings: ClusterSettings,
        clock: Clock,
        awaited: Awaited,
        heard: Callable[[str], None],
        remember: Callable[[tuple[str, ...]], Awaitable[None]],
    ) -> None:
        self._client, self._writer, self._origin, self._clock = client, writer, origin, clock
        self._awaited = awaited
        self._most, self._heard, self._remember = settings.answers.held, heard, remember
        self._kinds = Discovery(client)
        self._caches: dict[Kind, Cache[Json]] = {}
        self._begun: asyncio.Queue[Cache[Json]] = asyncio.Queue()

    async def begin(self, known: Iterable[str]) -> list[Cache[Json]]:
        """Watch what was ever sent here."""
        for text in known:
            api_version, _, name = text.rpartition("/")
            if (kind := await self._kinds.kind_of(api_version, name)) is not None:
                self._watch(kind)
        return list(self._caches.values())

    async def run(self) -> None:
        """Feed what is watched, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                cache = await self._begun.get()
                tasks.create_task(cache.run())

    def _watch(self, kind: Kind) -> Cache[Json]:
        if kind not in self._caches:
            cache: Cache[Json] = Cache(
                self._client,
                kind,
                dict,
                label_selector=f"{words.HUB}={self._origin}",
                indexes={"hub": lambda one: (marks(one)[0],)},
                clock=self._clock,
                most=self._most,
                report=self._awaited.report(kind, lambda trouble: trouble.reason in UNREADABLE),
            )
            cache.subscribe(self._changed)
            self._caches[kind] = cache
            self._begun.put_nowait(cache)
        return self._caches[kind]

    def _changed(self, change: Change) -> None:
        self._heard(marks(change.new or change.old)[0])

    def pod_changed(self, uid: str) -> None:
        """A pod that names this gang changed."""
        if self.holds(uid):
            self._heard(uid)

    # --- what is here

    def every(self) -> list[tuple[Kind, Json]]:
        return [(kind, one) for kind, cache in self._caches.items() for one in cache.list()]

    def of_gang(self, uid: str) -> list[Json]:
        return [one for cache in self._caches.values() for one in cache.by_index("hub", uid)]

    def holds(self, uid: str) -> bool:
        return any(cache.by_index("hub", uid) for cache in self._caches.values())

    async def find(self, gang: BareGang, names: Sequence[ObjectName]) -> list[Json | None]:
        """The objects of this round, in the order of their names."""
        return [await self._find(gang, name) for name in names]

    async def _find(self, gang: BareGang, name: ObjectName) -> Json | None:
        kind = await self._kinds.kind_of(name[0], name[1])
        if kind is None:
            return None
        cache = self._watch(kind)
        found = cache.get(Key(gang.namespace, name[2])) if cache.synced.is_set() else None
        if found is None or marks(found) != (gang.uid, gang.epoch):
            found = await self._look_up(kind, name[2], gang.namespace)
        return found if found is not None and self._is_round(found, gang) else None

    async def _look_up(self, kind: Kind, name: str, namespace: str) -> Json | None:
        try:
            found: Json = await self._client.get(kind, name, namespace)
        except NotFound:
            return None
        return {**found, "apiVersion": kind.api_version, "kind": kind.kind}

    # --- making

    async def create(self, gang: BareGang, objects: Sequence[Json]) -> bool:
        """All of them, stopped; False: something of an earlier round is still on its way out. Raises NotTaken."""
        wanted = [(await self._kind_of(obj), _stopped(obj)) for obj in objects]
        await self._remember(tuple(dict.fromkeys(f"{kind.api_version}/{kind.kind}" for kind, _ in wanted)))
        made = [await self._create(gang, kind, one) for kind, one in wanted]
        return all(made)

    async def _kind_of(self, obj: Json) -> Kind:
        kind = await self._kinds.kind_of(str(obj["apiVersion"]), str(obj["kind"]))
        if kind is None or not kind.namespaced:
            raise NotTaken(f"it serves no {obj['kind']} in {obj['apiVersion']}")
        return kind

    async def _create(self, gang: BareGang, kind: Kind, one: Stopped) -> bool:
        self._watch(kind)
        body = self._marked(gang, one)
        name = str(body["metadata"]["name"])
        try:
            found = await self._writer.create(kind, body)
        except AlreadyExists:
            there = await self._look_up(kind, name, gang.namespace)
            if there is None or there["metadata"].get("deletionTimestamp"):
                return False
            if label(there, words.HUB) != self._origin or marks(there)[0] != gang.uid:
                said = f"{kind.kind} {gang.namespace}/{name} exists there and is not this hub's; it is left alone"
                raise NotTaken(said) from None
            if marks(there)[1] != gang.epoch:
                await self._delete(kind, there)
                return False
            found = there
        if annotation(found, GATED) or not one.release:
            for part in COMPARED:
                if problem := altered(body.get(part), found.get(part), part) if part in body else "":
                    raise NotTaken(f"it would store {kind.kind} {name} {problem} differently; is its version older?")
        return True

    def _marked(self, gang: BareGang, one: Stopped) -> Json:
        metadata = {**one.body["metadata"]}
        metadata.pop("ownerReferences", None)
        gate = {GATED: msgspec.json.encode(one.release["spec"]).decode()} if one.release else {}
        metadata["labels"] = {**(metadata.get("labels") or {}), words.HUB: self._origin}
        metadata["annotations"] = {
            **(metadata.get("annotations") or {}),
            words.HUB_WORKLOAD: gang.uid,
            words.EPOCH: str(gang.epoch),
            **gate,
        }
        return {**one.body, "metadata": metadata}

    # --- releasing and removing

    async def release(self, gang: BareGang, names: Sequence[ObjectName]) -> bool:
        """Each that is still stopped, once; False: not all are known to be released."""
        done = [await self._release(gang, name) for name in names]
        return all(done)

    async def _release(self, gang: BareGang, name: ObjectName) -> bool:
        kind = await self._kinds.kind_of(name[0], name[1])
        for _ in range(RELEASE_ATTEMPTS if kind is not None else 0):
            assert kind is not None
            found = await self._look_up(kind, name[2], gang.namespace)
            if found is None or not self._is_round(found, gang) or found["metadata"].get("deletionTimestamp"):
                return False
            if not (text := annotation(found, GATED)):
                return True
            change = {"spec": _decoder.decode(text), "metadata": {"annotations": {GATED: None}}}
            try:
                self._watch(kind).note_write(await self._writer.patch(kind, found, change))
            except Conflict:
                continue  # its controller told something of it meanwhile
            return True
        return False

    async def remove(self, gang: BareGang, names: Sequence[ObjectName], *, whole: bool) -> bool:
        """True once none of this gang's objects is here, of whatever round. `whole`: nor anything that they made."""
        left = False
        for name in names:
            kind = await self._kinds.kind_of(name[0], name[1])
            found = await self._look_up(kind, name[2], gang.namespace) if kind is not None else None
            if kind is None or found is None or label(found, words.HUB) != self._origin or marks(found)[0] != gang.uid:
                continue
            left = True
            if not found["metadata"].get("deletionTimestamp"):
                await self._delete(kind, found, whole=whole)
        return not left

    async def delete(self, kind: Kind, found: Json) -> None:
        await self._delete(kind, found)

    async def _delete(self, kind: Kind, found: Json, *, whole: bool = False) -> None:
        await self._writer.delete(kind, found, propagation="Foreground" if whole else "Background")

    def _is_round(self, found: Json, gang: BareGang) -> bool:
        return label(found, words.HUB) == self._origin and marks(found) == (gang.uid, gang.epoch)

    async def caught_up(self) -> None:
        for cache in self._caches.values():
            if cache.synced.is_set():
                await cache.catch_up()


def _stopped(obj: Json) -> Stopped:
    made = stopped(obj)
    if made is None:
        raise NotTaken(f"a {obj.get('kind')} cannot be created there without starting at once")
    return made
