"""Facts in: every change that the caches bring is told to the engine, and wakes whoever it concerns.

Holds what is known of each gang's pods. Decides nothing and writes nothing; an object that cannot be read is left out
with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from shoal.api.appwrapper import AppWrapper
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.controllers.appwrapper.facts import Facts, is_started
from shoal.controllers.appwrapper.planner import Planner
from shoal.controllers.appwrapper.quota import subtree_fact
from shoal.controllers.appwrapper.world import World
from shoal.controllers.appwrapper.wrapped import gang_key
from shoal.controllers.planning.leaving import Leaving
from shoal.controllers.planning.node_health import as_supply, flagged
from shoal.controllers.planning.pods import GangPod, SeenPod, created_at, exit_codes, owner_uid, read_fact, refusals
from shoal.engine.facts import node_fact
from shoal.engine.model import PodFact
from shoal.errors import BadInput
from shoal.kube.cache import Change
from shoal.kube.clock import Clock

log = logging.getLogger(__name__)

Address = tuple[Kind, Key]

FIRST_LOOK = 0.02
"""Seconds after which a new AppWrapper gets its first status even if no plan was made yet."""
PODS_PAUSE = 0.05
"""Pods of one gang change together: look at it once for all that come within this time."""


LEFT_BEHIND = 5.0
"""Seconds without a pod after which objects that do not go (a finalizer keeps them) hold no room. Until then it is
kept, so that one who is taken back finds its place in the line again."""


class Intake:
    """`wake(address, after)` asks for a look at one AppWrapper, `replan()` for a plan; `gone(address, wrapper)`
    tells of a deletion and says whether to look once more."""

    def __init__(
        self,
        world: World,
        facts: Facts,
        planner: Planner,
        clock: Clock,
        wake: Callable[[Address, float], None],
        replan: Callable[[], None],
        gone: Callable[[Address, AppWrapper], bool],
    ) -> None:
        self.world = world
        self.facts = facts
        self.planner = planner
        self._clock = clock
        self._wake = wake
        self._replan = replan
        self._gone = gone
        self.addresses: dict[str, Address] = {}
        self.cleaned: set[str] = set()
        """UIDs of AppWrappers that ended and of whose objects none is left."""
        self._idle: set[str] = set()
        """UIDs of AppWrappers that run or are on their way out, and can have no pod any more."""
        self._without_pods_since: dict[str, float] = {}
        """Of AppWrappers whose objects were told to go and are still there, by UID."""
        self._never_again: dict[str, dict[str, PodFact]] = {}
        """Of running gangs, by UID: what stands for wrapped pods that are gone, by their name."""
        self._gang_of_pod: dict[str, str] = {}
        self._leaving = Leaving(planner.engine)
        self._pods: dict[str, dict[str, GangPod]] = {}
        self.pods_changed: Callable[[str], None] = lambda gang: None
        """Told of pods of gangs that are no AppWrappers."""

    def subscribe(self) -> None:
        """Once every cache is filled: AppWrappers first, so that their pods find them."""
        self.facts.defaults = self.world.pod_defaults
        for kind, cache in self.world.wrappers.items():
            cache.subscribe(lambda change, kind=kind: self._wrapper_changed(kind, change))  # type: ignore[misc]
        for subtree_kind, subtrees in self.world.subtrees.items():
            subtrees.subscribe(lambda change, kind=subtree_kind: self._subtree_changed(kind, change))  # type: ignore[misc]
        self.world.stamps_changed = self._tell_all
        self.world.limit_ranges.subscribe(self._limits_changed)
        self.world.runtime_classes.subscribe(self._limits_changed)
        self.world.nodes.subscribe(self._node_changed)
        self.world.pods.subscribe(self._pod_changed)

    def pods(self, gang_uid: str) -> list[GangPod]:
        return list(self._pods.get(gang_uid, {}).values())

    def tell(self, wrapper: AppWrapper) -> None:
        """Tell the engine what is stored of this AppWrapper."""
        uid = wrapper.metadata.uid
        holds = uid not in self.cleaned and wrapper.status.state in ("Failed", "Deleted")
        if not wrapper.status.can_run or wrapper.status.state != "Running":
            self._expect_all(uid)
        if not holds and not is_started(wrapper):
            self._idle.discard(uid)  # the next run needs all of it again
            self._without_pods_since.pop(uid, None)
        idle = uid in self._idle
        self.planner.tell(self.facts.gang(wrapper, self._clock.now(), holds_objects=holds, idle=idle))
        self._replan()

    def _tell_all(self) -> None:
        """Whom we may believe has changed."""
        for address in list(self.addresses.values()):
            wrapper = self.world.wrapper(*address)
            if wrapper is not None:
                self.tell(wrapper)
                self._wake(address, 0.0)

    def mark_clean(self, wrapper: AppWrapper) -> None:
        if wrapper.metadata.uid not in self.cleaned:
            self.cleaned.add(wrapper.metadata.uid)
            self.tell(wrapper)

    def mark_idle(self, wrapper: AppWrapper, idle: bool) -> None:
        """It needs nothing of what it was given, or (again) all of it."""
        if idle != (wrapper.metadata.uid in self._idle):
            self._idle ^= {wrapper.metadata.uid}
            self.tell(wrapper)

    def note_left_behind(self, wrapper: AppWrapper) -> None:
        """Its objects were told to go and are still there; without pods for a while they hold no room any more."""
        uid, now = wrapper.metadata.uid, self._clock.monotonic()
        if any(pod.is_live for pod in self.pods(uid)):
            self._without_pods_since.pop(uid, None)
        self.mark_idle(wrapper, now - self._without_pods_since.setdefault(uid, now) >= LEFT_BEHIND)

    def note_leaving(self, wrapper: AppWrapper) -> None:
        """It is deleted and all it had was told to go: with its last pod it gives up its room, for it never starts
        again and has no place in the line to find."""
        self.mark_idle(wrapper, not any(pod.is_live for pod in self.pods(wrapper.metadata.uid)))

    def is_noted(self, gang_uid: str, name: str) -> bool:
        return name in self._never_again.get(gang_uid, {})

    def note_gone(self, wrapper: AppWrapper, index: int, name: str) -> None:
        """A pod that was wrapped as it is, and is gone: nobody makes it again, so no room is kept for it."""
        uid, told = wrapper.metadata.uid, self.planner.engine.gang(gang_key(wrapper))
        its = next((one for one in told.pod_sets if one.name.startswith(f"{index}.")), None) if told else None
        if its is None:
            return
        fact = PodFact(
            uid=f"{uid}/{name}", name=name, gang=uid, pod_set=its.name, requests=its.requests, phase="Succeeded"
        )
        self._never_again.setdefault(uid, {})[name] = fact
        self.planner.engine.update(fact)
        self._replan()

    def _expect_all(self, gang_uid: str) -> None:
        for fact in self._never_again.pop(gang_uid, {}).values():
            self.planner.engine.remove(f"Pod/{fact.uid}")

    def look(self, address: Address) -> None:
        self._wake(address, 0.0)

    def look_at_admitted(self) -> None:
        """An eviction is stored: whoever waited for that with an admission in hand looks again."""
        for key in self.planner.admitting:
            if key in self.addresses:
                self._wake(self.addresses[key], 0.0)

    def wake_gang(self, uid: str, after: float = 0.0) -> None:
        wrapper = self.world.wrapper_by_uid(uid) if uid else None
        address = self.addresses.get(gang_key(wrapper)) if wrapper is not None else None
        if address is not None:
            self._wake(address, after)
        elif wrapper is None and uid:
            self.pods_changed(uid)

    def look_for_pods(self, owner: str) -> None:
        """Ask again whose the pods below this object are."""
        for pod in self.world.pods_below(owner):
            self._tell_pod(pod)

    # --- changes

    def _wrapper_changed(self, kind: Kind, change: Change) -> None:
        address = (kind, change.key)
        if change.new is None:
            self._forget(change.old)
            return
        wrapper: AppWrapper = change.new
        self.addresses[gang_key(wrapper)] = address
        self.tell(wrapper)
        if change.old is None:
            self.look_for_pods(wrapper.metadata.uid)
        # A new one is looked at once the plan has judged it, so that its first status already tells the decision.
        unseen = not wrapper.status.queue_job_state and not wrapper.status.phase
        self._wake(address, FIRST_LOOK if unseen else 0.0)

    def _forget(self, wrapper: AppWrapper) -> None:
        key, uid = gang_key(wrapper), wrapper.metadata.uid
        held = self.planner.engine.gang(key)
        self.planner.forget(key)
        if held is not None and held.uid == uid and any(pod.is_live for pod in self.pods(uid)):
            self._leaving.begin(held, self._pod_facts(uid))
        address = self.addresses.pop(key, None)
        if address is not None and self._gone(address, wrapper):
            self._wake(address, 0.0)
        self.facts.forget(uid)
        self.cleaned.discard(uid)
        self._idle.discard(uid)
        self._without_pods_since.pop(uid, None)
        self._expect_all(uid)
        self._replan()

    def _limits_changed(self, change: Change) -> None:
        """Whoever waits in that namespace, or in any, may need more now, or less."""
        for kind, key in list(self.addresses.values()):
            wrapper = self.world.wrapper(kind, key) if change.key.namespace in ("", key.namespace) else None
            if wrapper is not None and not wrapper.status.can_run:
                self.tell(wrapper)

    def _node_changed(self, change: Change) -> None:
        name = f"Node/{change.key.name}"
        if change.new is None:
            self.planner.engine.remove(name)
        else:
            try:
                self.planner.engine.update(node_fact(as_supply(change.new, self.facts.settings.node_health)))
            except (BadInput, AttributeError, TypeError, ValueError) as error:
                log.warning("node %s is left out: %s", change.key.name, error)
                self.planner.engine.remove(name)
            self._vacate(change.old, change.new)
        self._replan()

    def _vacate(self, old: Json | None, node: Json) -> None:
        """Devices of this node are to be vacated from now on: whoever runs there looks again."""
        health = self.facts.settings.node_health
        unwell = flagged(node, health, "NoExecute")
        if not unwell or (old is not None and flagged(old, health, "NoExecute") == unwell):
            return
        name = node["metadata"]["name"]
        for gang, pods in self._pods.items():
            if any(pod.fact.node == name for pod in pods.values()):
                self.wake_gang(gang)

    def _pod_changed(self, change: Change) -> None:
        if change.new is None:
            uid = change.old.metadata.uid
            self.planner.engine.remove(f"Pod/{uid}")
            self._let_go(uid)
        else:
            self._tell_pod(change.new)
        self._replan()

    def _tell_pod(self, pod: SeenPod) -> None:
        uid = pod.metadata.uid
        gang = self.world.gang_of(pod)
        if not gang and self._gang_of_pod.get(uid, "") in self._leaving:
            gang = self._gang_of_pod[uid]
        fact = read_fact(pod, gang)
        is_last = fact.phase == "Failed" and gang != "" and owner_uid(pod) == gang
        # A wrapped pod that failed is not made again: as one that did well, it needs no room any more.
        self.planner.engine.update(msgspec.structs.replace(fact, phase="Succeeded") if is_last else fact)
        if self._gang_of_pod.get(uid, "") != gang:
            self._let_go(uid)
        if not gang:
            return
        self._gang_of_pod[uid] = gang
        pods = self._pods.setdefault(gang, {})
        known, now = pods.get(uid) or GangPod(fact), self._clock.now()
        # A pod that was made without a node waits since then, also for a controller that comes later.
        waits_since = now if uid in pods else min(now, created_at(pod) or now)
        pods[uid] = msgspec.structs.replace(
            known,
            fact=fact,
            refusals=refusals(pod),
            unbound_since=known.unbound_since or (0 if fact.node or fact.gated else waits_since),
            seen_since=known.seen_since or now,
            bound_since=known.bound_since or (now if fact.node else 0),
            deleting_since=known.deleting_since or (now if fact.deleting else 0),
            exit_codes=exit_codes(pod),
        )
        self.wake_gang(gang, PODS_PAUSE)
        self._release_when_left(gang)

    def _let_go(self, uid: str) -> None:
        gang = self._gang_of_pod.pop(uid, "")
        if gang:
            pods = self._pods.get(gang, {})
            pods.pop(uid, None)
            if not pods:
                self._pods.pop(gang, None)
            self.wake_gang(gang, PODS_PAUSE if pods else 0.0)
            self._release_when_left(gang)

    def _release_when_left(self, gang: str) -> None:
        """A deleted AppWrapper holds what its pods take, no more."""
        if gang in self._leaving:
            self._leaving.look(gang, self._pod_facts(gang))

    def _pod_facts(self, gang: str) -> list[PodFact]:
        return [pod.fact for pod in self.pods(gang)]

    def _subtree_changed(self, kind: Kind, change: Change) -> None:
        key = f"{kind.group}/{change.key}"
        if change.new is None:
            self.planner.engine.remove(f"QuotaSubtree/{key}")
        else:
            try:
                self.planner.engine.update(subtree_fact(key, change.new))
            except BadInput as error:
                log.warning("QuotaSubtree %s is left out: %s", change.key, error)
                self.planner.engine.remove(f"QuotaSubtree/{key}")
        self._replan()

    def between_changed(self, kind: Kind, change: Change) -> None:
        """A wrapped object (or one between it and its pods) changed: its AppWrapper looks again."""
        obj = change.new if change.new is not None else change.old
        for reference in obj.metadata.owner_references or ():
            self.wake_gang(reference.uid)
        if change.new is not None and change.old is None:
            for pod in self.world.pods_below(obj.metadata.uid):
                self._tell_pod(pod)
                self._replan()
