"""Kueue's quota, worked out from nothing at one moment: who is charged what, and what each queue could still get.

Every answer is a sum over stored objects; nothing is kept from one question to the next but the objects themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from tests.checker.rest_objects import Json, Stored, condition, is_true, name_of, sums

Place = tuple[str, str]
"""Flavor and resource."""
BACKFILLED = "shoal.dev/Backfilled"
Usage = dict[Place, int]


@dataclass
class Limit:
    nominal: int = 0
    borrowing: int | None = None
    lending: int | None = None


@dataclass(eq=False)
class Node:
    """A ClusterQueue or a cohort."""

    name: str
    limits: dict[Place, Limit] = field(default_factory=dict)
    is_queue: bool = False
    is_active: bool = True
    """Does nothing keep it from admitting? Asked of a ClusterQueue; set by those who know."""
    weight: Fraction = Fraction(1)
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    own: Usage = field(default_factory=dict)
    """What gangs are charged right here."""

    known: Usage = field(default_factory=dict)
    """Quota of the subtree: limits do not change meanwhile."""

    def nominal(self, at: Place) -> int:
        return self.limits.get(at, Limit()).nominal

    def subtree(self, at: Place) -> int:
        if at not in self.known:
            self.known[at] = self.nominal(at) + sum(child.subtree(at) - child.local(at) for child in self.children)
        return self.known[at]

    def local(self, at: Place) -> int:
        """The part that is never lent."""
        lending = self.limits.get(at, Limit()).lending
        return 0 if lending is None else max(0, self.subtree(at) - lending)

    def usage(self, at: Place) -> int:
        return self.own.get(at, 0) + sum(max(0, child.usage(at) - child.local(at)) for child in self.children)

    def available(self, at: Place) -> int:
        if self.parent is None:
            return self.subtree(at) - self.usage(at)
        used, local, above = self.usage(at), self.local(at), self.parent.available(at)
        borrowing = self.limits.get(at, Limit()).borrowing
        if borrowing is not None:
            above = min(above, self.subtree(at) - local - max(0, used - local) + borrowing)
        return max(0, local - used) + above

    def most(self, at: Place) -> int:
        """The largest request that could ever fit."""
        if self.parent is None:
            return self.subtree(at)
        found = self.local(at) + self.parent.most(at)
        borrowing = self.limits.get(at, Limit()).borrowing
        return found if borrowing is None else min(found, self.subtree(at) + borrowing)

    def take(self, usage: Usage, times: int) -> None:
        """Charge it with so much more; minus one gives back."""
        for at, value in usage.items():
            self.own[at] = self.own.get(at, 0) + value * times

    def borrows(self, at: Place, value: int) -> bool:
        """Would it, with so much more?"""
        return self.subtree(at) < self.usage(at) + value

    def is_within(self, places: Iterable[Place]) -> bool:
        return all(not self.borrows(at, 0) for at in places)

    def local_left(self, at: Place) -> int:
        return max(0, self.local(at) - self.usage(at))

    def height(self) -> int:
        """How far its furthest leaf is."""
        return max((1 + child.height() for child in self.children), default=0)

    def borrowing_height(self, at: Place, value: int) -> tuple[int, bool]:
        """How far up it has to borrow; and is there quota enough below the root?"""
        if self.parent is None or not self.borrows(at, value):
            return 0, self.parent is not None
        node, rest = self, value - self.local_left(at)
        while node.parent is not None:
            node = node.parent
            if not node.borrows(at, rest):
                return node.height(), node.parent is not None
            rest -= node.local_left(at)
        return node.height(), False

    def places(self) -> set[Place]:
        """Whatever is charged here or below."""
        return {*self.own, *(at for child in self.children for at in child.places())}

    def places_below(self) -> set[Place]:
        """Whatever is offered here or below."""
        return {*self.limits, *(at for child in self.children for at in child.places_below())}

    def root(self) -> Node:
        return self if self.parent is None else self.parent.root()

    def everyone(self) -> Iterable[Node]:
        yield self
        for child in self.children:
            yield from child.everyone()


class Quota:
    """All ClusterQueues and cohorts, with what stored admissions charge them."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.queues: dict[str, Node] = {}
        self.cohorts: dict[str, Node] = {}
        self.lost: list[Json] = []
        """Gangs with quota of a queue that is not there."""
        for obj in stored.all("cohorts"):
            node = self._cohort(obj["metadata"]["name"])
            node.limits, node.weight = _limits(obj), _weight(obj)
        for obj in stored.all("clusterqueues"):
            name, spec = obj["metadata"]["name"], obj.get("spec") or {}
            node = self.queues[name] = Node(name, _limits(obj), is_queue=True, weight=_weight(obj))
            if cohort := spec.get("cohortName") or spec.get("cohort"):
                _hang(node, self._cohort(str(cohort)))
        for obj in stored.all("cohorts"):
            spec = obj.get("spec") or {}
            if parent := spec.get("parentName") or spec.get("parent"):
                _hang(self.cohorts[obj["metadata"]["name"]], self._cohort(str(parent)))
        for workload in self.holding:
            queue = self.queues.get(queue_charged(workload))
            if queue is None:
                self.lost += [workload] if queue_charged(workload) else []
                continue
            if is_true(workload, BACKFILLED):
                continue  # the front is judged as if it were not there
            for at, value in charge_of(workload).items():
                queue.own[at] = queue.own.get(at, 0) + value

    def _cohort(self, name: str) -> Node:
        return self.cohorts.setdefault(name, Node(name))

    @cached_property
    def holding(self) -> list[Json]:
        return [one for one in self.stored.all("workloads") if holds_quota(one)]

    @cached_property
    def circular(self) -> set[str]:
        """Cohorts that are above themselves."""
        found = set()
        for name, node in self.cohorts.items():
            seen: list[Node] = []
            at: Node | None = node
            while at is not None and at not in seen:
                seen.append(at)
                at = at.parent
            if at is not None:
                found.add(name)
        return found

    def is_readable(self, node: Node) -> bool:
        at: Node | None = node
        while at is not None:
            if at.name in self.circular and at.name in self.cohorts:
                return False
            at = at.parent
        return True

    def beside(self, node: Node) -> list[Node]:
        """Every queue of its tree."""
        members = {id(one) for one in node.root().everyone()}
        return [one for one in self.queues.values() if id(one) in members]


