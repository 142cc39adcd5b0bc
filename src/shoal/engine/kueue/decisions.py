"""What a cycle decided: which gangs get quota, which has to leave for which, which wait and why.

Returned by `Kueue.cycle` and `Kueue.plan`. Frozen data; the texts are the ones a user of Kueue knows.
"""

from __future__ import annotations

import msgspec

from shoal.engine.model import (
    Admit,
    Explanation,
    Hold,
    HoldReason,
    Plan,
    PodSetAssignment,
    Preempt,
    Reservation,
    Shortfall,
    Turn,
)

WAITING_FOR_PREEMPTED = "WaitingForPreemptedWorkloads"
LONGEST_MESSAGE = 32768

_CAUSES = {
    "InClusterQueue": "priority",
    "InCohortReclamation": "reclaim",
    "InCohortReclaimWhileBorrowing": "reclaim",
    "InCohortFairSharing": "fair-share",
}
_DUE_TO = {
    "InClusterQueue": "prioritization in the ClusterQueue",
    "InCohortReclamation": "reclamation within the cohort",
    "InCohortFairSharing": "Fair Sharing within the cohort",
    "InCohortReclaimWhileBorrowing": "reclamation within the cohort while borrowing",
}


class Reserve(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Quota is reserved for this gang. Store it before anything else."""

    gang: str
    uid: str
    cluster_queue: str
    assignment: tuple[PodSetAssignment, ...]
    replaces: str = ""
    """Key of the slice whose place it takes, and which has to be ended now."""
    backfilled: bool = False
    """In quota that the front of its queue waits for; see `Terms.backfilled`."""


class Evict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """This gang has to leave, to make room for another; it holds its quota until its pods are gone."""

    gang: str
    uid: str
    reason: str
    """`InClusterQueue`, `InCohortReclamation`, `InCohortFairSharing` or `InCohortReclaimWhileBorrowing`."""
    preemptor: str
    preemptor_uid: str
    message: str


class Displace(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """This gang has to leave: a node failed under it, and its topology has no other place."""

    gang: str
    uid: str
    message: str
    why: str
    """Why no place was found."""


class Shed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod that an elastic gang has beyond its admission has to leave, to make room for another gang."""

    pod: str
    """Its UID."""
    preemptor: str
    preemptor_uid: str


class Wait(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """This gang was looked at and waits. `reason` and `message` are those of its `QuotaReserved` condition."""

    gang: str
    uid: str
    cluster_queue: str
    reason: str
    message: str
    shortfalls: tuple[Shortfall, ...] = ()
    preempting: int = 0
    """How many gangs it waits for to leave."""


class QueueDecisions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    reserved: tuple[Reserve, ...] = ()
    evicted: tuple[Evict, ...] = ()
    placed: tuple[Reserve, ...] = ()
    """Gangs with quota whose pods have places now: after a node failed, or once a check had brought nodes."""
    displaced: tuple[Displace, ...] = ()
    waiting: tuple[Wait, ...] = ()
    """The gangs judged, in the order they were; not all that wait."""
    shed: tuple[Shed, ...] = ()
    turns: tuple[Turn, ...] = ()
    skipped_preemptions: dict[str, int] = {}
    """By cluster queue: preemptors passed over because an earlier one took their victims or their room."""
    warnings: tuple[str, ...] = ()
    unfinished: bool = False
    """There was more to decide than one plan may take: ask again at once."""

    def plan(self) -> Plan:
        """The same in the words that both dialects share."""
        return Plan(
            admits=tuple(Admit(gang=entry.gang, uid=entry.uid, assignment=entry.assignment) for entry in self.reserved),
            preempts=tuple(
                Preempt(
                    gang=entry.gang,
                    uid=entry.uid,
                    preemptor=entry.preemptor,
                    preemptor_uid=entry.preemptor_uid,
                    cause=_CAUSES[entry.reason],
                    message=entry.message,
                    term=entry.reason,
                )
                for entry in self.evicted
            )
            + tuple(
                Preempt(
                    gang=entry.gang,
                    uid=entry.uid,
                    preemptor="",
                    preemptor_uid="",
                    cause="node-failure",
                    message=entry.message,
                    term="NodeFailures",
                )
                for entry in self.displaced
            ),
            places=tuple(
                Reservation(gang=entry.gang, uid=entry.uid, queue=entry.cluster_queue, assignment=entry.assignment)
                for entry in self.placed
            ),
            turns=self.turns,
            holds=tuple(hold_of(entry) for entry in self.waiting),
            warnings=self.warnings,
            unfinished=self.unfinished,
        )


WAITING_FOR_CLUSTERS = "WaitingForClusters"
"""Term of a gang that no other cluster would start now."""
_REASONS: dict[str, HoldReason] = {"Misconfigured": "bad-fact", WAITING_FOR_CLUSTERS: "resources"}


def hold_of(entry: Wait) -> Hold:
    return Hold(
        gang=entry.gang,
        uid=entry.uid,
        reason="preempting" if entry.preempting else _REASONS.get(entry.reason, "quota"),
        explanation=Explanation(message=entry.message, shortfalls=entry.shortfalls, place=entry.cluster_queue),
        term=entry.reason,
    )


def eviction_message(preemptor_uid: str, job_uid: str, reason: str, preemptor_path: str, path: str) -> str:
    return (
        f"Preempted to accommodate a workload (UID: {preemptor_uid}, JobUID: {job_uid or 'UNKNOWN'}) due to"
        f" {_DUE_TO[reason]}; preemptor path: {preemptor_path}; preemptee path: {path}"
    )


def bounded(message: str) -> str:
    return message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 3] + "..."
