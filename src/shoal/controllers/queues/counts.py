"""How many gangs wait in a queue and hold how much of it: counted with every change, never over again.

Fed by the controller with each Workload as it is stored; read where a queue's status is made. What has finished, or is
gone, takes up nothing here.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from shoal.api.kind import Key, Kind
from shoal.api.kinds import CLUSTER_QUEUE, LOCAL_QUEUE
from shoal.engine.kueue import terms_of
from shoal.engine.model import Gang
from shoal.remembered import Remembered

Usage = dict[tuple[str, str], int]
"""By flavor and resource."""
Address = tuple[Kind, Key]


class QueueShare(msgspec.Struct, frozen=True, gc=False):
    """What one gang adds to the counts of its queues."""

    local_queue: Key
    cluster_queue: str
    """Where it holds quota, or would."""
    pending: bool = False
    holds: bool = False
    admitted: bool = False
    usage: Usage = {}

    @property
    def addresses(self) -> tuple[Address, ...]:
        found = ((LOCAL_QUEUE, self.local_queue), (CLUSTER_QUEUE, Key("", self.cluster_queue)))
        return found if self.cluster_queue else found[:1]


class QueueTally:
    __slots__ = ("admitted", "pending", "reserved", "reserving", "used")

    def __init__(self) -> None:
        self.pending = 0
        self.reserving = 0
        self.admitted = 0
        self.reserved: Counter[tuple[str, str]] = Counter()
        self.used: Counter[tuple[str, str]] = Counter()

    def add(self, part: QueueShare, sign: int) -> None:
        self.pending += sign * part.pending
        self.reserving += sign * part.holds
        self.admitted += sign * part.admitted
        for at, amount in part.usage.items():
            self.reserved[at] += sign * amount
            if part.admitted:
                self.used[at] += sign * amount

    @property
    def is_empty(self) -> bool:
        return not self.pending and not self.reserving


NOTHING = QueueTally()
MOST_ALIKE = 10_000


class QueueCounts:
    def __init__(self) -> None:
        self._parts: dict[str, QueueShare] = {}
        """By UID."""
        self._tallies: dict[Address, QueueTally] = {}
        self._waiting: Remembered[tuple[Key, str], QueueShare] = Remembered(MOST_ALIKE)
        """By queues: what each gang adds that only waits there."""

    def update(self, uid: str, part: QueueShare) -> tuple[Address, ...]:
        """Returns the queues of which a number changed."""
        before = self._parts.get(uid)
        if before == part:
            return ()
        if part.pending and not part.holds:
            part = self._waiting.shared((part.local_queue, part.cluster_queue), part)
        touched = self.forget(uid)
        if part.pending or part.holds:
            self._parts[uid] = part
            for address in part.addresses:
                self._tallies.setdefault(address, QueueTally()).add(part, 1)
        elif before is None:
            return ()
        return tuple(dict.fromkeys((*touched, *part.addresses)))

    def forget(self, uid: str) -> tuple[Address, ...]:
        """The gang has ended, or is gone."""
        part = self._parts.pop(uid, None)
        if part is None:
            return ()
        for address in part.addresses:
            tally = self._tallies[address]
            tally.add(part, -1)
            if tally.is_empty:
                del self._tallies[address]
        return part.addresses

    def of(self, kind: Kind, key: Key) -> QueueTally:
        return self._tallies.get((kind, key), NOTHING)


def together(one: Usage, other: Usage) -> Usage:
    return {at: one.get(at, 0) + other.get(at, 0) for at in one.keys() | other.keys()}


def usage_of(gang: Gang) -> Usage:
    """What it is charged: less where pods of it are done."""
    used: Usage = {}
    done = terms_of(gang).reclaimable
    sizes = {one.name: one.count for one in gang.pod_sets} if done else {}
    for entry in gang.assignment:
        left = min(entry.count, max(0, sizes.get(entry.name, entry.count) - done.get(entry.name, 0)))
        for resource, amount in entry.usage.items():
            flavor = entry.flavors.get(resource)
            if flavor is not None:
                at = (flavor, resource)
                used[at] = used.get(at, 0) + (amount if not entry.count else amount * left // entry.count)
    return used
