"""One head while a cycle judges it: its assignment, its victims, and what became of it."""

from __future__ import annotations

from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.demand import QueueMember, has_places
from shoal.engine.kueue.facts import Usage
from shoal.engine.kueue.flavors.assignment import Assignment, Outcome, PodSetChoice
from shoal.engine.kueue.preemption.candidates import Victim
from shoal.engine.kueue.topology.ledger import TopologyUse, Uses
from shoal.engine.model import Gang

# Why a head goes back to its queue; decides whether at once or when something changes.
NO_FIT = "no fit"
NO_CANDIDATES = "no preemption candidates"
PENDING_PREEMPTION = "pending preemption"
AFTER_NOMINATION = "failed after nomination"
GATED = "may not evict for now"
NAMESPACE_MISMATCH = "namespace mismatch"
GENERIC = "generic"


class Entry:
    __slots__ = (
        "_uses", "admitted", "assignment", "back", "member", "message", "overtaken", "passed", "preempting", "reason",
        "record", "unplaced", "victims", "waits_on",
    )  # fmt: skip

    def __init__(self, member: QueueMember, record: QueueRecord) -> None:
        self.member = member
        self.record = record
        self.assignment: Assignment | None = None
        self.unplaced: Assignment | None = None
        """An assignment that fits and for which places are yet to be found."""
        self.victims: list[Victim] = []
        self.message = ""
        self.reason = ""
        self.back = GENERIC
        self.admitted = False
        self.overtaken = False
        """Earlier entries of the cycle took what it would have had."""
        self.passed = False
        """It was overtaken in every cycle, and those behind it have their turn now."""
        self.waits_on = False
        """Its victims are waited for, and all that it needs comes with them; no other has taken any of it."""
        self.preempting = 0
        self._uses: tuple[Assignment, Uses] | None = None

    @property
    def usage(self) -> Usage:
        return self.assignment.usage if self.assignment is not None else {}

    @property
    def uses(self) -> Uses:
        """Where its pods would be in topologies."""
        if self.assignment is None:
            return ()
        if self._uses is None or self._uses[0] is not self.assignment:
            self._uses = (self.assignment, uses_of(self.member.gang, self.assignment.pod_sets))
        return self._uses[1]

    @property
    def outcome(self) -> Outcome:
        return self.assignment.outcome if self.assignment is not None else Outcome.NO_FIT

    @property
    def height(self) -> int:
        return self.assignment.height if self.assignment is not None else 0

    def hold(self, message: str, reason: str, back: str) -> None:
        self.message, self.reason, self.back = message, reason, back


def uses_of(gang: Gang, parts: list[PodSetChoice]) -> Uses:
    """Where the pods of an assignment go in topologies."""
    if not has_places(parts):
        return ()
    each = {pod_set.name: pod_set.requests for pod_set in gang.pod_sets}
    return tuple(
        TopologyUse(tuple(sorted({choice.flavor for choice in part.choices.values()})), part.topology, each[part.name])
        for part in parts
        if part.topology is not None
    )
