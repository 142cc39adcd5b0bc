"""The domains of one topology: which nodes are in which rack, which racks in which block.

Built from the nodes of one flavor, and kept as they come, change and go (`renew`): that costs the same however many
there are. What is free is kept per lowest domain (`leaves`): what nodes offer, less what other pods use (`taken`), less
what placed gangs use (`used`). Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from shoal.api.labels import HOSTNAME
from shoal.engine.kueue.topology.assignment import Values, add_usage
from shoal.engine.model import Amounts, NodeFact, TopologyPlacement

UNBOUNDED = 2**31 - 1
"""How many pods fit where nothing is asked for; also the room for pods on a node that names no bound."""


class Watcher(Protocol):
    """Keeps something that follows from what is free."""

    def touch(self, key: Values, *, idle: bool = False) -> None:
        """What is free in this lowest domain changed; `idle`: also what is beside placed gangs."""

    def came(self, leaf: Leaf) -> None:
        """A lowest domain is new, maybe with some above it."""

    def left(self, leaf: Leaf) -> None:
        """It is gone, with those above it that have nothing below them any more."""

    def renewed(self, leaf: Leaf, before: NodeFact) -> None:
        """The node that it is has changed."""


class Domain:
    """One domain: the label values that lead to it from the top, and what is below it."""

    __slots__ = ("children", "index", "leaf", "parent", "values")

    def __init__(self, values: Values, parent: Domain | None) -> None:
        self.values = values
        self.parent = parent
        self.children: list[Domain] = []
        self.leaf: Leaf | None = None
        self.index = -1
        """Its place among those of its level, once it has one."""
        if parent is not None:
            parent.children.append(self)

    def ancestor(self, level: int) -> Domain:
        """The domain of a level that this one is in."""
        found = self
        while len(found.values) > level + 1 and found.parent is not None:
            found = found.parent
        return found


class Leaf:
    """A lowest domain: one node, or all nodes that no level tells apart."""

    __slots__ = ("capacity", "domain", "key", "node", "nodes", "taken", "used")

    def __init__(self, key: Values, domain: Domain) -> None:
        self.key = key
        self.domain = domain
        self.node: NodeFact | None = None
        """Given where nodes are the lowest level."""
        self.nodes = 0
        """How many are in it."""
        self.capacity: Amounts = {}
        self.taken: dict[str, Amounts] = {}
        """What pods use that no topology placed, by node."""
        self.used: Amounts = {}
        """What placed gangs use."""

    def free(self, assumed: Mapping[Values, Amounts], empty: bool) -> Amounts:
        """What is left; `empty`: as if no placed gang were there."""
        found = dict(self.capacity)
        for part in (*self.taken.values(), assumed.get(self.key), None if empty else self.used):
            if part:
                for resource, amount in part.items():
                    found[resource] = found.get(resource, 0) - amount
        return found


class TopologyTree:
    def __init__(
        self,
        name: str,
        levels: tuple[str, ...],
        nodes: Iterable[NodeFact],
        used: dict[Values, Amounts] | None = None,
        taken: dict[str, Amounts] | None = None,
    ) -> None:
        """`used` by lowest domain and `taken` by node are kept elsewhere and may change at any time."""
        self._used: dict[Values, Amounts] = {} if used is None else used
        self._taken: dict[str, Amounts] = {} if taken is None else taken
        self.name = name
        self.levels = levels
        self.by_level: list[dict[Values, Domain]] = [{} for _ in levels]
        self.leaves: dict[Values, Leaf] = {}
        """By host name where nodes are the lowest level, else by all label values."""
        self.by_node = levels[-1] == HOSTNAME
        self.watcher: Watcher | None = None
        self._nodes: dict[str, NodeFact] = {}
        for node in sorted(nodes, key=lambda one: one.name):
            self._add(node)

    @property
    def roots(self) -> Iterable[Domain]:
        return self.by_level[0].values()

    def key_of(self, values: Values) -> Values:
        return values[-1:] if self.by_node else values

    @property
    def stored_levels(self) -> tuple[str, ...]:
        """The levels that an assignment names: a host name alone says all."""
        return self.levels[-1:] if self.by_node else self.levels

    def domain(self, key: Values) -> Domain | None:
        leaf = self.leaves.get(key)
        return None if leaf is None else leaf.domain

    def renew(self, name: str, node: NodeFact | None) -> bool:
        """A node came, changed or (None) is not part of this any more. False: only a tree built anew can tell, where
        several nodes have one host name."""
        before = self._nodes.get(name)
        if any(one is not None and not self._is_alone(one) for one in (before, node)):
            return False
        if before is not None and node is not None and self._values(before) == self._values(node):
            self._replace(before, node)
            return True
        if before is not None:
            self._drop(before)
        if node is not None:
            self._add(node)
        return True

    def _is_alone(self, node: NodeFact) -> bool:
        """Has no other node its host name?"""
        leaf = self.leaves.get(self.key_of(self._values(node))) if self.by_node else None
        return leaf is None or (leaf.nodes == 1 and leaf.node is not None and leaf.node.name == node.name)

    def _values(self, node: NodeFact) -> Values:
        return tuple([node.labels[level] for level in self.levels])

    def _replace(self, before: NodeFact, node: NodeFact) -> None:
        leaf = self.leaves[self.key_of(self._values(node))]
        self._nodes[node.name] = node
        _offer(leaf, before, -1)
        _offer(leaf, node, 1)
        if self.by_node:
            leaf.node = node
        if self.watcher is not None:
            self.watcher.renewed(leaf, before)

    def _drop(self, node: NodeFact) -> None:
        leaf = self.leaves[self.key_of(self._values(node))]
        del self._nodes[node.name]
        _offer(leaf, node, -1)
        leaf.nodes -= 1
        del leaf.taken[node.name]
        if leaf.nodes:
            self._tell(leaf)
            return
        del self.leaves[leaf.key]
        empty: Domain | None = leaf.domain
        while empty is not None and not empty.children:
            del self.by_level[len(empty.values) - 1][empty.values]
            if empty.parent is not None:
                empty.parent.children.remove(empty)
            empty = empty.parent
        if self.watcher is not None:
            self.watcher.left(leaf)

    def _add(self, node: NodeFact) -> None:
        values = self._values(node)
        leaf = self.leaves.get(self.key_of(values))
        is_new = leaf is None
        if leaf is None:
            domain = self._domain(values)
            leaf = domain.leaf = self.leaves[self.key_of(values)] = Leaf(self.key_of(values), domain)
            leaf.node = node if self.by_node else None
            leaf.used = self._used.setdefault(leaf.key, {})
        _offer(leaf, node, 1)
        leaf.nodes += 1
        leaf.taken[node.name] = self._taken.setdefault(node.name, {})
        self._nodes[node.name] = node
        if is_new and self.watcher is not None:
            self.watcher.came(leaf)
        elif not is_new:
            self._tell(leaf)

    def _tell(self, leaf: Leaf) -> None:
        if self.watcher is not None:
            self.watcher.touch(leaf.key, idle=True)

    def _domain(self, values: Values) -> Domain:
        known = self.by_level[len(values) - 1]
        found = known.get(values)
        if found is None:
            found = known[values] = Domain(values, self._domain(values[:-1]) if len(values) > 1 else None)
        return found

    def take(self, node: str, requests: Amounts, count: int = 1) -> None:
        """A pod that was not placed by a topology runs on this node (or, with -1, no longer does)."""
        add_usage(self._taken.setdefault(node, {}), requests, count)
        self.taken_at(node)

    def use(self, placement: TopologyPlacement, each: Amounts, sign: int = 1) -> None:
        """Pods of a gang are placed here (or, with -1, no longer are)."""
        for domain in placement.domains:
            add_usage(self._used.setdefault(domain.values, {}), each, sign * domain.count)
            self.used_at(domain.values)

    def used_at(self, key: Values) -> None:
        """What placed gangs use of a lowest domain changed."""
        if self.watcher is not None:
            self.watcher.touch(key)

    def taken_at(self, node: str) -> None:
        """What other pods take of a node changed."""
        known = self._nodes.get(node)
        if self.watcher is not None and known is not None:
            self.watcher.touch(self.key_of(self._values(known)), idle=True)

    def missing(self, placement: TopologyPlacement) -> str:
        """The first domain of a placement that is no longer here; empty when all are."""
        return next((domain.values[0] for domain in placement.domains if domain.values not in self.leaves), "")


def _offer(leaf: Leaf, node: NodeFact, sign: int) -> None:
    """What a node has is in its lowest domain (with -1: no longer is)."""
    for resource, amount in node.allocatable.items():
        leaf.capacity[resource] = leaf.capacity.get(resource, 0) + sign * amount
    if "pods" not in node.allocatable:
        leaf.capacity["pods"] = leaf.capacity.get("pods", 0) + sign * UNBOUNDED


def belongs(node: NodeFact, labels: Mapping[str, str], levels: Iterable[str]) -> bool:
    """Is this node part of a flavor's topology? It is ready, and has the flavor's labels and a label for each level."""
    return (
        node.ready
        and not node.unschedulable
        and all(node.labels.get(key) == value for key, value in labels.items())
        and all(level in node.labels for level in levels)
    )
