"""AppWrappers of the hub in one member: their copies.

A copy is an AppWrapper with the same name, namespace, labels and spec, and the label `IsDispatched`, as in MCAD; the
member's own controller queues and runs it. It is made gated: nothing of it starts before it was seen as it was sent and
released, once, on the very revision that was seen; so a create that arrives late starts nothing. It carries the hub's
mark, the UID of the hub's AppWrapper and the round of its dispatch, and only by these is it ever taken for a copy.
Writes only into its own cluster, deletes by UID.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapper
from shoal.api.codec import plain, typed
from shoal.api.kind import Key, Kind
from shoal.api.labels import CLUSTER_LOSS, FENCED, GATED, LAST_APPLIED
from shoal.api.meta import Json
from shoal.controllers.multicluster import words
from shoal.controllers.multicluster.settings import ClusterSettings
from shoal.controllers.planning.caches import UNREADABLE
from shoal.kube.awaited import Awaited
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.errors import NotFound
from shoal.kube.writes import Writer

KINDS = (kinds.APP_WRAPPER, kinds.APP_WRAPPER_LEGACY)
DISPATCHED = "IsDispatched"
ENDED = ("Completed", "Failed", "Deleted")
_OWN_PREFIX = "shoal.dev/"


class WrapperCopies:
    """`heard(copy)` tells of the copy of a hub's AppWrapper."""

    def __init__(
        self,
        client: Client,
        writer: Writer,
        origin: str,
        settings: ClusterSettings,
        clock: Clock,
        awaited: Awaited,
        heard: Callable[[AppWrapper], None],
    ) -> None:
        self._client, self._writer, self._origin, self._heard = client, writer, origin, heard
        self._clock, self._most, self._awaited = clock, settings.answers.held, awaited
        mine = f"{words.HUB}={origin}"
        by_hub, by_uid = {"hub": _hub_uid}, {"uid": lambda obj: (obj.metadata.uid,)}
        self._copies: dict[Kind, Cache[AppWrapper]] = {
            kind: self._cache(kind, AppWrapper, label_selector=mine, indexes={**by_hub, **by_uid}) for kind in KINDS
        }

    @property
    def caches(self) -> list[Cache[Any]]:
        return list(self._copies.values())

    def subscribe(self) -> None:
        for cache in self._copies.values():
            cache.subscribe(self._changed)

    def takes(self, kind: Kind) -> bool:
        """Are such AppWrappers served there?"""
        return self._copies[kind].synced.is_set()

    @property
    def are_not_served(self) -> bool:
        """Does this cluster know no AppWrappers at all? Not where they may only not be read."""
        troubles = [cache.trouble for cache in self._copies.values() if not cache.synced.is_set()]
        return len(troubles) == len(self._copies) and all(
            one is not None and one.reason == "KindNotInstalled" for one in troubles
        )

    def find(self, kind: Kind, key: Key) -> AppWrapper | None:
        return self._copies[kind].get(key)

    def every(self) -> Iterable[tuple[Kind, AppWrapper]]:
        return [(kind, one) for kind, cache in self._copies.items() for one in cache.list()]

    async def look_up(self, kind: Kind, key: Key) -> AppWrapper | None:
        """As the server has it now, be it ours or not."""
        try:
            found: AppWrapper = await self._client.get(kind, key.name, key.namespace, type=AppWrapper)
        except NotFound:
            return None
        if self.is_ours(found):
            self._copies[kind].note_write(found)
        return found

    async def create(self, kind: Kind, wrapper: AppWrapper, epoch: int, *, fenced: bool = False) -> AppWrapper:
        """Gated. `fenced`: it stops once this hub is not heard. Raises AlreadyExists."""
        body = body_of(kind, wrapper, epoch, self._origin, fenced=fenced)
        made = typed(await self._writer.create(kind, body), AppWrapper)
        self._copies[kind].note_write(made)
        return made

    async def release(self, kind: Kind, found: AppWrapper) -> None:
        """Let it be started, as it was seen. Raises Conflict where it changed since."""
        made = await self._writer.patch(kind, plain(found), {"metadata": {"annotations": {GATED: None}}})
        self._copies[kind].note_write(typed(made, AppWrapper))

    async def delete(self, kind: Kind, found: AppWrapper, *, whole: bool = False) -> None:
        """`whole`: it is gone only once all that it wraps is gone, too."""
        body = {"metadata": plain(found.metadata)}
        await self._writer.delete(kind, body, propagation="Foreground" if whole else "Background")

    def is_ours(self, found: AppWrapper) -> bool:
        return (found.metadata.labels or {}).get(words.HUB) == self._origin

    def of_gang(self, uid: str) -> list[AppWrapper]:
        """Copies of the hub's AppWrapper with this UID."""
        return [found for cache in self._copies.values() for found in cache.by_index("hub", uid)]

    def hub_gang(self, uid: str) -> str:
        """UID at the hub of the AppWrapper whose copy has this UID here."""
        for cache in self._copies.values():
            for found in cache.by_index("uid", uid):
                return round_of(found)[0]
        return ""

    def _changed(self, change: Change) -> None:
        self._heard(change.new or change.old)

    def _cache(self, kind: Kind, type: Any, **options: Any) -> Cache[Any]:
        report = self._awaited.report(kind, lambda trouble: trouble.reason in UNREADABLE)
        return Cache(self._client, kind, type, clock=self._clock, most=self._most, report=report, **options)


def round_of(found: AppWrapper) -> tuple[str, int]:
    """UID of the hub's AppWrapper and round; an unreadable round is older than all."""
    annotations = found.metadata.annotations or {}
    text = annotations.get(words.EPOCH, "")
    return annotations.get(words.HUB_WORKLOAD, ""), int(text) if text.isascii() and text.isdigit() else 0


def is_gated(found: AppWrapper) -> bool:
    """It was never released: nothing of it can have been started."""
    return (found.metadata.annotations or {}).get(GATED, FENCED) != FENCED


def is_stopped(found: AppWrapper) -> bool:
    """It was stopped there because this hub was not heard."""
    return (found.metadata.annotations or {}).get(GATED) == FENCED


def has_never_run(found: AppWrapper) -> bool:
    """It was not released or, where it was stopped, nothing was stored of a start: that is stored before one."""
    return is_gated(found) or (is_stopped(found) and not found.status.state)


def body_of(kind: Kind, wrapper: AppWrapper, epoch: int, origin: str, *, fenced: bool = False) -> Json:
    """Users' annotations travel along; ours are about one cluster only."""
    metadata = wrapper.metadata
    kept = {
        name: value
        for name, value in (metadata.annotations or {}).items()
        if not name.startswith(_OWN_PREFIX) and name != LAST_APPLIED
    }
    if fenced:
        kept[CLUSTER_LOSS] = "move"
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": metadata.name,
            "namespace": metadata.namespace,
            "labels": {**(metadata.labels or {}), DISPATCHED: "true", words.HUB: origin},
            "annotations": {**kept, words.HUB_WORKLOAD: metadata.uid, words.EPOCH: str(epoch), GATED: "true"},
        },
        "spec": plain(wrapper.spec),
    }


def _hub_uid(found: AppWrapper) -> Iterable[str]:
    return (round_of(found)[0],)
