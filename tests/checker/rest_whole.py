"""Gangs that run at rest: no gang that is not admitted has pods that may run (I5), and no two gangs keep each other
from being whole (I4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.checker.rest_gangs import Gangs
from tests.checker.rest_objects import (
    SECOND,
    Json,
    Rules,
    Stored,
    annotation,
    condition,
    is_bound,
    is_leaving,
    is_true,
    label,
    moment,
    owner_of,
    owner_uid,
    uid_of,
)
from tests.checker.rest_quota import describe, holds_quota
from tests.checker.rest_room import Part, Room

TAKE_BACK = "shoal.dev/take-back-living-heads"
LATE = 30 * SECOND


def without_leave(stored: Stored, rules: Rules) -> Iterator[str]:
    """I5, I11: pods of a gang whose Workload has no quota, whatever kind its owner is of."""
    gangs = Gangs(stored, rules)
    for workload in gangs.all:
        owner = owner_of(workload)
        if holds_quota(workload) or owner is None or owner.get("kind") == "Pod" or gangs.is_elsewhere(workload):
            continue
        pods = [pod for pod in stored.owned.get(owner_uid(workload), []) if not is_leaving(pod)]
        if pods:
            yield f"I5: {describe(workload)} has no quota and {len(pods)} pods that may run"


@dataclass(frozen=True)
class Partly:
    """A gang of which some pods are on nodes and some are not."""

    name: str
    bound: list[Json]
    missing: list[Part]
    since: int
    stays: bool
    """It keeps what it has, whatever that keeps from others."""


def in_parts(stored: Stored, rules: Rules) -> Iterator[str]:
    """I4: two gangs each with a part, one of which could be whole if the other gave its part back.

    Both may be so for `recovery_seconds`, in which nodes may come back; and twice as long where the scheduler may only
    be slow. A Ray cluster whose head lives gives nothing back unless its queue says so.
    """
    if not rules.recovery_seconds:
        return
    partly = [one for one in _incomplete(stored, rules) if _is_late(one, rules)]
    told: set[frozenset[str]] = set()
    for one in partly:
        for other in partly:
            pair = frozenset((one.name, other.name))
            if other is one or pair in told or not other.bound or other.stays:
                continue
            gone = {uid_of(pod) for pod in other.bound}
            kept = [pod for pod in stored.all("pods") if uid_of(pod) not in gone]
            if Room(Stored({**stored.objects, "pods": kept}), []).fits(one.missing) and one.bound:
                told.add(pair)
                yield f"I4: {one.name} and {other.name} each run in part and keep each other from being whole"


def _incomplete(stored: Stored, rules: Rules) -> Iterator[Partly]:
    gangs = Gangs(stored, rules)
    for workload in gangs.all:
        if not is_true(workload, "Admitted") or is_true(workload, "Evicted") or gangs.is_elsewhere(workload):
            continue
        pods = [pod for pod in stored.owned.get(owner_uid(workload), []) if not is_leaving(pod)]
        loose = [pod for pod in pods if not is_bound(pod)]
        if loose and len(loose) < len(pods):
            since = max(moment(_scheduled(pod) or pod["metadata"].get("creationTimestamp")) for pod in loose)
            missing = [Part(pod["spec"], stored.requests_of(pod["spec"]), 1) for pod in loose]
            bound = [pod for pod in pods if is_bound(pod)]
            yield Partly(describe(workload), bound, missing, since, _keeps(gangs, workload, bound))


def _keeps(gangs: Gangs, workload: Json, bound: list[Json]) -> bool:
    head = any(label(pod, "ray.io/node-type") == "head" for pod in bound)
    return head and annotation(gangs.cluster_queue(workload) or {"metadata": {}}, TAKE_BACK) != "true"


def _scheduled(pod: Json) -> str:
    return str(condition(pod, "PodScheduled").get("lastTransitionTime") or "")


def _is_late(one: Partly, rules: Rules) -> bool:
    return bool(rules.now) and rules.now - one.since > int(2 * rules.recovery_seconds * SECOND) + LATE
