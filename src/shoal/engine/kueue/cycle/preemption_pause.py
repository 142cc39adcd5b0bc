"""How long gangs that could evict others wait for them to end by themselves.

Asked by a cycle before it evicts. A time that is set counts for all gangs. Where none is set they wait in quota trees
whose gangs ended within seconds lately: there an eviction costs more than it gains. While too few have ended to tell,
they wait a moment for gangs that have just started. In neither do they wait for one that has run for longer already.
Where gangs run for longer, but so many that quota comes back all the time, a gang that does not borrow has it before
others, and waits for that. What was seen is memory only.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from shoal.engine.kueue.cycle.returns import MOST_TREES, SECOND, QuotaReturns, Tree, tree_of
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import Usage
from shoal.engine.kueue.quota.tree import QuotaTreeNode
from shoal.remembered import Remembered

SHORT = 10 * SECOND
"""Gangs of a tree that held quota no longer than this, on average, end soon."""
LONGEST = 30 * SECOND
"""One that held it for longer counts as this, so that it does not hide the many others for long."""
WAIT = 20 * SECOND
"""Until they have run for so long they are waited for."""
FRESH = 6 * SECOND
"""The same while too few have ended, and no gang waits longer."""
SOON = 5 * SECOND
"""A gang that gets what it needs within this, if as much comes back as lately, waits for it: for `WAIT` at most."""
ENOUGH = 10
"""Ends after which the average counts."""
SHARE = 16
"""The average moves towards the newest end by one part of so many."""
LAPSED = 2 * SECOND
"""A gang whose time ended so long ago without an eviction, and before the last plan, had none to evict then: for the
next ones it waits again."""
NEVER = (0, 0)


class PreemptionPause:
    def __init__(self, set_for_all: int | None) -> None:
        """Microseconds; None: by what was seen."""
        self._set = set_for_all
        self._runs: Remembered[Tree, tuple[int, int]] = Remembered(MOST_TREES)
        """By tree: how many gangs ended there, and how long they held quota."""
        self._returns = QuotaReturns()
        self._times: dict[str, tuple[int, int]] = {}
        """By UID of a gang that could evict others: since when it can, and the moment until which it waits."""
        self._ends: list[tuple[int, str]] = []
        self._over: frozenset[str] = frozenset()
        """UIDs of those whose time has ended since the plan before this one."""

    @property
    def learns(self) -> bool:
        return self._set is None

    def ended(self, member: QueueMember, root: QuotaTreeNode, now: int) -> None:
        """A gang ended by itself."""
        if not member.reserved_at:
            return
        key = tree_of(root)
        held = min(max(0, now - member.reserved_at), LONGEST)
        self._returns.came_back(key, member.usage, now)
        count, average = self._runs.get(key, (0, held))
        self._runs.remember(key, (count + 1, average + (held - average) // SHARE))

    def of(self, root: QuotaTreeNode) -> int:
        """How long gangs of this tree wait; 0: not at all."""
        if self._set is not None:
            return self._set
        count, average = self._runs.get(tree_of(root), (0, 0))
        if count < ENOUGH:
            return FRESH
        return WAIT if average <= SHORT else 0

    def waits(
        self, uid: str, root: QuotaTreeNode, victims: Iterable[QueueMember], now: int, needs: Usage | None = None
    ) -> bool:
        """Does the gang still wait for these to end? From the first time that it could evict any, for as long as it
        may. `needs`: what it asks for, where it may have what any gang of the tree gives back."""
        since, until = self._times.get(uid, (now, now))
        if until + LAPSED < now and uid not in self._over:
            since = now
        begins, least = since, 0
        if self.learns:
            starts = [one.reserved_at for one in victims]
            begins = min(starts, default=since)  # what each leaves is kept for this gang: its own time need not end
            if not self.is_for_all(root):
                if all(start == now for start in starts):
                    return False  # this plan gave them quota, and takes that back before anything is told
                begins = min(since, begins)
                if needs is not None and self._comes_back_soon(needs, root, now):
                    least = since + WAIT
        until = max(least, begins + self.of(root))
        if until <= now and uid not in self._times:
            return False
        if self._times.get(uid) != (since, until):
            self._times[uid] = since, until
            heapq.heappush(self._ends, (until, uid))
        return now < until

    def _comes_back_soon(self, needs: Usage, root: QuotaTreeNode, now: int) -> bool:
        return self._returns.within(tree_of(root), needs, now) <= SOON

    def still_waits(self, uid: str, now: int) -> bool:
        return now < self._times.get(uid, NEVER)[1]

    def is_for_all(self, root: QuotaTreeNode) -> bool:
        """Do gangs of this tree wait as a rule, and not just for those that have started a moment ago?"""
        return self.of(root) > (FRESH if self.learns else 0)

    def forget(self, uid: str) -> None:
        self._times.pop(uid, None)

    def over(self, now: int) -> list[str]:
        """UIDs of gangs whose time has ended since the last call; asked once in each plan."""
        found = []
        while self._ends and self._ends[0][0] <= now:
            found.append(heapq.heappop(self._ends)[1])
        self._over = frozenset(found)
        return found

    def next_end(self) -> int | None:
        """When the time of the next one ends."""
        while self._ends:
            at, uid = self._ends[0]
            if self._times.get(uid, NEVER)[1] == at:
                return at
            heapq.heappop(self._ends)
        return None
