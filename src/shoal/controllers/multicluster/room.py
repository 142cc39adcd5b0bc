"""The room of one member: its nodes and pods, judged by the same engine that judges those of the hub.

What was chosen to go there is told to it as an admitted gang, so that its room is taken until its pods are seen, and
as long as those run. Whether a gang would start is asked by letting it wait there for one plan. Reads only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec

from shoal.controllers.planning.node_health import NodeHealth, as_supply
from shoal.controllers.planning.pods import SeenPod, read_fact
from shoal.engine import Engine, EngineSettings
from shoal.engine.facts import node_fact
from shoal.engine.model import Amounts, Gang
from shoal.errors import BadInput
from shoal.kube.cache import Cache, Change
from shoal.kube.clock import Clock

log = logging.getLogger(__name__)


class MemberRoom:
    """`gang_of` finds the UID of the hub's gang that a pod belongs to; `changed()` tells of other room."""

    def __init__(
        self,
        nodes: Cache[dict[str, object]],
        pods: Cache[SeenPod],
        clock: Clock,
        gang_of: Callable[[SeenPod], str],
        changed: Callable[[], None],
    ) -> None:
        self._nodes, self._pods, self._clock = nodes, pods, clock
        self._gang_of, self._changed = gang_of, changed
        self._engine = Engine(EngineSettings())
        self._kept: dict[str, str] = {}
        """Key in the engine of each gang that was told, by UID."""
        self._answers: dict[bytes, str] = {}
        self._free: Amounts | None = None

    def subscribe(self) -> None:
        self._nodes.subscribe(self._node_changed)
        self._pods.subscribe(self._pod_changed)

    @property
    def is_known(self) -> bool:
        """May its nodes and pods be read?"""
        return self._nodes.synced.is_set() and self._pods.synced.is_set()

    @property
    def free(self) -> Amounts:
        if self._free is None:
            self._engine.plan(self._clock.now())
            self._free = self._engine.free_room
        return self._free

    def shortage(self, gang: Gang, question: bytes = b"") -> str:
        """Why it would not start now; empty: it would. Equal gangs are judged once, until something changes.
        `question`: its `question_of`, where the caller has it."""
        question = question or question_of(gang)
        known = self._answers.get(question)
        if known is None:
            self._engine.plan(self._clock.now())
            known = self._answers[question] = self._tried(_waiting(gang))
        return known

    def keep(self, gang: Gang) -> None:
        if gang.uid not in self._kept:
            self._kept[gang.uid] = gang.key
            self._tried(_waiting(gang), keep=True)
            self._forget_answers()

    def release(self, uid: str) -> None:
        key = self._kept.pop(uid, None)
        if key is not None:
            self._engine.remove(key)
            self._forget_answers()

    def refresh(self, pods: Iterable[SeenPod]) -> None:
        """Whose these pods are may be known only now."""
        found = [read_fact(pod, self._gang_of(pod)) for pod in pods]
        for fact in found:
            self._engine.update(fact)
        if found:
            self._forget_answers()

    def _tried(self, gang: Gang, *, keep: bool = False) -> str:
        self._engine.update(gang)
        plan = self._engine.plan(self._clock.now())
        starts = any(one.gang == gang.key for one in plan.admits)
        hold = next((one for one in plan.holds if one.gang == gang.key), None)
        if keep and not starts:  # it is there all the same: what it will need is not free
            self._engine.update(msgspec.structs.replace(gang, state="admitted", admitted_at=self._clock.now()))
        elif not keep:
            self._engine.remove(gang.key)
        return "" if starts else hold.explanation.message if hold is not None else "waits for room"

    def _node_changed(self, change: Change) -> None:
        name = f"Node/{change.key.name}"
        try:
            if change.new is None:
                self._engine.remove(name)
            else:
                self._engine.update(node_fact(as_supply(change.new, NodeHealth())))
        except (BadInput, AttributeError, TypeError, ValueError) as error:
            log.warning("node %s of another cluster is left out: %s", change.key.name, error)
            self._engine.remove(name)
        self._forget_answers()

    def _pod_changed(self, change: Change) -> None:
        if change.new is None:
            self._engine.remove(f"Pod/{change.old.metadata.uid}")
        else:
            self._engine.update(read_fact(change.new, self._gang_of(change.new)))
        self._forget_answers()

    def _forget_answers(self) -> None:
        self._answers.clear()
        self._free = None
        self._changed()


def question_of(gang: Gang) -> bytes:
    """Equal for gangs that get the same answer."""
    return msgspec.json.encode((gang.pod_sets, gang.node_selector))


def _waiting(gang: Gang) -> Gang:
    """As it would wait in the member, in no queue: of its room alone is asked."""
    return Gang(
        key=gang.key,
        uid=gang.uid,
        namespace=gang.namespace,
        name=gang.name,
        priority=gang.priority,
        created_at=gang.created_at,
        queued_at=gang.queued_at,
        pod_sets=gang.pod_sets,
        node_selector=gang.node_selector,
    )
