"""All topologies, and who is where in them: nodes, pods that no topology placed, and the gangs that were placed.

Owned by the queues' state and filled from facts, which may come in any order. A tree of domains is built per flavor
when it is first asked for and kept until flavors or topologies change; a node that changes is a change of the tree.
What is used is counted by lowest domain; where that is a node, flavors that share the node share the count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from shoal.api.labels import HOSTNAME
from shoal.engine.kueue.facts import Flavor, TopologyFact
from shoal.engine.kueue.topology.assignment import Values, add_usage
from shoal.engine.kueue.topology.spots import fitting
from shoal.engine.kueue.topology.tree import TopologyTree, belongs
from shoal.engine.model import Amounts, NodeFact, PodFact, TopologyPlacement
from shoal.remembered import Remembered

if TYPE_CHECKING:
    from shoal.engine.kueue.topology.place import PlaceOutcome
    from shoal.engine.kueue.topology.request import PodsToPlace


class TopologyUse(msgspec.Struct, frozen=True):
    """Where the pods of one pod set are, and what one of them takes there."""

    flavors: tuple[str, ...]
    placement: TopologyPlacement
    each: Amounts


Uses = tuple[TopologyUse, ...]
MOST_KNOWN = 4_096
"""Answers that are kept."""


class TopologyLedger:
    def __init__(self, flavors: Mapping[str, Flavor]) -> None:
        """`flavors` is the live mapping of the state."""
        self._flavors = flavors
        self.topologies: dict[str, TopologyFact] = {}
        self._nodes: dict[str, NodeFact] = {}
        self._pods: dict[str, PodFact] = {}
        """Pods that count: on a node, not ended, placed by no topology. By UID."""
        self._taken: dict[str, Amounts] | None = None
        """What they take of each node; None while no tree was asked for."""
        self._used: dict[object, dict[Values, Amounts]] = {}
        self._trees: dict[str, TopologyTree] = {}
        self.flavors: frozenset[str] = frozenset()
        """Names of the flavors that have a topology, known or not."""
        self.with_topology: frozenset[str] = frozenset()
        """Those of them that have one which is known."""
        self._since: list[tuple[Uses, int]] | None = None
        """What was placed since the mark; None: there is none."""
        self._marked = 0
        self._turns = count(1)
        self.turn = 0
        """Another one whenever anything changes that is free, or may be."""
        self.idle_turn = 0
        """The same, whatever placed gangs use."""
        self.known: Remembered[object, dict[str, PlaceOutcome]] = Remembered(MOST_KNOWN)
        """Places that were found, or why there are none; by what was asked for, and the turn."""
        self.pods: Remembered[tuple[str, str, int, bool], PodsToPlace] = Remembered(MOST_KNOWN)
        """By shape, pod set, count and whether its wish is implied: pods of gangs that were asked for."""
        self.version = 0
        """Grows when nodes or topologies change: gangs without places may have some now."""

    # Facts.

    def update_topology(self, fact: TopologyFact) -> bool:
        """Is it news?"""
        news = self.topologies.get(fact.name) != fact
        self.topologies[fact.name] = fact
        self._topologies_changed()
        return self._changed(news)

    def remove_topology(self, name: str) -> bool:
        known = self.topologies.pop(name, None) is not None
        self._topologies_changed()
        return self._changed(known)

    def update_node(self, node: NodeFact) -> bool:
        news = self._nodes.get(node.name) != node
        self._nodes[node.name] = node
        return self._node_changed(node.name, node) if news else False

    def remove_node(self, name: str) -> bool:
        return self._node_changed(name, None) if self._nodes.pop(name, None) is not None else False

    def _node_changed(self, name: str, node: NodeFact | None) -> bool:
        for flavor, tree in [*self._trees.items()]:
            is_here = node is not None and belongs(node, self._flavors[flavor].labels, tree.levels)
            if not tree.renew(name, node if is_here else None):
                del self._trees[flavor]
        self.version += 1
        self._turn()
        return bool(self.topologies)

    def update_pod(self, pod: PodFact) -> bool:
        """True when it no longer takes what it took."""
        counts = bool(pod.node) and not pod.is_terminal and not pod.by_topology
        before = self._pods.get(pod.uid)
        if before is None and not counts:
            return False
        if counts and before is not None and (before.node, before.requests) == (pod.node, pod.requests):
            return False
        freed = self.remove_pod(pod.uid)
        if counts:
            self._pods[pod.uid] = pod
            self._take(pod, 1)
        return freed

    def remove_pod(self, uid: str) -> bool:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._take(pod, -1)
        return pod is not None and bool(self.topologies)

    def _take(self, pod: PodFact, sign: int) -> None:
        self._turn()
        if self._taken is not None:
            add_usage(self._taken.setdefault(pod.node, {}), pod.requests, sign)
            for tree in self._trees.values():
                tree.taken_at(pod.node)

    def adopt(self, other: TopologyLedger) -> None:
        """See the nodes and pods of another ledger as well; gangs come as facts."""
        for node in other._nodes.values():
            self.update_node(node)
        for pod in other._pods.values():
            self.update_pod(pod)

    def flavors_changed(self) -> None:
        self._turn()
        self._trees.clear()
        self.flavors = frozenset([name for name, fact in self._flavors.items() if fact.topology])
        self._topologies_changed()

    def _topologies_changed(self) -> None:
        known = self.topologies
        self.with_topology = frozenset([name for name in self.flavors if self._flavors[name].topology in known])

    def _changed(self, news: bool) -> bool:
        if news:
            self._trees.clear()
            self.version += 1
            self._turn()
        return news and bool(self.topologies)

    def _turn(self) -> None:
        self.turn = self.idle_turn = next(self._turns)

    # Places.

    def use(self, uses: Uses, sign: int = 1) -> None:
        """Pods are placed (with -1: no longer are)."""
        if not uses:
            return
        self.turn = next(self._turns)
        if self._since is not None:
            self._since.append((uses, sign))
        for use in uses:
            for key in _counted_by(use.placement.levels, use.flavors):
                used = self._used.setdefault(key, {})
                for domain in use.placement.domains:
                    add_usage(used.setdefault(domain.values, {}), use.each, sign * domain.count)
            for tree in self._trees.values():
                for domain in use.placement.domains:
                    tree.used_at(domain.values)

    def mark(self) -> None:
        """Remember what is placed from now on."""
        self._since, self._marked = [], self.turn

    def unmark(self) -> None:
        self._since = None

    @property
    def is_as_marked(self) -> bool:
        """Was nothing placed since the mark?"""
        return not self._since

    @contextmanager
    def as_marked(self) -> Iterator[None]:
        """Places as they were at the mark."""
        since, turn, self._since = self._since or [], self.turn, None
        for uses, sign in reversed(since):
            self.use(uses, -sign)
        self.turn = self._marked
        try:
            yield
        finally:
            for uses, sign in since:
                self.use(uses, sign)
            self._since, self.turn = since, turn

    def tree(self, flavor: str) -> TopologyTree | None:
        """The domains of a flavor; None where it has no topology, or one that is not known."""
        found = self._trees.get(flavor)
        if found is not None:
            return found
        fact = self._flavors.get(flavor)
        topology = self.topologies.get(fact.topology) if fact is not None and fact.topology else None
        if fact is None or topology is None:
            return None
        nodes = [node for node in self._nodes.values() if belongs(node, fact.labels, topology.levels)]
        (key,) = _counted_by(topology.levels, (flavor,))
        used = self._used.setdefault(key, {})
        found = self._trees[flavor] = TopologyTree(topology.name, topology.levels, nodes, used, self._taken_of_nodes())
        return found

    def _taken_of_nodes(self) -> dict[str, Amounts]:
        """Kept up to date from the first time that it is asked for: without topologies pods cost nothing here."""
        if self._taken is None:
            self._taken = {}
            for pod in self._pods.values():
                add_usage(self._taken.setdefault(pod.node, {}), pod.requests, 1)
        return self._taken

    def flavor(self, name: str) -> Flavor | None:
        return self._flavors.get(name)

    def fits(self, uses: Uses) -> bool:
        """Is there room for these pods in exactly these domains?"""
        asked: dict[str, dict[Values, Amounts]] = {}
        for use in uses:
            flavor = next((name for name in use.flavors if self.tree(name) is not None), "")
            wanted = asked.setdefault(flavor, {})
            for domain in use.placement.domains:
                add_usage(wanted.setdefault(domain.values, {}), use.each, domain.count)
        for flavor, wanted in asked.items():
            tree = self.tree(flavor)
            for values, amounts in wanted.items():
                leaf = tree.leaves.get(values) if tree is not None else None
                if leaf is None or not fitting(amounts, leaf.free({}, empty=False))[0]:
                    return False
        return True


def _counted_by(levels: tuple[str, ...], flavors: Iterable[str]) -> list[object]:
    """Under which names usage is counted: one for all nodes, else one for each flavor."""
    return ["nodes"] if levels[-1:] == (HOSTNAME,) else [(levels, flavor) for flavor in flavors]
