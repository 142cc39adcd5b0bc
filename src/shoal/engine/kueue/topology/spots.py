"""How many pods fit where: one working copy of the domains per placement, filled from the bottom up.

A `Spot` is a domain while one pod set (and its leader, if it has one) is being placed. At first it says how many pods
and slices fit there; as the placement comes down the tree it says how many were put there. The tree itself is never
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shoal.engine.kueue.topology.assignment import Values
from shoal.engine.kueue.topology.exclusions import Exclusions
from shoal.engine.kueue.topology.request import Grain, PodsToPlace
from shoal.engine.kueue.topology.tree import UNBOUNDED, Domain, Leaf, TopologyTree
from shoal.engine.model import Amounts, NodeFact, Toleration
from shoal.engine.nodes.selectors import NodeTerm, parse_node_terms, untolerated


class Spot:
    __slots__ = (
        "_below", "_children", "domain", "leaders", "pods", "pods_with_leader", "score", "slices",
        "slices_with_leader",
    )  # fmt: skip

    def __init__(self, domain: Domain, children: list[Spot] | Callable[[Spot], list[Spot]]) -> None:
        """`children` are given, or found once they are asked for."""
        self.domain = domain
        self._children: list[Spot] = children if isinstance(children, list) else []
        self._below: Callable[[Spot], list[Spot]] | None = None if isinstance(children, list) else children
        self.pods = 0
        self.slices = 0
        self.pods_with_leader = 0
        """Pods that fit beside the leader."""
        self.slices_with_leader = 0
        self.leaders = 0
        self.score = 0
        """How much the pods prefer the nodes in it."""

    @property
    def children(self) -> list[Spot]:
        if self._below is not None:
            self._children, self._below = self._below(self), None
        return self._children

    def copy(self) -> Spot:
        """It and all below it, to try things on."""
        found = Spot(self.domain, [child.copy() for child in self.children])
        found.pods, found.slices, found.leaders, found.score = self.pods, self.slices, self.leaders, self.score
        found.pods_with_leader, found.slices_with_leader = self.pods_with_leader, self.slices_with_leader
        return found

    def close(self) -> None:
        """Nothing goes here, or below."""
        self.pods = self.slices = 0
        self.close_to_leader()
        for child in self.children:
            child.close()

    def close_to_leader(self) -> None:
        self.leaders = self.pods_with_leader = self.slices_with_leader = 0
        for child in self.children:
            child.close_to_leader()

    def slices_of(self, size: int) -> None:
        """RoomCount in slices of this size from now on."""
        self.slices, self.slices_with_leader = self.pods // size, self.pods_with_leader // size


class Preferences:
    """How domains are put in order and the last one is chosen. `least_free`: the fullest first, as unconstrained pods
    go; else the emptiest first, and the last one as small as will do."""

    def __init__(self, *, least_free: bool, by_score: bool) -> None:
        self.best_fit = not least_free
        self.by_score = by_score
        self._sign = 1 if least_free else -1

    def ordered(self, spots: Iterable[Spot]) -> list[Spot]:
        return sorted(spots, key=lambda spot: (
            -spot.score if self.by_score else 0, self._sign * spot.slices, spot.pods, spot.domain.values,
        ))  # fmt: skip

    def ordered_for_leader(self, spots: Iterable[Spot]) -> list[Spot]:
        return sorted(spots, key=lambda spot: (
            -spot.leaders, -spot.score if self.by_score else 0, self._sign * spot.slices_with_leader,
            spot.pods_with_leader, spot.domain.values,
        ))  # fmt: skip

    def smallest(self, spots: Sequence[Spot], slices: int, leaders: int) -> Spot:
        """The smallest that takes all of these; the first where none does. Only the most preferred ones count."""
        if self.by_score:
            spots = [spot for spot in spots if spot.score == spots[0].score]
        best, least = spots[0], -1
        for spot in spots:
            room = spot.slices_with_leader if leaders else spot.slices
            if spot.leaders >= leaders and room >= slices and (least < 0 or room < least):
                best, least = spot, room
        return best


class NodeFilter:
    """Which nodes pods of one template may go to; as far as it is not a matter of room."""

    def __init__(self, pods: PodsToPlace, tolerations: tuple[Toleration, ...], by_score: bool) -> None:
        self.selector = pods.node_selector
        self.tolerations = pods.tolerations + tolerations
        self.terms = parse_node_terms(pods.affinity)
        self.preferred = _preferred_terms(pods.affinity) if by_score else ()

    @property
    def is_choosy(self) -> bool:
        """Does it tell nodes without taints apart?"""
        return bool(self.selector) or self.terms is not None

    def admits(self, node: NodeFact, excluded: Exclusions) -> bool:
        taint = untolerated(self.tolerations, node.taints) if node.taints else None
        if taint is not None:
            excluded.taint(taint)
        elif self.selector and any(node.labels.get(key) != value for key, value in self.selector.items()):
            excluded.selector()
        elif self.terms is not None and not any(term.matches(node.name, node.labels) for term in self.terms):
            excluded.affinity()
        else:
            return True
        return False

    def score(self, node: NodeFact) -> int:
        if not self.preferred:
            return 0
        return sum(weight for weight, term in self.preferred if term.matches(node.name, node.labels))


def _preferred_terms(affinity: Mapping[str, Any]) -> tuple[tuple[int, NodeTerm], ...]:
    told = (affinity.get("nodeAffinity") or {}).get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    found = []
    for entry in told:
        required = {"nodeSelectorTerms": [entry.get("preference") or {}]}
        terms = parse_node_terms({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}})
        found += [(int(entry.get("weight") or 0), term) for term in terms or ()]
    return tuple(found)


class RoomCount:
    """Fills the spots of a tree for one pod set and its leader."""

    def __init__(
        self, grain: Grain, node_filter: NodeFilter, pods: Amounts, leader: Amounts | None,
        assumed: Mapping[Values, Amounts], *, empty: bool, within: Values,
    ) -> None:  # fmt: skip
        self.grain = grain
        self.node_filter = node_filter
        self.pods = {**pods, "pods": 1}
        self.leader = None if leader is None else {**leader, "pods": 1}
        self.assumed = assumed
        self.empty = empty
        self.within = within
        """The domain that must not be left; empty: any."""
        self.excluded = Exclusions()

    def levels(self, tree: TopologyTree) -> list[list[Spot]]:
        """All spots, level by level."""
        found: list[list[Spot]] = [[] for _ in tree.levels]
        for root in tree.roots:
            self._build(root, found, 0)
        return found

    def _build(self, domain: Domain, found: list[list[Spot]], level: int) -> Spot:
        spot = Spot(domain, [self._build(child, found, level + 1) for child in domain.children])
        found[level].append(spot)
        if domain.leaf is not None:
            self._leaf(spot, domain.leaf)
        self.sum_up(spot, level)
        return spot

    def _leaf(self, spot: Spot, leaf: Leaf) -> None:
        self.excluded.nodes += 1
        if leaf.node is not None and not self.node_filter.admits(leaf.node, self.excluded):
            return
        if leaf.node is not None:
            spot.score = self.node_filter.score(leaf.node)
        if spot.domain.values[: len(self.within)] != self.within:
            self.excluded.elsewhere()
            return
        free = leaf.free(self.assumed, self.empty)
        spot.pods, short = fitting(self.pods, free)
        if not spot.pods:
            self.excluded.resource(short)
        spot.pods_with_leader = spot.pods
        if self.leader is not None and fitting(self.leader, free)[0] > 0:
            spot.leaders = 1
            for resource, amount in self.leader.items():
                free[resource] = free.get(resource, 0) - amount
            spot.pods_with_leader = fitting(self.pods, free)[0]

    def sum_up(self, spot: Spot, level: int) -> None:
        """What fits in a domain, from what fits in those below it. Groups within it are whole."""
        if spot.children:
            self._sum_children(spot, self.grain.inner_sizes.get(level + 1, 1))
        if level == self.grain.slice_level:
            spot.slices_of(self.grain.slice_size)

    def _sum_children(self, spot: Spot, size: int) -> None:
        """Beside a leader as much fits as where it costs least."""
        hosts = [child for child in spot.children if self.leader is None or child.leaders]
        spot.pods = sum(child.pods // size * size for child in spot.children)
        spot.slices = sum(child.slices for child in spot.children)
        spot.leaders = max(child.leaders for child in spot.children)
        spot.score = sum(child.score for child in spot.children)
        spot.pods_with_leader = spot.slices_with_leader = 0
        if hosts:
            cost = min(child.pods // size * size - child.pods_with_leader // size * size for child in hosts)
            spot.pods_with_leader = spot.pods - cost
            spot.slices_with_leader = spot.slices - min(child.slices - child.slices_with_leader for child in hosts)


def fitting(each: Amounts, free: Amounts) -> tuple[int, str]:
    """How many such pods fit, and the resource that fits the fewest. Asked of every node for each gang."""
    most, short = UNBOUNDED, ""
    for resource, amount in each.items():
        times = free.get(resource, 0) // amount if amount > 0 else UNBOUNDED
        if times <= most:
            times = 0 if times < 0 else times if times < UNBOUNDED else UNBOUNDED
            if times < most or resource < short:
                most, short = times, resource
    return most, short
