"""A live copy of one kind: what controllers read instead of asking the server.

`Cache` holds decoded objects with indexes and tells subscribers what changed; `feed.py` keeps it filled by list and
watch. It never invents a state: an object is applied only when it is newer than what is held, an object that does
not decode leaves the last good one in place, and an older list never removes what was seen later.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from typing import Any, Generic, Literal, TypeVar

import msgspec

from shoal.api.kind import Key, Kind
from shoal.api.meta import Json, Object
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.compact import cutter
from shoal.kube.errors import Overfull
from shoal.kube.feed import Feed, FeedSettings, Sink
from shoal.kube.revisions import RevisionMark, newer, read_mark
from shoal.kube.selectors import label_selector as parse_labels
from shoal.kube.sharing import Sharer
from shoal.kube.slices import SlicedFeed
from shoal.kube.trouble import Trouble

T = TypeVar("T")
log = logging.getLogger(__name__)

Index = Callable[[Any], Iterable[str]]
REMEMBERED_REMOVALS = 4096
REMEMBERED_FOR = 1800.0
"""Seconds: an event that is later than that does not come, and a list names what is there."""
MOST_UNDECODABLE = 4096
"""Of a server whose objects are kept up to a limit."""


class Change(msgspec.Struct, frozen=True, gc=False):
    """`old` is None for "added", `new` is None for "removed". A name taken by a new UID is removed, then added."""

    kind: Literal["added", "changed", "removed"]
    key: Key
    old: Any
    new: Any


class _Removal(msgspec.Struct, frozen=True, gc=False):
    """`certain`: the server told us that this very object is gone. Otherwise a list only did not name it."""

    uid: str
    revision: str
    certain: bool
    at: float = 0.0
    """Seconds of the monotonic clock."""


class Cache(Generic[T]):
    """Objects of one kind by key. `type` is `dict`, or a Struct extending `api.meta.Object` that names what is read.

    Dictionaries are held without managedFields; a client that writes them back leaves those to the server.
    """

    def __init__(
        self,
        client: Client,
        kind: Kind,
        type: type[T] = dict,  # type: ignore[assignment]  # T is dict where no type is given
        *,
        namespace: str | None = None,
        everywhere: bool = False,
        label_selector: str = "",
        field_selector: str = "",
        indexes: Mapping[str, Index] | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        settings: FeedSettings | None = None,
        report: Callable[[Trouble], None] | None = None,
        share: bool = False,
        requires: tuple[str, ...] = (),
        view: Callable[[Json], T] | None = None,
        most: int = 0,
    ) -> None:
        """`view` makes what is held from the whole object, for types that keep that beside what they read of it. Called
        once for each revision.

        `share` stores equal parts of objects once: for caches that hold many and change slowly.

        A client that is limited to namespaces is asked for those alone, but for caches of what is `everywhere`.

        `requires` names fields without which nothing is read: what a server with an older CRD would drop.
        `most` bytes of objects are kept, as the server sends them; beyond that nothing more is read. 0: any number.
        """
        self.kind = kind
        self.synced = asyncio.Event()
        self.turn = 0
        """Counts changes."""
        self.undecodable: dict[Key, str] = {}
        """Objects that do not decode, with the reason; the last good state of each stays in the cache."""
        self._type = type
        self._view = view
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(type if view is None else dict)
        self._cut = cutter(type) if view is None else None
        self._sharer = Sharer() if share else None
        self._objects: dict[Key, T] = {}
        self._index_functions = dict(indexes or {})
        self._indexes: dict[str, dict[str, dict[Key, None]]] = {name: {} for name in self._index_functions}
        self._subscribers: list[Callable[[Change], None]] = []
        self._removed: OrderedDict[Key, _Removal] = OrderedDict()
        self._clock: Clock = clock or SystemClock()
        self._selects_labels = parse_labels(label_selector)
        self._selects_fields = bool(field_selector)
        limited = namespace is None and kind.namespaced and not everywhere
        scope = client.namespaces if limited else ()
        self._namespaces = frozenset(scope if namespace is None else (namespace,))
        self._report = report
        self._most = most
        self._sizes: dict[Key, int] = {}
        self._size = 0

        def feed(sink: Sink, where: str | None) -> Feed:
            return Feed(
                client,
                kind,
                sink,
                namespace=where,
                label_selector=label_selector,
                field_selector=field_selector,
                clock=self._clock,
                random=random or Random(),
                settings=settings or FeedSettings(),
                report=report,
                requires=requires,
            )

        self.feed: Feed | SlicedFeed = SlicedFeed(self, scope, feed) if scope else feed(self, namespace)

    # --- reading

    def get(self, key: Key) -> T | None:
        return self._objects.get(key)

    def list(self, namespace: str | None = None) -> builtins.list[T]:
        if namespace is None:
            return [*self._objects.values()]
        return [obj for key, obj in self._objects.items() if key.namespace == namespace]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def by_index(self, name: str, value: str) -> builtins.list[T]:
        return [self._objects[key] for key in self._indexes[name].get(value, ())]

    @property
    def remembered(self) -> int:
        """How many removed objects are remembered, so that a late event does not bring one back."""
        return len(self._removed)

    @property
    def trouble(self) -> Trouble | None:
        """Why the cache is not being kept up to date, in words for a condition; None when all is well."""
        return self.feed.trouble

    # --- being told

    def subscribe(self, function: Callable[[Change], None]) -> Callable[[], None]:
        """Call `function` for every change from now on, and at once for all that is held. Returns how to end it."""
        self._subscribers.append(function)
        for key, obj in [*self._objects.items()]:
            self._tell_one(function, Change("added", key, None, obj))
        return lambda: self._subscribers.remove(function)

    async def run(self) -> None:
        """Keep the cache filled until cancelled."""
        await self.feed.run()

    async def catch_up(self) -> None:
        """Return when all that was acknowledged before this call is held: for a standby that has just become leader."""
        await self.synced.wait()
        await self.feed.catch_up()

    # --- our own writes

    def note_write(self, obj: Any) -> None:
        """Take over the answer to a write of ours, so that the next look sees it before the watch brings it."""
        try:
            converted = self.as_held(obj)
            mark = self._mark_of(converted)
        except (msgspec.ValidationError, KeyError, TypeError, AttributeError) as error:
            log.debug("%s: a written object is left to the watch: %s", self.kind.resource, error)
            return
        if not mark.name or (self._namespaces and mark.namespace not in self._namespaces):
            return
        key = mark.key
        if key not in self._objects and (self._selects_fields or not self._selects_labels(self._labels(converted))):
            return
        self._apply(key, mark, converted)

    def note_delete(self, obj: Any) -> None:
        """A delete of this very object was acknowledged as final (no finalizer or grace period keeps it)."""
        mark = self._mark_of(obj)
        key = mark.key
        held = self._objects.get(key)
        if held is not None and self._mark_of(held).uid == mark.uid:
            self._remember_removed(key, self._removal(mark.uid, self._mark_of(held).resource_version))
            self._remove(key)

    def as_held(self, obj: Any) -> T:
        """An object as it would be held had it come from the server; the caller's own stays as it is."""
        if isinstance(obj, dict) and (self._view is not None or self._type is dict):
            mark = self._mark_of(obj)
            held = self._objects.get(mark.key)
            if held is not None and self._mark_of(held) == mark:
                return held  # the watch was faster than the answer
            return self._filled({**obj, "metadata": {**obj["metadata"]}})
        if isinstance(obj, self._type):
            return obj
        return self._filled(self._decoder.decode(msgspec.json.encode(obj)))

    # --- what the feed brings

    def take(self, raw: msgspec.Raw, *, listed_at: str = "", forced: bool = False) -> RevisionMark | None:
        """Apply one object as the server sent it. Returns its mark even when the rest does not decode.

        `listed_at` is the revision of the list that it is an item of.
        """
        try:
            mark = read_mark(raw)
            if not forced and self._is_stale(mark.key, mark, self._objects.get(mark.key), listed_at):
                return mark  # our own writes come back: held already, and not worth decoding
            obj = self._decoder.decode(raw)
            if isinstance(obj, dict):
                obj["metadata"]["name"] = mark.name  # once, for the key and the object
            if self._most:
                self._weigh(mark.key, memoryview(raw).nbytes)
            obj = self._filled(obj)
        except (msgspec.MsgspecError, KeyError, TypeError, AttributeError) as error:
            return self._cannot_decode(bytes(raw), error)
        self._apply(mark.key, mark, obj, listed_at=listed_at, forced=forced)
        return mark

    def drop(self, raw: msgspec.Raw) -> RevisionMark | None:
        """Apply a DELETED event, unless what is held is newer (deleted and made again since)."""
        try:
            mark = read_mark(raw)
        except msgspec.MsgspecError as error:
            return self._cannot_decode(bytes(raw), error)
        key = mark.key
        self.undecodable.pop(key, None)
        held = self._objects.get(key)
        if held is not None and newer(self._mark_of(held).resource_version, mark.resource_version):
            return mark
        self._remember_removed(key, self._removal(mark.uid, mark.resource_version))
        if held is not None:
            self._remove(key)
        return mark

    def keep_only(self, listed: set[Key], revision: str, *, forced: bool = False, within: str = "") -> None:
        """End of a full list at `revision`: what it did not name is gone, unless it was seen after that revision.
        `within`: it was a list of this namespace alone."""
        for key in [key for key in self._objects if key not in listed and within in ("", key.namespace)]:
            mark = self._mark_of(self._objects[key])
            if forced or not newer(mark.resource_version, revision):
                self._remember_removed(key, self._removal(mark.uid, revision, certain=False))
                self._remove(key)
        for key in [key for key in self.undecodable if key not in listed and within in ("", key.namespace)]:
            del self.undecodable[key]
        if not within:
            self.synced.set()

    def revision_of(self, key: Key) -> str | None:
        held = self._objects.get(key)
        return None if held is None else self._mark_of(held).resource_version

    # --- inside

    def _apply(self, key: Key, mark: RevisionMark, obj: T, *, listed_at: str = "", forced: bool = False) -> None:
        old = self._objects.get(key)
        if not forced and self._is_stale(key, mark, old, listed_at):
            return
        try:
            values = {name: [*dict.fromkeys(index(obj))] for name, index in self._index_functions.items()}
        except Exception as error:  # an index that cannot read this object must not stop the others
            self._quarantine(key, f"its index failed: {error!r}")
            return
        self.undecodable.pop(key, None)
        self._removed.pop(key, None)
        if old is not None and self._is_another(old, mark):
            self._remove(key)
            old = None
        elif old is not None:
            self._unindex(key, old)
        self._objects[key] = obj
        for name, entries in values.items():
            for value in entries:
                self._indexes[name].setdefault(value, {})[key] = None
        self._tell(Change("added" if old is None else "changed", key, old, obj))

    def _is_another(self, old: T, mark: RevisionMark) -> bool:
        """The name was freed and taken again between two looks."""
        return self._mark_of(old).uid != mark.uid

    def _is_stale(self, key: Key, mark: RevisionMark, old: T | None, listed_at: str) -> bool:
        if old is not None:
            return not newer(mark.resource_version, self._mark_of(old).resource_version)
        removal = self._removed.get(key)
        if removal is None or (removal.certain and mark.uid == removal.uid):
            return removal is not None
        if self._is_disproved(removal, listed_at):
            return False
        return not newer(mark.resource_version, removal.revision)

    def _is_disproved(self, removal: _Removal, listed_at: str) -> bool:
        """One list did not name the object, a later one does: the first had lost it."""
        return not removal.certain and bool(listed_at) and not newer(removal.revision, listed_at)

    def _remove(self, key: Key) -> None:
        old = self._objects.pop(key)
        self._size -= self._sizes.pop(key, 0)
        self._unindex(key, old)
        self._tell(Change("removed", key, old, None))

    def _unindex(self, key: Key, obj: T) -> None:
        for name, index in self._index_functions.items():
            entries = self._indexes[name]
            for value in index(obj):
                keys = entries.get(value)
                if keys is not None:
                    keys.pop(key, None)
                    if not keys:
                        del entries[value]

    def _removal(self, uid: str, revision: str, *, certain: bool = True) -> _Removal:
        return _Removal(uid, revision, certain, self._clock.monotonic())

    def _remember_removed(self, key: Key, removal: _Removal) -> None:
        """So that an event that arrives late does not bring a removed object back."""
        self._removed[key] = removal
        self._removed.move_to_end(key)
        while len(self._removed) > REMEMBERED_REMOVALS or self._oldest_removal() < removal.at - REMEMBERED_FOR:
            self._removed.popitem(last=False)

    def _oldest_removal(self) -> float:
        return next(iter(self._removed.values())).at

    def _tell(self, change: Change) -> None:
        self.turn += 1
        for function in [*self._subscribers]:
            self._tell_one(function, change)

    def _tell_one(self, function: Callable[[Change], None], change: Change) -> None:
        try:
            function(change)
        except Exception:  # one subscriber's mistake must not stop the watch for the others
            log.exception("%s %s: a subscriber failed", self.kind.resource, change.key)

    def _weigh(self, key: Key, size: int) -> None:
        more = size - self._sizes.get(key, 0)
        if self._size + more > self._most:
            raise Overfull(
                f"{self.kind.resource}: the server has more than {self._most >> 20} MiB of them, and no more are kept"
            )
        self._size += more
        self._sizes[key] = size

    def _cannot_decode(self, data: bytes, error: Exception) -> RevisionMark | None:
        try:
            mark = read_mark(data)
        except msgspec.MsgspecError:
            mark = None
        self._quarantine(mark.key if mark else None, str(error))
        return mark

    def _quarantine(self, key: Key | None, reason: str) -> None:
        known = self.undecodable.get(key) if key else None
        if self._most and len(self.undecodable) >= MOST_UNDECODABLE:
            raise Overfull(f"{self.kind.resource}: more than {MOST_UNDECODABLE} of the server's objects cannot be read")
        if key is not None:
            self.undecodable[key] = reason
        if known == reason:
            return
        name = f"{self.kind.resource} {key or '(unnamed)'}"
        message = f"{name} cannot be read and is left alone: {reason}. Correct or delete it."
        log.warning("%s", message)
        if self._report is not None:
            self._report(Trouble("Undecodable", message, key))

    def _filled(self, obj: Any) -> T:
        """Items of a list come without kind and apiVersion: give every object the same texts, and bytes of its own."""
        if self._cut is not None:
            self._cut(obj)
        if isinstance(obj, Object):
            msgspec.structs.force_setattr(obj, "api_version", self.kind.api_version)
            msgspec.structs.force_setattr(obj, "kind", self.kind.kind)
        elif isinstance(obj, dict):
            obj["apiVersion"] = self.kind.api_version
            obj["kind"] = self.kind.kind
            obj["metadata"].pop("managedFields", None)  # a third of many objects, and read nowhere here
        if self._sharer is not None:
            self._sharer.share(obj)
        return obj if self._view is None else self._view(obj)

    def _mark_of(self, obj: Any) -> RevisionMark:
        if isinstance(obj, dict):
            metadata = obj["metadata"]
            return RevisionMark(
                metadata.get("name", ""),
                metadata.get("namespace", ""),
                metadata.get("uid", ""),
                metadata.get("resourceVersion", ""),
            )
        metadata = obj.metadata
        return RevisionMark(metadata.name, metadata.namespace, metadata.uid, metadata.resource_version)

    def _labels(self, obj: Any) -> Mapping[str, str]:
        found = obj["metadata"].get("labels") if isinstance(obj, dict) else obj.metadata.labels
        return found or {}