def _hang(node: Node, parent: Node) -> None:
    node.parent = parent
    parent.children.append(node)


def _weight(obj: Json) -> Fraction:
    told = ((obj.get("spec") or {}).get("fairSharing") or {}).get("weight")
    return Fraction(1) if told is None else Fraction(sums({"cpu": told})["cpu"], 1000)


def _limits(obj: Json) -> dict[Place, Limit]:
    found = {}
    for group in (obj.get("spec") or {}).get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for one in flavor.get("resources") or ():
                read = {
                    name: sums({one["name"]: one[name]})[one["name"]]
                    for name in ("nominalQuota", "borrowingLimit", "lendingLimit")
                    if one.get(name) is not None
                }
                found[flavor["name"], one["name"]] = Limit(
                    read.get("nominalQuota", 0), read.get("borrowingLimit"), read.get("lendingLimit")
                )
    return found


def queue_charged(workload: Json) -> str:
    return str(((workload.get("status") or {}).get("admission") or {}).get("clusterQueue") or "")


def holds_quota(workload: Json) -> bool:
    return is_true(workload, "QuotaReserved") and not is_true(workload, "Finished")


def charge_of(workload: Json) -> Usage:
    """What its stored admission is charged: pods that are done need no quota any more."""
    status = workload.get("status") or {}
    sizes = {one.get("name"): int(one.get("count", 1)) for one in (workload.get("spec") or {}).get("podSets") or ()}
    done = {one["name"]: int(one.get("count") or 0) for one in status.get("reclaimablePods") or ()}
    total: Usage = {}
    for part in (status.get("admission") or {}).get("podSetAssignments") or ():
        count = int(part.get("count", 1))
        left = max(0, min(count, sizes.get(part.get("name"), count) - done.get(part.get("name"), 0)))
        for resource, value in sums(part.get("resourceUsage")).items():
            flavor = (part.get("flavors") or {}).get(resource)
            if flavor is not None and value > 0:
                charged = value if left >= count else value // count * left
                total[flavor, resource] = total.get((flavor, resource), 0) + charged
    return total


def preemptors_of(workload: Json) -> set[str]:
    """Those it had to make way for, as far as it remembers: UIDs, and marks of those in other namespaces."""
    stored = str((workload["metadata"].get("annotations") or {}).get("shoal.dev/preempted-for") or "")
    found = {stored.rpartition("@")[0]}
    for kind in ("Evicted", "Preempted"):
        text = str(condition(workload, kind).get("message") or "")
        if "(UID: " in text:
            found.add(text.split("(UID: ", 1)[1].split(",")[0].split(")")[0])
    return found - {"", "UNKNOWN"}


def describe(workload: Json) -> str:
    owner = next((one for one in workload["metadata"].get("ownerReferences") or () if one.get("controller")), None)
    return f"{owner['kind']} {owner['name']}" if owner else f"Workload {name_of(workload)}"
