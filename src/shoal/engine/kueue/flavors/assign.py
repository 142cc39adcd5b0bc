"""Which flavor each pod set would get: Kueue's flavor search.

Called by the cycle for every head, and again for smaller counts (partial start) or after an overlap. Reads the quota
tree, changes nothing. Whether preemption could help is asked of `oracle`, so that this module knows nothing of
victims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from shoal.api.quantity import MAX_UNITS, show
from shoal.engine.kueue.demand import QueueMember, grouped, totals_of
from shoal.engine.kueue.facts import ClusterQueue, Flavor, FlavorResource, KueueSettings, ResourceGroup, Usage
from shoal.engine.kueue.flavors.assignment import (
    EXCEEDS_MAX_QUOTA,
    NO_MATCHING_FLAVOR,
    SEVERITY,
    WAITING_FOR_QUOTA,
    Assignment,
    Choice,
    Mode,
    PodSetChoice,
    Shortage,
)
from shoal.engine.kueue.flavors.eligible import kept_elsewhere, objection
from shoal.engine.kueue.quota.tree import QuotaTreeNode

Oracle = Callable[[FlavorResource, int], tuple[Mode, int]]
"""Could preemption make room for this amount here: the mode, and the borrowing height afterwards."""


class Placing(Protocol):
    """What a search asks about the topology of flavors."""

    @property
    def is_open(self) -> bool:
        """Can all pods go to every flavor?"""

    def objection(self, pod_set: str, flavor: Flavor, resources: Sequence[str]) -> str:
        """Why pods of this set cannot go to a flavor of the group that covers these resources; empty: they can."""

    def judged(self, found: Assignment) -> Assignment:
        """The assignment with places, or with what keeps its pods from having any."""


class Search:
    """One head's flavor search in one cluster queue."""

    def __init__(
        self,
        member: QueueMember,
        queue: ClusterQueue,
        groups: Mapping[str, ResourceGroup],
        node: QuotaTreeNode,
        flavors: Mapping[str, Flavor],
        settings: KueueSettings,
        oracle: Oracle,
    ) -> None:
        self.member = member
        self.queue = queue
        self.groups = groups
        self.node = node
        self.flavors = flavors
        self.settings = settings
        self.oracle = oracle
        preemption = queue.preemption
        self.preempts_while_borrowing = preemption.may_borrow or (
            settings.fair_sharing and preemption.reclaim_within_cohort != "Never"
        )
        self.nominated: Sequence[dict[str, str]] | None = None
        """When set: per pod set, the only flavor to look at for a resource."""
        self.placing: Placing | None = None
        """When set: finds places in the topology of the flavors."""

    def run(self, counts: Sequence[int] | None = None) -> Assignment:
        """Choose flavors for the whole gang, or for `counts` pods of each pod set."""
        demands = self.member.demands
        sizes = [demand.count for demand in demands] if counts is None else list(counts)
        parts: list[PodSetChoice] = []
        for demand, size in zip(demands, sizes, strict=True):
            parts.append(PodSetChoice(demand.name, size, totals_of(demand, size, "pods" in self.groups)))
        usage: Usage = {}
        height = 0
        done: list[PodSetChoice] = []
        for indexes in grouped(demands):
            self._choose(indexes, parts, usage)
            for index in indexes:
                part = parts[index]
                done.append(part)
                for resource, choice in part.choices.items():
                    at = FlavorResource(choice.flavor, resource)
                    usage[at] = usage.get(at, 0) + part.requests[resource]
                    height = max(height, choice.height)
            if any(parts[index].failed for index in indexes):
                break
        found = Assignment(done, usage, height)
        return found if self.placing is None else self.placing.judged(found)

    def _choose(self, indexes: list[int], parts: list[PodSetChoice], usage: Usage) -> None:
        """Find flavors for pod sets that must share them (most often just one)."""
        wanted: dict[str, int] = {}
        for index in indexes:
            for resource, amount in parts[index].requests.items():
                wanted[resource] = wanted.get(resource, 0) + amount
        settled: set[str] = set()
        severities: list[str] = []
        names = sorted(wanted)
        for resource in names:
            if resource in settled:
                continue
            group = self.groups.get(resource)
            if group is None:
                if wanted[resource] and not self.settings.ignore_undeclared:
                    reason = f"resource {resource} unavailable in ClusterQueue"
                    _fail(indexes, parts, [reason], NO_MATCHING_FLAVOR, [])
                    return
                continue
            covered = {name: wanted[name] for name in names if name in group.resources}
            settled.update(covered)
            scan = _Scan(self, indexes, group, covered, usage)
            scan.run(resource)
            severities.append(scan.severity)
            if scan.best is None:
                severity = max(severities, key=lambda reason: SEVERITY.get(reason, 0))
                _fail(indexes, parts, scan.reasons, severity, scan.shortages)
                return
            for index in indexes:
                part = parts[index]
                part.choices.update({name: choice for name, choice in scan.best.items() if name in part.requests})
                if not scan.fits:
                    part.reasons += scan.reasons
                    part.shortages += scan.shortages


