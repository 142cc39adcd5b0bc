"""When a gang that waits for quota is told why: at once where few wait, later where many come and go.

A reason is a write. Of thousands that wait while others start, most get quota before a person could have read theirs.
There the first reason of a gang is stored once nothing comes, starts or ends in its cohort any more and few decisions
are on their way to the API server; meanwhile a few gangs a second are told, those that have waited longest first. What
is stored is kept true whatever happens (`reasons.py`); `shoal why` asks the engine and never waits for this. Decides
about words only.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.engine.model import Gang
from shoal.kube.clock import Clock

FEW = 20
"""Up to so many that wait, each is told at once."""
CALM = 5_000_000
"""Microseconds in which nothing happened in a cohort: those that wait there do not wait for their turn only."""
CALM_PER_GANG = 2_000
"""So many for each gang that waits, where that is longer: with ten thousand a busy API server makes pauses of seconds,
and a reason for each of them would be the longest of all."""
A_SECOND = 1
"""Gangs a second that are told all the same while others of their cohort come and go."""
AT_ONCE = 20
"""The most of them together, after a time in which none were."""


class Telling:
    def __init__(self, clock: Clock, is_behind: Callable[[], bool] = lambda: False) -> None:
        """`is_behind`: are many decisions yet to be stored?"""
        self._clock = clock
        self._is_behind = is_behind
        self.waiting: dict[str, Gang] = {}
        """Gangs that wait for quota or for room, by key."""
        self._told: set[str] = set()
        """Keys of those with a stored reason."""
        self._place: dict[str, str] = {}
        """Key of a gang to what shares its quota: a cohort, or its ClusterQueue alone."""
        self._moved: dict[str, int] = {}
        """When a gang there last came or went, by that."""
        self._granted: set[str] = set()
        """Keys of gangs that are told although others come and go."""
        self._left = 0.0
        self._counted_at = 0

    def update(self, gang: Gang, place: str, told: bool) -> None:
        """`told`: a reason of any kind is stored."""
        if gang.state not in ("waiting", "reserved"):
            self.forget(gang.key)
            return
        if gang.key not in self.waiting:
            self._moved[place] = self._clock.now()
        self.waiting[gang.key] = gang
        self._place[gang.key] = place
        if told:
            self._told.add(gang.key)
        else:
            self._told.discard(gang.key)

    def forget(self, key: str) -> None:
        """It waits no more."""
        if self.waiting.pop(key, None) is not None:
            self._moved[self._place.pop(key)] = self._clock.now()
        self._told.discard(key)
        self._granted.discard(key)

    def is_due(self, gang: Gang, now: int) -> bool:
        """May its reason be stored now?"""
        key = gang.key
        if key in self._told or gang.state != "waiting" or len(self.waiting) <= FEW or key not in self._place:
            return True
        if key in self._granted:
            return True
        calm = max(CALM, CALM_PER_GANG * len(self.waiting))
        return now - self._moved.get(self._place[key], 0) >= calm and not self._is_behind()

    def grant(self, gang: Gang, now: int) -> bool:
        """Is it one of the few that are told all the same? To be asked in the order of waiting."""
        passed, self._counted_at = max(0, now - self._counted_at), now
        self._left = min(float(AT_ONCE), self._left + passed * A_SECOND / 1_000_000)
        if self._left < 1:
            return False
        self._left -= 1
        self._granted.add(gang.key)
        return True

    def is_owed(self, gang: Gang) -> bool:
        """Is nothing stored yet of why it waits?"""
        return gang.state == "waiting" and gang.key not in self._told
