"""What a flavor search found: the flavors each pod set would get, or what is short.

Made by `assign`, read by the cycle, by explanations and by views. It decides nothing.
"""

from __future__ import annotations

from enum import IntEnum

from shoal.engine.kueue.demand import Memory, charge_of
from shoal.engine.kueue.facts import FlavorResource, Usage
from shoal.engine.model import PodSetAssignment, Shortfall, TopologyPlacement


class Mode(IntEnum):
    """How well a flavor does, worst first."""

    NO_FIT = 0
    NO_CANDIDATES = 1
    PREEMPT = 2
    RECLAIM = 3
    FIT = 4


class Outcome(IntEnum):
    """How well the whole gang does, worst first. DEFERRED: fits once victims of others have left."""

    NO_FIT = 0
    PREEMPT = 1
    DEFERRED = 2
    FIT = 3


NO_MATCHING_FLAVOR = "NoMatchingFlavor"
EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
WAITING_FOR_QUOTA = "WaitingForQuota"
TOPOLOGY_PLACEMENT_FAILED = "TopologyPlacementFailed"
SEVERITY = {TOPOLOGY_PLACEMENT_FAILED: 1, WAITING_FOR_QUOTA: 2, EXCEEDS_MAX_QUOTA: 3, NO_MATCHING_FLAVOR: 4}


class Choice:
    """The flavor chosen for one resource of one pod set."""

    __slots__ = ("flavor", "height", "mode", "tried")

    def __init__(self, flavor: str, mode: Mode, height: int, tried: int = -1) -> None:
        self.flavor = flavor
        self.mode = mode
        self.height = height
        self.tried = tried


class Shortage:
    """One resource that is short on one flavor, for explanations."""

    __slots__ = ("at", "available", "wanted")

    def __init__(self, at: FlavorResource, wanted: int, available: int) -> None:
        self.at = at
        self.wanted = wanted
        self.available = available


class PodSetChoice:
    __slots__ = (
        "choices", "count", "delayed", "error", "failed", "name", "reasons", "requests", "severity", "shortages",
        "topology",
    )  # fmt: skip

    def __init__(self, name: str, count: int, requests: dict[str, int]) -> None:
        self.name = name
        self.count = count
        self.requests = requests
        self.choices: dict[str, Choice] = {}
        self.reasons: list[str] = []
        self.shortages: list[Shortage] = []
        self.severity = ""
        self.failed = False
        self.error = ""
        """What is wrong with the flavors it was given, whatever is free."""
        self.topology: TopologyPlacement | None = None
        self.delayed = ""
        """`Pending`: places are found once an admission check has brought nodes; `Ready`: they were."""

    def copy(self) -> PodSetChoice:
        made = PodSetChoice(self.name, self.count, self.requests)
        made.choices = {
            name: Choice(choice.flavor, choice.mode, choice.height, choice.tried)
            for name, choice in self.choices.items()
        }
        made.reasons, made.shortages = list(self.reasons), list(self.shortages)
        made.severity, made.failed, made.error = self.severity, self.failed, self.error
        made.topology, made.delayed = self.topology, self.delayed
        return made

    def set_mode(self, mode: Mode) -> None:
        for choice in self.choices.values():
            choice.mode = mode

    @property
    def given(self) -> PodSetAssignment:
        return PodSetAssignment(
            name=self.name,
            count=self.count,
            flavors={name: choice.flavor for name, choice in sorted(self.choices.items())},
            usage={name: self.requests[name] for name in sorted(self.choices)},
            topology=self.topology,
            delayed_topology=self.delayed,
        )

    @property
    def outcome(self) -> Outcome:
        if self.failed or self.error:
            return Outcome.NO_FIT
        if not self.reasons:
            return Outcome.FIT
        worst = min((choice.mode for choice in self.choices.values()), default=Mode.NO_FIT)
        return Outcome.FIT if worst is Mode.FIT else Outcome.NO_FIT if worst is Mode.NO_FIT else Outcome.PREEMPT


class Assignment:
    """Never changed once it is made: gangs of one shape are given the same one again and again."""

    __slots__ = ("_charge", "_given", "_memory", "height", "message", "outcome", "pod_sets", "usage")

    def __init__(self, pod_sets: list[PodSetChoice], usage: Usage, height: int) -> None:
        self.pod_sets = pod_sets
        self.usage = usage
        self.height = height
        self.outcome = min((part.outcome for part in pod_sets), default=Outcome.FIT)
        self.message = _message(pod_sets)
        self._memory: Memory | None = None
        self._given: tuple[PodSetAssignment, ...] | None = None
        self._charge: Usage | None = None

    @property
    def given(self) -> tuple[PodSetAssignment, ...]:
        """What each pod set gets, as it is stored."""
        if self._given is None:
            self._given = tuple([part.given for part in self.pod_sets])
        return self._given

    @property
    def charge(self) -> Usage:
        """What it takes once it is given."""
        if self._charge is None:
            self._charge = charge_of(self.given)
        return self._charge

    @property
    def reason(self) -> str:
        """Why it does not fit; empty when it does or could by preemption."""
        if self.outcome is not Outcome.NO_FIT:
            return ""
        return max((part.severity for part in self.pod_sets), key=lambda reason: SEVERITY.get(reason, 0), default="")

    def fitting(self) -> Assignment:
        """The same flavors and counts, now that there is room for them."""
        parts = []
        for part in self.pod_sets:
            fits = PodSetChoice(part.name, part.count, part.requests)
            fits.choices = {
                name: Choice(choice.flavor, Mode.FIT, choice.height) for name, choice in part.choices.items()
            }
            fits.topology, fits.delayed = part.topology, part.delayed
            parts.append(fits)
        return Assignment(parts, self.usage, self.height)

    @property
    def memory(self) -> Memory:
        if self._memory is None:
            self._memory = tuple(
                [{name: choice.tried for name, choice in part.choices.items()} for part in self.pod_sets]
            )
        return self._memory

    @property
    def flavors_remain(self) -> bool:
        """The search stopped before the last flavor somewhere."""
        return any(index != -1 for tried in self.memory for index in tried.values())

    @property
    def needing_room(self) -> frozenset[FlavorResource]:
        """Where victims are needed."""
        return frozenset(
            FlavorResource(choice.flavor, name)
            for part in self.pod_sets
            for name, choice in part.choices.items()
            if choice.mode not in (Mode.FIT, Mode.NO_FIT)
        )


def _message(pod_sets: list[PodSetChoice]) -> str:
    for part in pod_sets:
        if part.error:
            return f"failed to assign flavors to pod set {part.name}: {part.error}"
    return "; ".join(
        [
            f"couldn't assign flavors to pod set {part.name}: {', '.join(sorted(part.reasons))}"
            for part in pod_sets
            if part.reasons
        ]
    )


def shortfalls_of(assignment: Assignment, queue: str) -> tuple[Shortfall, ...]:
    """What is short, in the words that both dialects share: of each quota once, for all pod sets together. Each pod set
    is judged on top of those before it, so that the last sum is the whole; the first that is too much is named."""
    found: dict[FlavorResource, Shortfall] = {}
    for part in assignment.pod_sets:
        for short in part.shortages:
            known = found.get(short.at)
            if known is not None and short.wanted <= known.needed:
                continue
            found[short.at] = Shortfall(
                kind="quota",
                resource=short.at.resource,
                missing=short.wanted - short.available,
                needed=short.wanted,
                available=short.available,
                place=f"{queue}/{short.at.flavor}",
                pod_set=known.pod_set if known is not None else part.name,
            )
    return tuple(found.values())
