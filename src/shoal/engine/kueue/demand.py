"""A gang as this dialect sees it: what each pod set asks for in total, where it may go, and what it holds.

Made by the ledger from a Gang each time its facts change, and read by every decision. `Demand` is what is asked and
never changes; `QueueMember` is the gang's place in the ledger: waiting, or holding `usage` in a cluster queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from sys import intern
from typing import Any, Protocol

import msgspec

from shoal.engine.kueue.facts import FlavorResource, Terms, Usage, order_time, terms_of
from shoal.engine.kueue.topology.ledger import TopologyUse, Uses
from shoal.engine.kueue.topology.request import NO_WISH, TopologyWish, read_wish
from shoal.engine.model import Gang, PodSet, PodSetAssignment, Toleration, TopologyPlacement
from shoal.engine.nodes.selectors import NodeTerm, parse_node_terms
from shoal.errors import BadInput
from shoal.remembered import Remembered


class Constraints(msgspec.Struct, frozen=True, gc=False):
    """Where pods of one template may go, as far as flavors are concerned."""

    node_selector: dict[str, str]
    terms: tuple[NodeTerm, ...] | None
    tolerations: tuple[Toleration, ...]


NO_CONSTRAINTS = Constraints({}, None, ())
NO_USAGE: Usage = {}
"""Of all that hold nothing; never to be changed."""


class PodDemand(msgspec.Struct, frozen=True, gc=False):
    """One pod set: how many pods still need quota, and what one of them asks for."""

    name: str
    count: int
    least: int
    requests: dict[str, int]
    constraints: Constraints
    group: str = ""
    """Pod sets of one group share a flavor."""
    there: int = 0
    """Pods that the slice it replaces is charged for already; they are not in `count`."""
    kept: dict[str, str] = {}
    """Resource name to the flavor which that slice has, and this one must have, too."""
    wish: TopologyWish = NO_WISH

    def total(self, count: int) -> dict[str, int]:
        return {resource: max(0, each * count) for resource, each in self.requests.items()}


class Placed(Protocol):
    """A pod set that may have places in a topology."""

    @property
    def topology(self) -> TopologyPlacement | None: ...


Memory = tuple[dict[str, int], ...]
"""Per pod set, resource to the index of the last flavor tried (-1: all were)."""


class QueueMember:
    """A gang in the ledger. All of it follows from its facts, except `memory`, which is the flavor scan's."""

    __slots__ = (
        "assignment", "demands", "evicted", "fills", "gang", "holds", "key", "memory", "memory_cycle",
        "memory_generation", "order", "priority", "problem", "queue", "replaced", "reserved_at", "shape", "terms",
        "time", "topology", "uid", "usage", "wishes",
    )  # fmt: skip

    def __init__(self, gang: Gang, queue: str, replaced: QueueMember | None = None) -> None:
        terms = terms_of(gang)
        self.gang = gang
        self.key = gang.key
        self.uid = gang.uid
        self.terms: Terms = terms
        self.queue = queue
        """The cluster queue it waits for, or holds quota in."""
        self.priority = gang.priority
        self.time = order_time(gang)
        self.order = (-gang.priority, self.time, gang.uid)
        self.problem = gang.problem
        self.demands: tuple[PodDemand, ...] = ()
        alike = _alike(gang.pod_sets) if not terms.reclaimable else None
        try:
            self.demands = alike.demands if alike is not None and alike.demands else _demands(gang, terms)
        except BadInput as fault:
            self.problem = self.problem or f"resources validation failed: {fault}"
        if alike is not None:
            alike.demands = self.demands
        grown = _grown(self.demands, replaced) if replaced is not None else None
        self.replaced = replaced if grown is not None else None
        """The slice of the same job whose place it takes: it asks only for what it has more."""
        self.demands = self.demands if grown is None else grown
        self.wishes = False
        """Pods of it ask for places in a topology."""
        for demand in self.demands:
            if demand.wish is not NO_WISH and demand.wish.is_explicit:
                self.wishes = True
        if alike is None or grown is not None or not self.demands:
            self.shape = _shape(gang, self.demands)
        else:
            at = (gang.priority, gang.nowhere)
            self.shape = alike.shapes.get(at) or alike.shapes.setdefault(at, _shape(gang, self.demands))
        self.holds = gang.state in ("reserved", "admitted", "stopping")
        """It has quota: usage counts in its cluster queue."""
        self.fills = terms.backfilled and self.holds
        """Its usage counts beside the tree of its cluster queue: see `backfill`."""
        self.assignment = gang.assignment if self.holds else ()
        self.usage: Usage = _usage(gang, terms) if self.holds else NO_USAGE
        self.topology: Uses = topology_of(gang, gang.assignment) if self.holds else ()
        """Where its pods are in topologies; counted there beside the usage."""
        told_to_leave = gang.state == "stopping" or (gang.state == "reserved" and gang.stopping_for != "")
        self.evicted = self.holds and (terms.evicted_at is not None or told_to_leave)
        self.reserved_at = gang.admitted_at
        self.memory: Memory | None = None
        self.memory_generation = 0
        self.memory_cycle = 0

    @property
    def needs_places(self) -> bool:
        """It has quota and runs or could, but pods of it have no place: a node failed, or places were put off."""
        if not self.holds or self.evicted:
            return False
        failed = any(use.placement.has(name) for use in self.topology for name in self.terms.unhealthy_nodes)
        return failed or (self.terms.awaits_places and self.gang.state != "admitted")

    @property
    def may_shrink(self) -> bool:
        return any(demand.least < demand.count for demand in self.demands)

    @property
    def flavors_remain(self) -> bool:
        """The last scan stopped before the last flavor."""
        return self.memory is not None and any(index != -1 for tried in self.memory for index in tried.values())

    def forget(self) -> None:
        self.memory = None


