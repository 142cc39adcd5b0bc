"""Which flavors a gang would get, as Kueue documents the search: pod set by pod set, flavor by flavor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from tests.checker.rest_gangs import Demand
from tests.checker.rest_holders import Asking, Holder
from tests.checker.rest_match import fits_flavor
from tests.checker.rest_objects import Json, Stored
from tests.checker.rest_quota import Place, Usage


class Mode(IntEnum):
    NO_FIT = 0
    NO_CANDIDATES = 1
    PREEMPT = 2
    RECLAIM = 3
    FIT = 4


Victims = Callable[[Asking, Usage, frozenset[Place]], list[Holder]]


class Unreadable(Exception):
    """The flavor asks for something that this program does not judge."""


@dataclass
class Assignment:
    usage: Usage = field(default_factory=dict)
    mode: Mode = Mode.FIT
    """The worst of all pod sets: it does not fit, has to push somebody out, or fits."""
    height: int = 0
    short: frozenset[Place] = frozenset()
    """Where somebody has to leave."""
    flavors: list[dict[str, str]] = field(default_factory=list)
    """Of each pod set: resource to flavor."""
    missing: set[tuple[str, str, int]] = field(default_factory=set)
    """Flavor, resource, and how much more is needed there; of everything that was looked at."""
    tried: list[dict[str, int]] = field(default_factory=list)
    """Of each pod set: resource to the flavor at which the search stopped, by number; -1 at the last."""

    @property
    def fits(self) -> bool:
        return self.mode is Mode.FIT

    @property
    def goes_on(self) -> bool:
        """Are there flavors behind the one at which it stopped? Then it is asked again, from there on."""
        return any(index != -1 for tried in self.tried for index in tried.values())

    @property
    def has_to_preempt(self) -> bool:
        return self.mode not in (Mode.FIT, Mode.NO_FIT)


@dataclass
class Scan:
    """Flavors of one group of resources, for pod sets that share one."""

    asked: dict[str, int]
    flavors: list[str]
    first: int = 0
    """Where it begins."""
    best: dict[str, tuple[str, Mode, int]] | None = None
    rank: tuple[Mode, int] = (Mode.NO_FIT, 0)
    stopped_at: int = -1


class Search:
    def __init__(self, stored: Stored, asking: Asking, victims: Victims, fair_sharing: bool) -> None:
        self.stored = stored
        self.asking = asking
        self.victims = victims
        self.fair_sharing = fair_sharing
        self.spec: Json = asking.queue.get("spec") or {}
        rules = self.spec.get("flavorFungibility") or {}
        self.next_when_borrowing = rules.get("whenCanBorrow") == "TryNextFlavor"
        self.next_when_preempting = rules.get("whenCanPreempt", "TryNextFlavor") == "TryNextFlavor"
        self.prefers_preempting = rules.get("preference") == "PreemptionOverBorrowing"
        self.only: list[dict[str, str]] | None = None
        """Set where a gang may only have the flavors that were chosen for it before."""

    def run(self, counts: Sequence[int], tried: Sequence[dict[str, int]] = ()) -> Assignment:
        """`tried`: where the search before this one stopped."""
        made = Assignment()
        demands = self.asking.demands
        short: set[Place] = set()
        made.flavors = [{} for _ in demands]
        for members in _together(demands):
            scans = self._scans(members, counts)
            if scans is None:
                made.mode = Mode.NO_FIT
                return made
            chosen: dict[str, tuple[str, Mode, int]] = {}
            stopped: dict[str, int] = {}
            for scan in scans:
                before = tried[members[0]] if members[0] < len(tried) and self.only is None else {}
                scan.first = (before.get(min(scan.asked), -1) + 1) % max(1, len(scan.flavors))
                self._scan(scan, members, made)
                if scan.best is None:
                    made.mode = Mode.NO_FIT
                    return made
                chosen |= scan.best
                stopped |= dict.fromkeys(scan.asked, scan.stopped_at)
            made.tried += [{}] * (max(members) + 1 - len(made.tried))
            for index in members:
                made.tried[index] = stopped
            for scan in scans:
                for resource, value in scan.asked.items():
                    flavor, mode, height = chosen[resource]
                    at = (flavor, resource)
                    made.usage[at] = made.usage.get(at, 0) + value
                    made.height = max(made.height, height)
                    made.mode = min(made.mode, mode)
                    if mode is not Mode.FIT:
                        short.add(at)
                    for index in members:
                        made.flavors[index][resource] = flavor
        made.short = frozenset(short)
        return made

    def _scans(self, members: list[int], counts: Sequence[int]) -> list[Scan] | None:
        """None: it asks for what no group of the queue covers."""
        groups = self.spec.get("resourceGroups") or ()
        asked: dict[str, int] = {}
        for index in members:
            for name, value in self.asking.demands[index].requests.items():
                asked[name] = asked.get(name, 0) + value * counts[index]
            if any("pods" in (group.get("coveredResources") or ()) for group in groups):
                asked["pods"] = asked.get("pods", 0) + counts[index]
        found = []
        for group in groups:
            mine = {name: value for name, value in asked.items() if name in (group.get("coveredResources") or ())}
            if mine:
                found.append(Scan(mine, [one["name"] for one in group.get("flavors") or ()]))
        covered = {name for scan in found for name in scan.asked}
        if any(value > 0 and name not in covered for name, value in asked.items()):
            return None
        return sorted(found, key=lambda scan: min(scan.asked))

    def _scan(self, scan: Scan, members: list[int], made: Assignment) -> None:
        last = len(scan.flavors) - 1
        for number, flavor in list(enumerate(scan.flavors))[scan.first :]:
            if not self._may_use(flavor, scan, members):
                continue
            found: dict[str, tuple[str, Mode, int]] = {}
            worst: tuple[Mode, int] = (Mode.FIT, 0)
            for resource, value in scan.asked.items():
                mode, height = self._mode((flavor, resource), value, made)
                found[resource] = (flavor, mode, height)
                if self._is_better(worst, (mode, height)):
                    worst = (mode, height)
            if worst[0] is Mode.NO_FIT:
                continue
            stops = not self._goes_on(*worst)
            if stops or scan.best is None or self._is_better(worst, scan.rank):
                scan.best, scan.rank = found, worst
            if stops:
                scan.stopped_at = -1 if number == last else number
                return

    def _may_use(self, flavor: str, scan: Scan, members: list[int]) -> bool:
        if self.only is not None and any(
            self.only[index].get(resource, flavor) != flavor for index in members for resource in scan.asked
        ):
            return False
        obj = self.stored.get("resourceflavors", flavor)
        if obj is None:
            return False
        verdicts = [fits_flavor(self.asking.demands[index].spec, obj) for index in members]
        if False not in verdicts and None in verdicts:
            raise Unreadable(flavor)
        return False not in verdicts

    def _mode(self, at: Place, value: int, made: Assignment) -> tuple[Mode, int]:
        node = self.asking.node
        wanted = made.usage.get(at, 0) + value
        if wanted > node.most(at):
            return Mode.NO_FIT, 0
        height, may_reclaim = node.borrowing_height(at, wanted)
        available = max(0, node.available(at))
        if wanted <= available:
            return Mode.FIT, height
        made.missing.add((*at, wanted - available))
        while_borrowing = bool(self.asking.borrow) or (self.fair_sharing and self.asking.reclaim != "Never")
        if not (node.nominal(at) >= wanted or may_reclaim or while_borrowing):
            return Mode.NO_FIT, height
        gone = self.victims(self.asking, {at: wanted}, frozenset((at,)))
        for one in gone:
            one.go()
        height, _ = node.borrowing_height(at, wanted)
        for one in gone:
            one.come_back()
        if not gone:
            return Mode.NO_CANDIDATES, height
        return Mode.PREEMPT if any(one.node is node for one in gone) else Mode.RECLAIM, height

    def _goes_on(self, mode: Mode, height: int) -> bool:
        if mode in (Mode.NO_FIT, Mode.NO_CANDIDATES):
            return True
        if mode is not Mode.FIT and self.next_when_preempting:
            return True
        return height > 0 and self.next_when_borrowing

    def _is_better(self, one: tuple[Mode, int], than: tuple[Mode, int]) -> bool:
        (mode, height), (other, other_height) = one, than
        if Mode.NO_FIT in (mode, other):
            return mode > other
        if self.prefers_preempting and Mode.NO_CANDIDATES not in (mode, other):
            return (-height, mode) > (-other_height, other)
        return (mode, -height) > (other, -other_height)


def _together(demands: Sequence[Demand]) -> list[list[int]]:
    """Pod sets that have to share flavors, in the order in which the first of each stands."""
    found: list[list[int]] = []
    for index, demand in enumerate(demands):
        home = next((one for one in found if demand.group and demands[one[0]].group == demand.group), None)
        if home is None:
            found.append([index])
        else:
            home.append(index)
    return found