class _Scan:
    """The walk over one resource group's flavors."""

    def __init__(
        self, search: Search, indexes: list[int], group: ResourceGroup, wanted: dict[str, int], usage: Usage
    ) -> None:
        self.search = search
        self.indexes = indexes
        self.group = group
        self.wanted = wanted
        self.usage = usage
        self.keeps = search.member.replaced is not None
        """It is a slice of a job that runs, and stays on that job's flavors."""
        self.best: dict[str, Choice] | None = None
        self.best_mode = Mode.NO_FIT
        self.best_height = 0
        self.reasons: list[str] = []
        self.shortages: list[Shortage] = []
        self.severity = ""

    def run(self, resource: str) -> None:
        search, flavors = self.search, self.group.flavors
        index = start = self._resume_at(resource)
        for index in range(start, len(flavors)):
            name = flavors[index].name
            if self._ineligible(name, resource):
                continue
            choices, mode, height = self._judge(name)
            if choices is None:
                continue
            if not self._goes_on(mode, height):
                self.best, self.best_mode, self.best_height = choices, mode, height
                break
            if self.best is None or _better(
                mode, height, self.best_mode, self.best_height, search.queue.fungibility.prefer_preempting
            ):
                self.best, self.best_mode, self.best_height = choices, mode, height
        if self.best is not None:
            tried = -1 if index >= len(flavors) - 1 else index
            for choice in self.best.values():
                choice.tried = tried

    @property
    def fits(self) -> bool:
        """Is there enough of everything on the flavor chosen?"""
        if not self.search.settings.rules.fits_everywhere:
            return self.best_mode is Mode.FIT
        return self.best is not None and all(choice.mode is Mode.FIT for choice in self.best.values())

    def _resume_at(self, resource: str) -> int:
        memory = self.search.member.memory
        first = self.indexes[0]
        if memory is None or self.search.nominated is not None or first >= len(memory):
            return 0
        start = memory[first].get(resource, -1) + 1
        return start if start < len(self.group.flavors) else 0

    def _ineligible(self, name: str, resource: str) -> bool:
        """Note why the flavor cannot be used at all, if so."""
        search = self.search
        nominated = search.nominated
        if nominated is not None and nominated[self.indexes[0]].get(resource) != name:
            text = f"skipping flavor {name} as it is not found in the nomination mapping for resource {resource}"
            self.reasons.append(text)
            return True
        flavor = search.flavors.get(name)
        text = f"flavor {name} not found" if flavor is None else ""
        if flavor is not None:
            for index in self.indexes:
                demand = search.member.demands[index]
                text = objection(demand.constraints, flavor)
                if not text and search.placing is not None:
                    text = search.placing.objection(demand.name, flavor, self.group.resources)
                if text:
                    break
        if text:
            self.reasons.append(text)
            self._milder(NO_MATCHING_FLAVOR)
            return True
        return False

    def _judge(self, name: str) -> tuple[dict[str, Choice] | None, Mode, int]:
        """All resources on one flavor: the choices, and the mode and height of the worst of them. One that is not
        enough is no reason to say nothing of the others."""
        prefer = self.search.queue.fungibility.prefer_preempting
        worst, worst_height = Mode.FIT, 0
        worst_reason = ""
        choices: dict[str, Choice] = {}
        for resource, amount in self.wanted.items():
            kept = self._kept(name, resource) if self.keeps else None
            mode, height, reason = kept or self._quota(FlavorResource(name, resource), amount)
            if reason and SEVERITY[reason] > SEVERITY.get(worst_reason, 0):
                worst_reason = reason
            if _better(worst, worst_height, mode, height, prefer):
                worst, worst_height = mode, height
            choices[resource] = Choice(name, mode, height)
        if worst is Mode.NO_FIT:
            self._milder(worst_reason)
            return None, worst, worst_height
        return choices, worst, worst_height

    def _kept(self, name: str, resource: str) -> tuple[Mode, int, str] | None:
        """A slice of a job that runs stays on that job's flavors. None: nothing is in the way."""
        for index in self.indexes:
            text = kept_elsewhere(self.search.member.demands[index], resource, name)
            if text:
                self.reasons.append(text)
                return Mode.NO_FIT, 0, NO_MATCHING_FLAVOR
        return None

    def _quota(self, at: FlavorResource, amount: int) -> tuple[Mode, int, str]:
        search, node = self.search, self.search.node
        before = self.usage.get(at, 0)
        wanted = before + amount
        most = node.potential.get(at, 0)
        if wanted > most:
            self.reasons.append(
                f"insufficient quota for {at.resource} in flavor {at.flavor}, previously considered podsets requests"
                f" ({shown(at, before)}) + current podset request ({shown(at, amount)}) > maximum capacity"
                f" ({shown(at, most)})"
            )
            self.shortages.append(Shortage(at, wanted, most))
            return Mode.NO_FIT, 0, EXCEEDS_MAX_QUOTA
        height, may_reclaim = node.borrowing_height(at, wanted)
        available = node.available(at)
        if wanted <= available:
            return Mode.FIT, height, ""
        missing = shown(at, wanted - available)
        self.reasons.append(f"insufficient unused quota for {at.resource} in flavor {at.flavor}, {missing} more needed")
        self.shortages.append(Shortage(at, wanted, available))
        if node.nominal(at) >= wanted or may_reclaim or search.preempts_while_borrowing:
            mode, height = search.oracle(at, wanted)
            return mode, height, WAITING_FOR_QUOTA
        return Mode.NO_FIT, height, WAITING_FOR_QUOTA

    def _goes_on(self, mode: Mode, height: int) -> bool:
        fungibility = self.search.queue.fungibility
        if mode in (Mode.NO_FIT, Mode.NO_CANDIDATES):
            return True
        if mode in (Mode.PREEMPT, Mode.RECLAIM) and fungibility.next_when_preempting:
            return True
        return height > 0 and fungibility.next_when_borrowing

    def _milder(self, reason: str) -> None:
        """Inside one group the mildest reason over the flavors counts: that flavor is the nearest to fitting."""
        if not self.severity or SEVERITY[reason] < SEVERITY[self.severity]:
            self.severity = reason


def _better(mode: Mode, height: int, than: Mode, than_height: int, prefer_preempting: bool) -> bool:
    """Is (mode, height) strictly better? Modes first, then less borrowing; the other way round where preferred."""
    if mode is Mode.NO_FIT or than is Mode.NO_FIT:
        return mode > than
    if prefer_preempting and Mode.NO_CANDIDATES not in (mode, than):
        return (-height, mode) > (-than_height, than)
    return (mode, -height) > (than, -than_height)


def _fail(
    indexes: list[int], parts: list[PodSetChoice], reasons: list[str], severity: str, shortages: list[Shortage]
) -> None:
    for index in indexes:
        part = parts[index]
        part.choices = {}
        part.reasons = list(reasons)
        part.shortages = list(shortages)
        part.severity = severity
        part.failed = True


def shown(at: FlavorResource, amount: int) -> str:
    return show(at.resource, min(amount, MAX_UNITS))
