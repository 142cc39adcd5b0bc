"""What elastic gangs have of a queue's quota beyond their admission: charged, and free for any gang that waits. So are
gangs that backfill.

Kept beside the quota trees, not in them: gangs are judged as if it were not there, so that it delays and evicts none of
them. Before one gets its quota, what is in its way here has to leave. More is granted only where trees, what is kept
for others, and this together leave room. Nothing here knows pods: keys are UIDs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.demand import QueueMember, totals_of
from shoal.engine.kueue.facts import FlavorResource, Usage
from shoal.engine.kueue.quota.tree import QuotaTreeNode


class SurplusUse(msgspec.Struct, frozen=True):
    """One pod: where it is charged and how much."""

    queue: str
    usage: Usage
    turn: tuple[bool, int, int, str, str] = (False, 0, 0, "", "")
    """The smallest leaves first."""

    def charges_as(self, other: SurplusUse | None) -> bool:
        return other is not None and (self.queue, self.usage) == (other.queue, other.usage)


class SurplusLedger:
    def __init__(self) -> None:
        self.uses: dict[str, SurplusUse] = {}
        """By UID. Changed only by `put`."""
        self._of: dict[str, dict[str, None]] = {}
        self.leaving: set[str] = set()
        """UIDs of those that were told to."""
        self.fillers: dict[str, QueueMember] = {}
        """Whole gangs that count here, by UID: they backfill (see `backfill`)."""
        self.turned: dict[str, QueueMember] = {}
        """Those whose turn for quota has come, so that it counts in the trees; not yet that for room."""

    def __bool__(self) -> bool:
        return bool(self.uses or self.fillers)

    def put(self, uid: str, use: SurplusUse | None) -> SurplusUse | None:
        """What this one uses from now on; returns what it did so far."""
        before = self.uses.pop(uid, None)
        if before is not None:
            del self._of[before.queue][uid]
            if not self._of[before.queue]:
                del self._of[before.queue]
        if use is not None:
            self.uses[uid] = use
            self._of.setdefault(use.queue, {})[uid] = None
        return before

    def use_of(self, uid: str) -> SurplusUse:
        filler = self.fillers.get(uid)
        return self.uses[uid] if filler is None else SurplusUse(filler.queue, filler.usage)

    def is_leaving(self, uid: str) -> bool:
        filler = self.fillers.get(uid)
        return uid in self.leaving if filler is None else filler.evicted

    @contextmanager
    def charged(self, root: QuotaTreeNode, records: dict[str, QueueRecord]) -> Iterator[list[str]]:
        """The tree with all of it; yields the UIDs of what is charged there."""
        found = self._in(root, records)
        for uid in found:
            use = self.use_of(uid)
            records[use.queue].node.add(use.usage)
        try:
            yield found
        finally:
            for uid in found:
                use = self.use_of(uid)
                records[use.queue].node.remove(use.usage)

    def in_the_way(self, node: QuotaTreeNode, wanted: Usage, records: dict[str, QueueRecord]) -> tuple[bool, list[str]]:
        """Is surplus in the way of this request, which the tree alone has room for? And what of it has to be told to
        leave, beyond what is leaving: the first that are enough, less all that need not go."""
        with self.charged(node.root(), records) as there:
            if node.fits(wanted):
                return False, []
            gone: list[str] = []

            def leave(uid: str) -> None:
                use = self.use_of(uid)
                records[use.queue].node.remove(use.usage)
                gone.append(uid)

            def come_back(uid: str) -> None:
                use = self.use_of(uid)
                records[use.queue].node.add(use.usage)
                gone.remove(uid)

            for uid in there:
                if self.is_leaving(uid):
                    leave(uid)
            chosen: list[str] = []
            for uid in there:
                if node.fits(wanted):
                    break
                if uid not in gone:
                    leave(uid)
                    chosen.append(uid)
            for uid in list(chosen[:-1]):
                come_back(uid)
                if node.fits(wanted):
                    chosen.remove(uid)
                else:
                    leave(uid)
            for uid in list(gone):
                come_back(uid)
            return True, chosen

    def _in(self, root: QuotaTreeNode, records: dict[str, QueueRecord]) -> list[str]:
        """Single pods first, then whole gangs, the last in line first."""
        found = [uid for node in root.queues() if node.name in records for uid in self._of.get(node.name, ())]
        found.sort(key=lambda uid: self.uses[uid].turn)
        if self.fillers:
            last_first = sorted(self.fillers.values(), key=lambda one: one.order, reverse=True)
            found += [one.uid for one in last_first if one.queue in records and records[one.queue].node.root() is root]
        return found


def usage_of_one(member: QueueMember, pod_set: str) -> Usage | None:
    """What one more pod of this pod set is charged, on the flavors that the gang was given. None: it was given none."""
    part = next((one for one in member.assignment if one.name == pod_set), None)
    demand = next((one for one in member.demands if one.name == pod_set), None)
    if part is None or demand is None:
        return None
    each = totals_of(demand, 1, "pods" in part.flavors)
    return {
        FlavorResource(part.flavors[resource], resource): amount
        for resource, amount in each.items()
        if amount > 0 and resource in part.flavors
    }
