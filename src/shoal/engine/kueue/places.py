"""Where a waiting gang stands: among all that wait for its ClusterQueue, and among those of its own LocalQueue.

Answers `Kueue.places` and `Kueue.line`, on demand. Positions change with every arrival and departure, so they are never
stored.
"""

from __future__ import annotations

import msgspec

from shoal.engine.kueue.cycle.register import Register
from shoal.engine.kueue.cycle.state import QueueState
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.model import Gang


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """1 is next. Lengths count the gang itself."""

    cluster_queue: str
    position: int
    length: int
    local_position: int
    local_length: int


def line(cluster_queue: str, state: QueueState) -> list[Gang]:
    """All that wait for the quota of this queue, the next one first."""
    record = state.records.get(cluster_queue)
    return [member.gang for member in record.waiting.everyone() if not member.holds] if record is not None else []


def waiting_counts(cluster_queue: str, state: QueueState) -> tuple[int, int]:
    """Gangs of a queue that would be tried, and those set aside until something changes."""
    record = state.records.get(cluster_queue)
    if record is None:
        return 0, 0
    aside = record.waiting.inadmissible_count()
    return len(record.waiting) - aside, aside


def waiting_amounts(cluster_queue: str, state: QueueState) -> dict[str, int]:
    """What all gangs that wait for this queue ask for together, by resource."""
    record = state.records.get(cluster_queue)
    alike: dict[str, tuple[int, QueueMember]] = {}
    for member in record.waiting.members() if record is not None else ():
        alike[member.shape] = (alike[member.shape][0] + 1 if member.shape in alike else 1, member)
    found: dict[str, int] = {}
    for count, member in alike.values():
        for demand in member.demands:
            for resource, amount in demand.total(demand.count).items():
                found[resource] = found.get(resource, 0) + amount * count
    return found


def places(key: str, state: QueueState, register: Register) -> Places | None:
    member = register.members.get(key)
    record = state.records.get(member.queue) if member is not None else None
    if member is None or member.holds or record is None or member.uid not in record.waiting:
        return None
    everyone = record.waiting.members()
    rank = record.waiting.rank
    own = rank(member)
    mine = (member.gang.namespace, member.gang.queue)
    local = [other for other in everyone if (other.gang.namespace, other.gang.queue) == mine]
    return Places(
        cluster_queue=record.name,
        position=1 + sum(rank(other) < own for other in everyone),
        length=len(record.waiting),
        local_position=1 + sum(rank(other) < own for other in local),
        local_length=len(local),
    )
