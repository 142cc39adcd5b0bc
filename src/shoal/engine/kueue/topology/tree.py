"""The domains of one topology: which nodes are in which rack, which racks in which block.

Built from the nodes of one flavor and kept until those change. What is free is kept per lowest domain (`leaves`): what
nodes offer, less what other pods use (`taken`), less what placed gangs use (`used`). Decides nothing.
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


class Domain:
    """One domain: the label values that lead to it from the top, and what is below it."""

    __slots__ = ("children", "index", "leaf", "parent", "values")

    def __init__(self, values: Values, parent: Domain | None) -> None:
        self.values = values
        self.parent = parent
        self.children: list[Domain] = []
        self.leaf: Leaf | None = None
        self.index = 0
        """Its place among those of its level, once these have an order."""
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

    __slots__ = ("capacity", "domain", "key", "node", "taken", "used")

    def __init__(self, key: Values, domain: Domain) -> None:
        self.key = key
        self.domain = domain
        self.node: NodeFact | None = None
        """Given where nodes are the lowest level."""
        self.capacity: Amounts = {}
        self.taken: list[Amounts] = []
        """What pods use that no topology placed, for each of its nodes."""
        self.used: Amounts = {}
        """What placed gangs use."""

    def free(self, assumed: Mapping[Values, Amounts], empty: bool) -> Amounts:
        """What is left; `empty`: as if no placed gang were there."""
        found = dict(self.capacity)
        for part in (*self.taken, assumed.get(self.key), None if empty else self.used):
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
        self._of_node: dict[str, Values] = {}
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

    def _add(self, node: NodeFact) -> None:
        values = tuple(node.labels[level] for level in self.levels)
        leaf = self.leaves.get(self.key_of(values))
        if leaf is None:
            domain = self._domain(values)
            leaf = domain.leaf = self.leaves[self.key_of(values)] = Leaf(self.key_of(values), domain)
            leaf.node = node if self.by_node else None
            leaf.used = self._used.setdefault(leaf.key, {})
        offered = node.allocatable if "pods" in node.allocatable else {**node.allocatable, "pods": UNBOUNDED}
        for resource, amount in offered.items():
            leaf.capacity[resource] = leaf.capacity.get(resource, 0) + amount
        leaf.taken.append(self._taken.setdefault(node.name, {}))
        self._of_node[node.name] = leaf.key

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
        key = self._of_node.get(node)
        if self.watcher is not None and key is not None:
            self.watcher.touch(key, idle=True)

    def missing(self, placement: TopologyPlacement) -> str:
        """The first domain of a placement that is no longer here; empty when all are."""
        return next((domain.values[0] for domain in placement.domains if domain.values not in self.leaves), "")


def belongs(node: NodeFact, labels: Mapping[str, str], levels: Iterable[str]) -> bool:
    """Is this node part of a flavor's topology? It is ready, and has the flavor's labels and a label for each level."""
    return (
        node.ready
        and not node.unschedulable
        and all(node.labels.get(key) == value for key, value in labels.items())
        and all(level in node.labels for level in levels)
    )
