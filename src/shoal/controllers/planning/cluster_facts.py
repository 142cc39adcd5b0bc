"""Nodes and pods as facts, and the pods of each gang: every change that the shared caches bring goes to the engine.

Decides nothing and writes nothing; an object that cannot be read is left out with a warning. A pod belongs to the gang
whose UID stands at the top of its owner chain; which UIDs are gangs, the sources say. Names alone never decide.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.planning.caches import SharedCaches
from shoal.controllers.planning.leaving import Leaving
from shoal.controllers.planning.node_health import NodeHealth, as_supply, flagged
from shoal.controllers.planning.pods import (
    GangPod,
    SeenPod,
    created_at,
    exit_codes,
    mark_of,
    owner_uid,
    read_fact,
    refusals,
    silent_scheduler,
)
from shoal.controllers.planning.source import WorkloadSource
from shoal.engine import Engine
from shoal.engine.facts import node_fact
from shoal.engine.model import Gang, PodFact
from shoal.errors import BadInput
from shoal.kube.cache import Change
from shoal.kube.clock import Clock

log = logging.getLogger(__name__)

PODS_PAUSE = 0.05
"""Pods of one gang change together: look at it once for all that come within this time."""


class ClusterFacts:
    """`replan()` asks for a plan."""

    def __init__(
        self,
        engine: Engine,
        caches: SharedCaches,
        clock: Clock,
        health: NodeHealth,
        sources: list[WorkloadSource],
        replan: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._caches = caches
        self._clock = clock
        self._health = health
        self._sources = sources
        self._replan = replan
        self._leaving = Leaving(engine)
        self._gang_of_pod: dict[str, str] = {}
        self._pods: dict[str, dict[str, GangPod]] = {}

    def subscribe(self) -> None:
        """Once every cache is filled and the sources have told their gangs, so that pods find them."""
        self._caches.nodes.subscribe(self._node_changed)
        self._caches.pods.subscribe(self._pod_changed)

    def pods(self, gang_uid: str) -> list[GangPod]:
        return list(self._pods.get(gang_uid, {}).values())

    def gang_of(self, pod: SeenPod) -> str:
        """UID of the gang that this pod belongs to, or an empty text."""
        owners = self._caches.owners(pod)
        mark = mark_of(pod) if self._caches.is_open(owners) else ""
        namespace, among = pod.metadata.namespace, (pod.metadata.uid, *owners)  # it may be a gang of its own
        return next((uid for one in self._sources if (uid := one.gang_of(namespace, mark, among))), "")

    def refresh_pods(self, owner: str) -> None:
        """Ask again whose the pods below this object (a UID) are."""
        for pod in self._caches.pods_below(owner):
            self._update_pod(pod)

    def gang_gone(self, held: Gang) -> None:
        """A gang is deleted, and its name is free for another; what its pods take is not, before they end."""
        if any(pod.is_live for pod in self.pods(held.uid)):
            self._leaving.begin(held, self._pod_facts(held.uid))

    def owner_changed(self, kind: Kind, change: Change) -> None:
        """An object between a workload and its pods changed: the workload looks again."""
        obj = change.new if change.new is not None else change.old
        for reference in obj.metadata.owner_references or ():
            self._notify(reference.uid)
        if change.new is not None and change.old is None:
            for pod in self._caches.pods_below(obj.metadata.uid):
                self._update_pod(pod)
                self._replan()

    def _notify(self, gang: str, after: float = 0.0) -> None:
        for source in self._sources:
            source.pods_changed(gang, after)

    # --- nodes

    def _node_changed(self, change: Change) -> None:
        name = f"Node/{change.key.name}"
        if change.new is None:
            self._engine.remove(name)
        else:
            try:
                self._engine.update(node_fact(as_supply(change.new, self._health)))
            except (BadInput, AttributeError, TypeError, ValueError) as error:
                log.warning("node %s is left out: %s", change.key.name, error)
                self._engine.remove(name)
            self._vacate(change.old, change.new)
        self._replan()

    def _vacate(self, old: Json | None, node: Json) -> None:
        """Devices of this node are to be vacated from now on: gangs that run there look again."""
        unwell = flagged(node, self._health, "NoExecute")
        if not unwell or (old is not None and flagged(old, self._health, "NoExecute") == unwell):
            return
        name = node["metadata"]["name"]
        for gang, pods in self._pods.items():
            if any(pod.fact.node == name for pod in pods.values()):
                self._notify(gang)

    # --- pods

    def _pod_changed(self, change: Change) -> None:
        if change.new is None:
            uid = change.old.metadata.uid
            self._engine.remove(f"Pod/{uid}")
            self._let_go(uid)
        else:
            self._update_pod(change.new)
        self._replan()

    def _update_pod(self, pod: SeenPod) -> None:
        uid = pod.metadata.uid
        gang = self.gang_of(pod)
        if not gang and self._gang_of_pod.get(uid, "") in self._leaving:
            gang = self._gang_of_pod[uid]
        fact = read_fact(pod, gang)
        is_last = fact.phase == "Failed" and gang != "" and owner_uid(pod) == gang
        # A wrapped pod that failed is not made again: as one that did well, it needs no room any more.
        self._engine.update(msgspec.structs.replace(fact, phase="Succeeded") if is_last else fact)
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
            silent_scheduler="" if fact.node else silent_scheduler(pod),
            unbound_since=known.unbound_since or (0 if fact.node or fact.gated else waits_since),
            seen_since=known.seen_since or now,
            bound_since=known.bound_since or (now if fact.node else 0),
            deleting_since=known.deleting_since or (now if fact.deleting else 0),
            exit_codes=exit_codes(pod),
        )
        self._notify(gang, PODS_PAUSE)
        self._release_when_left(gang)

    def _let_go(self, uid: str) -> None:
        gang = self._gang_of_pod.pop(uid, "")
        if gang:
            pods = self._pods.get(gang, {})
            pods.pop(uid, None)
            if not pods:
                self._pods.pop(gang, None)
            self._notify(gang, PODS_PAUSE if pods else 0.0)
            self._release_when_left(gang)

    def _release_when_left(self, gang: str) -> None:
        """A deleted gang holds what its pods take, no more."""
        if gang in self._leaving:
            self._leaving.refresh(gang, self._pod_facts(gang))

    def _pod_facts(self, gang: str) -> list[PodFact]:
        return [pod.fact for pod in self.pods(gang)]
