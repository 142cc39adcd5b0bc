"""Room that does not exist yet: node pools that can add nodes, and which gang has asked them for how many.

Owned by the state; the cycle asks it once a gang found no room on the nodes there are. It thinks of a pool's nodes as
empty ones, uses the same fit code, and forgets them again: nothing is ever started on a node that is only thought of.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from shoal.api.labels import HOSTNAME
from shoal.engine.model import Gang, NodeFact, NodePool
from shoal.engine.nodes.fit import Placement, place
from shoal.engine.nodes.room import Room, is_accelerator

MOST_NODES = 1_000
"""As many as one request may ask for."""


class Wanting(msgspec.Struct, frozen=True):
    """A gang that could start if these nodes came."""

    nodes: dict[str, int]
    here: Placement
    """The part of its pods that goes on nodes that exist; that room has to be kept for it meanwhile."""
    there: tuple[tuple[str, int], ...]
    """Pod set name and number of the pods that go on the new ones."""


class Pools:
    def __init__(self) -> None:
        self.facts: dict[str, NodePool] = {}
        self.asked: dict[str, dict[str, int]] = {}
        """UID of a waiting gang to the nodes asked for on its behalf."""
        self.brought: dict[str, dict[str, NodeFact]] = {}
        """By UID: nodes that came on behalf of a gang. While it is asking, only its own judgement sees them."""

    def left(self, name: str) -> int:
        """How many nodes of a pool no gang has asked for yet."""
        promised = sum(nodes.get(name, 0) for nodes in self.asked.values())
        return max(0, self.facts[name].obtainable - promised)

    @property
    def any_left(self) -> bool:
        return any(self.left(name) for name in self.facts)

    # Nodes that have come

    def note_node(self, fact: NodeFact) -> bool:
        """True when the node is kept back: it came for a gang that is still asking."""
        self.forget_node(fact.name)
        if fact.held_for:
            self.brought.setdefault(fact.held_for, {})[fact.name] = fact
        return fact.held_for in self.asked

    def forget_node(self, name: str) -> None:
        for uid, nodes in list(self.brought.items()):
            if nodes.pop(name, None) is not None and not nodes:
                del self.brought[uid]

    def to_come(self, uid: str) -> dict[str, int]:
        """Of the nodes that were asked for on behalf of a gang, those that have not come."""
        left = dict(self.asked.get(uid, {}))
        for fact in self.brought.get(uid, {}).values():
            came = next((name for name in sorted(left) if left[name] and self._is_of(name, fact)), "")
            if came:
                left[came] -= 1
        return {name: count for name, count in left.items() if count > 0}

    def _is_of(self, name: str, node: NodeFact) -> bool:
        pool = self.facts.get(name)
        return pool is not None and pool.labels.items() <= node.labels.items()

    def kept_back(self) -> list[NodeFact]:
        return [fact for uid in self.asked for fact in self.brought.get(uid, {}).values()]

    # Nodes that could come

    def wanting(self, gang: Gang, room: Room) -> Wanting | None:
        """With which nodes to come this gang would fit: of one pool if one can do it, else of several. For a gang that
        has asked already, with those it asked for."""
        if not self.facts or gang.supply != "fit":
            return None
        if gang.uid in self.asked:
            asked = {name: count for name, count in self.asked[gang.uid].items() if name in self.facts}
            return self._with(asked, gang, room)
        if not gang.may_obtain:
            return None
        pods = sum(max(0, pod_set.count) for pod_set in gang.pod_sets)
        most = {name: min(self.left(name), pods) for name in sorted(self.facts)}
        alone = [self._with({name: count}, gang, room) for name, count in most.items()]
        enough = [self._fewest(found, gang, room) for found in alone if found is not None]
        if enough:
            return min(enough, key=lambda found: self._cost(found, gang))
        found = self._with(most, gang, room) if len(most) > 1 else None
        return None if found is None else self._fewest(found, gang, room)

    def _cost(self, found: Wanting, gang: Gang) -> tuple[bool, int, list[str]]:
        """Small is better: no devices that the gang did not ask for, few nodes, the first by name."""
        asked = {resource for pod_set in gang.pod_sets for resource in pod_set.requests}
        idle = any(
            is_accelerator(resource) and resource not in asked
            for name in found.nodes
            for resource, amount in self.facts[name].allocatable.items()
            if amount
        )
        return idle, sum(found.nodes.values()), sorted(found.nodes)

    def _fewest(self, found: Wanting, gang: Gang, room: Room) -> Wanting:
        """Ask for no node that can be spared."""
        for name in sorted(found.nodes):
            while found.nodes.get(name):
                fewer = self._with({**found.nodes, name: found.nodes[name] - 1}, gang, room)
                if fewer is None:
                    break
                found = fewer
        return found

    def _with(self, nodes: dict[str, int], gang: Gang, room: Room) -> Wanting | None:
        facts = [
            (name, _node(self.facts[name], f"{name}+{number}"))  # no real node can have a + in its name
            for name, count in nodes.items()
            for number in range(min(count, MOST_NODES))
        ][:MOST_NODES]
        if not facts:
            return None
        pool_of = {fact.name: name for name, fact in facts}
        with room.imagining(fact for _, fact in facts):
            placement = place(gang, room, say_why=False)
        if not isinstance(placement, Placement):
            return None
        used = {node for part in placement.pod_sets for node in part if node in pool_of}
        here = tuple(
            {node: count for node, count in part.items() if node not in pool_of} for part in placement.pod_sets
        )
        there = tuple(
            (pod_set.name, away)
            for pod_set, part in zip(gang.pod_sets, placement.pod_sets, strict=True)
            if (away := sum(count for node, count in part.items() if node in pool_of))
        )
        return Wanting(dict(Counter(pool_of[node] for node in sorted(used))), Placement(here), there)


def _node(pool: NodePool, name: str) -> NodeFact:
    labels = {**pool.labels, HOSTNAME: name}
    return NodeFact(name=name, labels=labels, taints=pool.taints, allocatable=pool.allocatable)
