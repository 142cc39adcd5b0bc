"""Kueue's dialect beside MCAD's: both decide on quota by themselves and share one ledger of room.

Owned by `Engine`. Quota of queue-labelled gangs is decided in `shoal.engine.kueue`; once such a gang has quota and all
its other checks are done, it stands in the same line for room as all others, and starts when its pods can be placed.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import is_

import msgspec

from shoal.engine.kueue import ClusterQueue, Cohort, Flavor, Kueue, LocalQueue, QueueDecisions, TopologyFact
from shoal.engine.kueue import KueueSettings as QueueSettings
from shoal.engine.kueue.surplus import SurplusUse, usage_of_one
from shoal.engine.kueue.topology.pinned import pinned
from shoal.engine.line.state import HOLDS, LineState
from shoal.engine.line.surplus import leaving_turn, surplus_uid
from shoal.engine.model import (
    Explanation,
    Gang,
    NodeFact,
    Plan,
    PodFact,
    PodSet,
    PodSetAssignment,
    Reservation,
)

QueueFact = ClusterQueue | Cohort | LocalQueue | Flavor | TopologyFact


def queue_key(fact: QueueFact) -> str:
    """The name under which `Engine.remove` knows a fact of this dialect."""
    match fact:
        case LocalQueue():
            return f"LocalQueue/{fact.namespace}/{fact.name}"
        case ClusterQueue():
            return f"ClusterQueue/{fact.name}"
        case Cohort():
            return f"Cohort/{fact.name}"
        case Flavor():
            return f"ResourceFlavor/{fact.name}"
        case TopologyFact():
            return f"Topology/{fact.name}"


class Queues:
    def __init__(self, settings: QueueSettings | None = None) -> None:
        self.kueue = Kueue(settings)
        self.facts: dict[str, QueueFact] = {}
        self.regrown: set[str] = set()
        """UIDs of elastic gangs that are charged something else beyond their admission since the last look."""
        self._owners: dict[str, str] = {}

    def update(self, fact: QueueFact) -> None:
        self.facts[queue_key(fact)] = fact
        self.kueue.update(fact)

    def current_facts(self) -> Iterator[QueueFact]:
        """The facts as of now: with what LocalQueues have had until now."""
        for fact in self.facts.values():
            known = self.kueue.usage(fact.namespace, fact.name) if isinstance(fact, LocalQueue) else None
            yield fact if known is None else msgspec.structs.replace(fact, consumed=known.consumed)

    def remove(self, key: str) -> bool:
        """False when no fact of this dialect has that key."""
        fact = self.facts.pop(key, None)
        if fact is not None:
            self.kueue.remove(fact)
        return fact is not None

    def remove_place(self, key: str) -> None:
        """A node or a pod is gone, by its key in the line; any other key is ignored."""
        kind, _, name = key.partition("/")
        if kind == "Node":
            self.kueue.remove(NodeFact(name=name))
        elif kind == "Pod":
            self.kueue.remove(PodFact(uid=name))

    def adopt_places(self, other: Queues) -> None:
        """See the nodes and pods of another engine."""
        self.kueue.state.topologies.adopt(other.kueue.state.topologies)

    def decide(self, state: LineState, now: int, most: int | None = None) -> tuple[Plan, tuple[Reservation, ...]]:
        """Quota for gangs that wait; a gang that gets it joins the line for room, an evicted one leaves it."""
        decisions: QueueDecisions = self.kueue.plan(now, most)
        reservations = []
        for reserve in decisions.reserved:
            reservations.append(
                Reservation(
                    gang=reserve.gang,
                    uid=reserve.uid,
                    queue=reserve.cluster_queue,
                    assignment=reserve.assignment,
                    backfilled=reserve.backfilled,
                )
            )
            gang = state.gangs.get(reserve.gang)
            if gang is not None:
                given = {"state": "reserved", "assignment": reserve.assignment, "stopping_for": ""}
                state.put(self.in_line(msgspec.structs.replace(gang, **given)), bound=True)
        for evict in decisions.evicted:
            gang = state.gangs.get(evict.gang)
            if gang is not None and gang.state in HOLDS:
                state.put(msgspec.structs.replace(gang, state="stopping", stopping_for=evict.preemptor_uid))
            elif gang is not None:
                state.put(msgspec.structs.replace(gang, state="held"))  # it had quota only; there is nothing to stop
        for moved in decisions.placed:
            gang = state.gangs.get(moved.gang)
            if gang is not None:
                state.put(self.in_line(msgspec.structs.replace(gang, assignment=moved.assignment)))
        for lost in decisions.displaced:
            gang = state.gangs.get(lost.gang)
            if gang is not None and gang.state in HOLDS:
                state.put(msgspec.structs.replace(gang, state="stopping"))
        filled = self.kueue.state.surplus
        if filled.fillers or filled.turned or state.fillers:
            last_first = sorted(
                [*filled.fillers.values(), *filled.turned.values()], key=lambda one: one.order, reverse=True
            )
            state.fillers = {one.uid: None for one in last_first if one.uid in state.keys}
        shrinks = [
            state.surplus.shrink(shed.pod, state.gangs[shed.preemptor], state)
            for shed in decisions.shed
            if shed.preemptor in state.gangs and shed.pod in state.surplus.owners
        ]
        return msgspec.structs.replace(decisions.plan(), shrinks=tuple(shrinks)), tuple(reservations)

    def charge_surplus(self, state: LineState) -> None:
        """Quota carries what elastic gangs have beyond their admission."""
        changed, leaving = {}, set()
        before = self.kueue.state.surplus.uses
        for pod in sorted(state.surplus.changed):
            owner = state.surplus.owners.get(pod)
            known = before.get(pod)
            use = self._surplus_use(pod, owner, known, state) if owner is not None else None
            if (use is None) != (known is None):
                self.regrown.add(owner or self._owners.get(pod, ""))
            if use is None:
                self._owners.pop(pod, None)
            elif owner is not None:
                self._owners[pod] = owner
                if state.by_uid(surplus_uid(pod)).state == "stopping":
                    leaving.add(pod)
            changed[pod] = use
        state.surplus.changed.clear()
        if changed:
            self.kueue.set_surplus(changed, leaving)

    def _surplus_use(self, pod: str, owner: str, known: SurplusUse | None, state: LineState) -> SurplusUse | None:
        """What one pod is charged; as before where its gang has no quota just now."""
        gang = state.by_uid(surplus_uid(pod))
        member = self.kueue.members.get(state.keys.get(owner, ""))
        usage = usage_of_one(member, gang.pod_sets[0].name) if member is not None else None
        if member is None or usage is None or not member.holds:
            return known
        return SurplusUse(member.queue, usage, leaving_turn(gang))

    def surplus_usage(self, uid: str, state: LineState) -> dict[tuple[str, str], int]:
        """What of it is one gang's."""
        total: dict[tuple[str, str], int] = {}
        for pod in state.surplus.of(uid):
            use = self.kueue.state.surplus.uses.get(pod)
            for at, amount in use.usage.items() if use is not None else ():
                place = (at.flavor, at.resource)
                total[place] = total.get(place, 0) + amount
        return total

    def in_line(self, gang: Gang) -> Gang:
        """The gang as the line for room knows it. One that has quota only and is to leave has nothing to stop there."""
        if gang.state == "reserved" and gang.stopping_for:
            return msgspec.structs.replace(gang, state="held")
        return self._on_flavors(gang)

    def _on_flavors(self, gang: Gang) -> Gang:
        """The gang as its pods will be: with the counts it was given and bound to its flavors' nodes."""
        if gang.state not in ("reserved", "admitted", "stopping") or not gang.assignment:
            return gang
        given = {entry.name: entry for entry in gang.assignment}
        pod_sets = tuple(
            [
                self._pod_set(pod_set, given[pod_set.name]) if pod_set.name in given else pod_set
                for pod_set in gang.pod_sets
            ]
        )
        same = all(map(is_, pod_sets, gang.pod_sets))
        return gang if same else msgspec.structs.replace(gang, pod_sets=pod_sets)

    def _pod_set(self, pod_set: PodSet, entry: PodSetAssignment) -> PodSet:
        selector, tolerations = dict(pod_set.node_selector), pod_set.tolerations
        for name in sorted(set(entry.flavors.values())):
            flavor = self.facts.get(f"ResourceFlavor/{name}")
            if isinstance(flavor, Flavor):
                selector.update(flavor.labels)
                if flavor.tolerations:
                    tolerations += tuple(extra for extra in flavor.tolerations if extra not in tolerations)
        as_before = pod_set.count == entry.count and pod_set.min_count is None and entry.topology is None
        if as_before and tolerations is pod_set.tolerations and selector == pod_set.node_selector:
            return pod_set
        affinity = pod_set.affinity if entry.topology is None else pinned(pod_set.affinity, entry.topology)
        return msgspec.structs.replace(
            pod_set, count=entry.count, min_count=None, node_selector=selector, tolerations=tolerations,
            affinity=affinity,
        )  # fmt: skip

    def explain(self, key: str) -> Explanation | None:
        return self.kueue.explain(key)

    def next_wake(self) -> int:
        return self.kueue.next_wake() or 0
