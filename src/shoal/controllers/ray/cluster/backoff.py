"""How soon a dead pod's place is filled again: at once the first time, then later and later.

A head that is killed for its memory dies again at once; without a pause the controller would make it again
for ever. Kept in memory only.
"""

from __future__ import annotations

import msgspec

from shoal.kube.clock import Clock

FIRST_PAUSE = 10.0
LONGEST_PAUSE = 300.0
FORGIVEN_AFTER = 600.0


class _Deaths(msgspec.Struct):
    count: int
    last: float


class Replacements:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deaths: dict[tuple[str, str], _Deaths] = {}

    def note(self, uid: str, group: str) -> None:
        """A pod of this group died."""
        now = self._clock.monotonic()
        held = self._deaths.get((uid, group))
        if held is None or now - held.last > FORGIVEN_AFTER:
            self._deaths[uid, group] = _Deaths(1, now)
        elif now - held.last > 1.0:  # pods of one group that die together are one death
            self._deaths[uid, group] = _Deaths(held.count + 1, now)

    def wait(self, uid: str, group: str) -> float:
        """Seconds until the place may be filled."""
        held = self._deaths.get((uid, group))
        if held is None or held.count < 2:
            return 0.0
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(held.count - 2, 10))
        return max(0.0, held.last + pause - self._clock.monotonic())

    def forget(self, uid: str) -> None:
        for key in [key for key in self._deaths if key[0] == uid]:
            del self._deaths[key]