class _Alike:
    """What gangs with the very same pod sets have in common; `demands` is empty until one of them was read."""

    __slots__ = ("demands", "pod_sets", "shapes")

    def __init__(self, pod_sets: tuple[PodSet, ...]) -> None:
        self.pod_sets = pod_sets
        self.demands: tuple[PodDemand, ...] = ()
        self.shapes: dict[tuple[int, str], str] = {}


_MOST_KNOWN = 4_096
_known: Remembered[int, _Alike] = Remembered(_MOST_KNOWN)
"""By identity: gangs that ask for the same are told with the same pod sets."""


def _alike(pod_sets: tuple[PodSet, ...]) -> _Alike:
    found = _known.get(id(pod_sets))
    if found is None or found.pod_sets is not pod_sets:
        found = _known.remember(id(pod_sets), _Alike(pod_sets))
    return found


def _demands(gang: Gang, terms: Terms) -> tuple[PodDemand, ...]:
    return tuple(_demand(pod_set, terms) for pod_set in gang.pod_sets)


def _demand(pod_set: PodSet, terms: Terms) -> PodDemand:
    count, requests = pod_set.count, pod_set.charged
    if count < 0 or (requests and min(requests.values()) < 0):
        negative = sorted(name for name, each in requests.items() if each < 0)
        raise BadInput(f"pod set {pod_set.name}: {', '.join(negative) or 'count'} must not be negative")
    if terms.reclaimable:
        count = max(0, count - terms.reclaimable.get(pod_set.name, 0))
    least = count if pod_set.min_count is None else min(count, pod_set.min_count)
    constraints = NO_CONSTRAINTS
    if pod_set.node_selector or pod_set.affinity or pod_set.tolerations:
        constraints = Constraints(pod_set.node_selector, parse_node_terms(pod_set.affinity), pod_set.tolerations)
    if not pod_set.topology_request:
        return PodDemand(pod_set.name, count, least, requests, constraints)
    group = pod_set.topology_request.get("podSetGroupName") or ""
    wish = read_wish(pod_set.topology_request)
    return PodDemand(pod_set.name, count, least, requests, constraints, str(group), wish=wish)


