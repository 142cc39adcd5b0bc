"""AppWrappers and quota trees as facts: every change goes to the planning loop, and wakes the AppWrappers it concerns.

Decides nothing and writes nothing; an object that cannot be read is left out with a warning.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from shoal.api.appwrapper import AppWrapper
from shoal.api.kind import Key, Kind
from shoal.controllers.appwrapper.caches import WrapperCaches
from shoal.controllers.appwrapper.destinations import Destinations
from shoal.controllers.appwrapper.facts import NONE_GONE, AppWrapperFacts, is_managed_here, is_queued_here, is_started
from shoal.controllers.appwrapper.quota import subtree_fact
from shoal.controllers.appwrapper.remembered import remembered
from shoal.controllers.appwrapper.wrapped import gang_key
from shoal.controllers.planning.loop import PlanningLoop
from shoal.controllers.planning.observations import (
    CalledOff,
    EvictionStored,
    NotStored,
    ObjectsGone,
    ObjectsLeave,
    ObjectsRemain,
    Observation,
    Outdated,
    PodGone,
    RoomNeeded,
)
from shoal.errors import BadInput
from shoal.kube.cache import Change

log = logging.getLogger(__name__)

Address = tuple[Kind, Key]

FIRST_LOOK = 0.02
"""Seconds after which a new AppWrapper gets its first status even if no plan was made yet."""

LEFT_BEHIND = 5.0
"""Seconds without a pod after which objects that do not go (a finalizer keeps them) hold no room. Until then it is
kept, so that a gang that is taken back finds its place in the line again."""


class Intake:
    """`wake(address, after)` asks for a look at one AppWrapper; `gone(address, wrapper)` tells of a deletion and says
    whether to look once more."""

    def __init__(
        self,
        planning: PlanningLoop,
        caches: WrapperCaches,
        facts: AppWrapperFacts,
        wake: Callable[[Address, float], None],
        gone: Callable[[Address, AppWrapper], bool],
    ) -> None:
        self.planning = planning
        self.caches = caches
        self.facts = facts
        self._clock = planning.clock
        self.destinations: Destinations | None = None
        """Where other clusters take AppWrappers."""
        self._wake = wake
        self._gone = gone
        self.addresses: dict[str, Address] = {}
        self._cleaned: set[str] = set()
        """UIDs of AppWrappers that ended and of whose objects none is left."""
        self._idle: set[str] = set()
        """UIDs of AppWrappers that run or are on their way out, and can have no pod any more."""
        self._without_pods_since: dict[str, float] = {}
        """Of AppWrappers whose objects were told to go and are still there, by UID."""
        self._gone_pods: dict[str, dict[str, int]] = {}
        """Of running AppWrappers, by UID: the item of each wrapped pod that is gone for good, by its name."""

    def subscribe(self) -> None:
        """Once every cache is filled: AppWrappers first, so that their pods find them."""
        shared = self.planning.caches
        self.facts.defaults = shared.pod_defaults
        for kind, cache in self.caches.wrappers.items():
            cache.subscribe(partial(self._wrapper_changed, kind))
        for subtree_kind, subtrees in self.caches.subtrees.items():
            subtrees.subscribe(partial(self._subtree_changed, subtree_kind))
        shared.stamps.subscribe(self._update_all)
        shared.limit_ranges.subscribe(self._limits_changed)
        shared.runtime_classes.subscribe(self._limits_changed)

    def update(self, wrapper: AppWrapper) -> None:
        """Update the planning loop with what is stored of this AppWrapper."""
        uid = wrapper.metadata.uid
        holds = uid not in self._cleaned and wrapper.status.state in ("Failed", "Deleted")
        if not wrapper.status.can_run or wrapper.status.state != "Running":
            self._gone_pods.pop(uid, None)
        if not holds and not is_started(wrapper):
            self._idle.discard(uid)  # the next run needs all of it again
            self._without_pods_since.pop(uid, None)
        idle = uid in self._idle
        gone = Counter(self._gone_pods[uid].values()) if uid in self._gone_pods else NONE_GONE
        gang = self.facts.gang(wrapper, self._clock.now(), holds_objects=holds, idle=idle, gone=gone)
        gang = gang if self.destinations is None else self.destinations.fact(wrapper, gang)
        own = is_queued_here(wrapper) and is_managed_here(wrapper)  # else its queue, or another controller, remembers
        self.planning.update(gang, (lambda: remembered(wrapper)) if own else None)

    def _update_all(self) -> None:
        """Other stamps are believed than before."""
        for address in list(self.addresses.values()):
            wrapper = self.caches.wrapper(*address)
            if wrapper is not None:
                self.update(wrapper)
                self._wake(address, 0.0)

    def choose_again(self, uids: Iterable[str]) -> None:
        """Of these that wait, other clusters may say otherwise now."""
        for uid in uids:
            wrapper = self.caches.wrapper_by_uid(uid)
            if wrapper is not None and not wrapper.status.can_run and not wrapper.metadata.deletion_timestamp:
                self.update(wrapper)

    def observed(self, one: Observation) -> None:
        """What a reconciler has learnt of an AppWrapper."""
        if isinstance(one, EvictionStored | CalledOff):
            self._wake_admitted()
        wrapper = self.caches.wrapper_by_uid(one.uid)
        if wrapper is None:
            return
        match one:
            case NotStored() | CalledOff() | Outdated():
                self.update(wrapper)
            case RoomNeeded():
                self._mark_idle(wrapper, not one.needed)
            case ObjectsGone():
                self._mark_clean(wrapper)
            case ObjectsRemain():
                self._note_left_behind(wrapper)
            case ObjectsLeave():  # it never starts again and has no place in the line to find
                self._mark_idle(wrapper, not self.planning.pods_left(one.uid))
            case PodGone():
                self._gone_pods.setdefault(one.uid, {})[one.name] = one.item
                self.update(wrapper)

    def is_clean(self, uid: str) -> bool:
        """Has it ended, with none of its objects left?"""
        return uid in self._cleaned

    def is_gone(self, uid: str, pod: str) -> bool:
        """Is it known that this wrapped pod of it is gone for good?"""
        return pod in self._gone_pods.get(uid, {})

    def _mark_clean(self, wrapper: AppWrapper) -> None:
        if wrapper.metadata.uid not in self._cleaned:
            self._cleaned.add(wrapper.metadata.uid)
            self.update(wrapper)

    def _mark_idle(self, wrapper: AppWrapper, idle: bool) -> None:
        """It needs nothing of what it was given, or (again) all of it."""
        if idle != (wrapper.metadata.uid in self._idle):
            self._idle ^= {wrapper.metadata.uid}
            self.update(wrapper)

    def _note_left_behind(self, wrapper: AppWrapper) -> None:
        """Its objects were told to go and are still there; without pods for a while they hold no room any more."""
        uid, now = wrapper.metadata.uid, self._clock.monotonic()
        if self.planning.pods_left(uid):
            self._without_pods_since.pop(uid, None)
        self._mark_idle(wrapper, now - self._without_pods_since.setdefault(uid, now) >= LEFT_BEHIND)

    def refresh(self, address: Address) -> None:
        """Look again at this AppWrapper."""
        self._wake(address, 0.0)

    def _wake_admitted(self) -> None:
        """AppWrappers that waited with an admission in hand, until an eviction is stored, look again."""
        for key in self.planning.decisions.admitting:
            if key in self.addresses:
                self._wake(self.addresses[key], 0.0)

    def wake_gang(self, uid: str, after: float = 0.0) -> None:
        wrapper = self.caches.wrapper_by_uid(uid) if uid else None
        address = self.addresses.get(gang_key(wrapper)) if wrapper is not None else None
        if address is not None:
            self._wake(address, after)

    # --- changes

    def _wrapper_changed(self, kind: Kind, change: Change) -> None:
        address = (kind, change.key)
        metadata = (change.new or change.old).metadata
        self.planning.refresh_requests(metadata.uid, metadata.generation)
        if change.new is None:
            self._forget(change.old)
            return
        wrapper: AppWrapper = change.new
        self.addresses[gang_key(wrapper)] = address
        self.update(wrapper)
        if change.old is None:
            self.planning.cluster.refresh_pods(wrapper.metadata.uid)
        # A new one is looked at once the plan has judged it, so that its first status already tells the decision.
        unseen = not wrapper.status.queue_job_state and not wrapper.status.phase
        self._wake(address, FIRST_LOOK if unseen else 0.0)

    def _forget(self, wrapper: AppWrapper) -> None:
        key, uid = gang_key(wrapper), wrapper.metadata.uid
        self.planning.forget(key, uid, keep_room=True)
        address = self.addresses.pop(key, None)
        if address is not None and self._gone(address, wrapper):
            self._wake(address, 0.0)
        self.facts.forget(uid)
        if self.destinations is not None:
            self.destinations.forget(uid)
        self._cleaned.discard(uid)
        self._idle.discard(uid)
        self._without_pods_since.pop(uid, None)
        self._gone_pods.pop(uid, None)

    def _limits_changed(self, change: Change) -> None:
        """AppWrappers that wait in that namespace, or in any, may need more now, or less."""
        for kind, key in list(self.addresses.values()):
            wrapper = self.caches.wrapper(kind, key) if change.key.namespace in ("", key.namespace) else None
            if wrapper is not None and not wrapper.status.can_run:
                self.update(wrapper)

    def _subtree_changed(self, kind: Kind, change: Change) -> None:
        key = f"{kind.group}/{change.key}"
        if change.new is None:
            self.planning.remove_fact(f"QuotaSubtree/{key}")
            return
        try:
            self.planning.update_fact(subtree_fact(key, change.new))
        except BadInput as error:
            log.warning("QuotaSubtree %s is left out: %s", change.key, error)
            self.planning.remove_fact(f"QuotaSubtree/{key}")