def _grown(demands: tuple[PodDemand, ...], replaced: QueueMember) -> tuple[PodDemand, ...] | None:
    """What is asked beyond a slice that runs; None when more than the number of pods has changed."""
    there = {part.name: part for part in replaced.assignment}
    asked = {pod_set.name: pod_set.charged for pod_set in replaced.gang.pod_sets}
    found = []
    for demand in demands:
        part = there.get(demand.name)
        if part is None or asked.get(demand.name) != demand.requests or part.count > demand.count:
            return None
        more = demand.count - part.count
        found.append(msgspec.structs.replace(demand, count=more, least=more, there=part.count, kept=part.flavors))
    return tuple(found) if len(found) == len(there) else None


def _shape(gang: Gang, demands: tuple[PodDemand, ...]) -> str:
    """Equal for gangs that get the same answer: priority, sizes, requests, constraints. Kueue's equivalence classes.
    Equal ones are the same object: there are many gangs of a shape, and they are asked for it often."""
    if not demands:
        return f"{gang.priority}/{gang.uid}"
    parts: list[Any] = [gang.priority, *([gang.nowhere] if gang.nowhere else ())]
    for demand, pod_set in zip(demands, gang.pod_sets, strict=True):
        parts.append((demand.name, demand.count, demand.least, demand.requests, pod_set.node_selector,
                      pod_set.affinity, pod_set.tolerations, pod_set.topology_request, demand.kept,
                      *([pod_set.requests] if pod_set.quota_requests is not None else ())))  # fmt: skip
    return intern(msgspec.json.encode(parts, order="deterministic").decode())


def _usage(gang: Gang, terms: Terms) -> Usage:
    """What an admission is charged, less the pods whose quota was given back since."""
    sizes = {pod_set.name: pod_set.count for pod_set in gang.pod_sets}
    left = {
        part.name: max(0, min(part.count, sizes.get(part.name, part.count) - terms.reclaimable.get(part.name, 0)))
        for part in gang.assignment
    }
    return charge_of(gang.assignment, left)


def topology_of(gang: Gang, assignment: tuple[PodSetAssignment, ...]) -> Uses:
    """Where an assignment puts pods in topologies."""
    if not has_places(assignment):
        return ()
    each = {pod_set.name: pod_set.requests for pod_set in gang.pod_sets}
    return tuple(
        TopologyUse(tuple(sorted(set(part.flavors.values()))), part.topology, each.get(part.name, {}))
        for part in assignment
        if part.topology is not None
    )


def has_places(parts: Iterable[Placed]) -> bool:
    """Has any pod set places in a topology? Asked for every gang: without topologies it costs next to nothing."""
    for part in parts:  # noqa: SIM110 (a generator would cost more than all else here)
        if part.topology is not None:
            return True
    return False


def charge_of(assignment: tuple[PodSetAssignment, ...], left: dict[str, int] | None = None) -> Usage:
    """What an assignment takes at each place; `left`: how many pods of each set still count."""
    usage: Usage = {}
    for part in assignment:
        counted = part.count if left is None else left[part.name]
        for resource, amount in part.usage.items():
            flavor = part.flavors.get(resource)
            if flavor is None or amount <= 0:
                continue
            if counted < part.count:
                amount = amount // part.count * counted
            at = FlavorResource(flavor, resource)
            usage[at] = usage.get(at, 0) + amount
    return usage


def grouped(demands: Sequence[PodDemand]) -> list[list[int]]:
    """Indexes of pod sets that share flavors, in order of first appearance."""
    groups: dict[str, list[int]] = {}
    order: list[list[int]] = []
    for index, demand in enumerate(demands):
        if demand.group and demand.group in groups:
            groups[demand.group].append(index)
            continue
        order.append([index])
        if demand.group:
            groups[demand.group] = order[-1]
    return order


def totals_of(demand: PodDemand, count: int, counts_pods: bool) -> dict[str, int]:
    """What `count` pods of a set are charged, pods included where the queue counts them."""
    totals = demand.total(count)
    if counts_pods:
        totals["pods"] = count
    return totals
