"""How soon one plan may follow another: at once where little goes on, less often where thousands of changes come.

Asked by the planning loop before each plan. What comes during a pause becomes one plan; the API server may need the
same cores. Knows nothing of gangs but how many there are, and of how many a decision is on its way to the API server.
"""

from __future__ import annotations

CROWD = 100
PAUSE = 0.02
"""Seconds between two plans where there are more gangs than that."""
GREAT_CROWD = 1_000
GREAT_PAUSE = 0.1
"""The same where very many wait and changes do not stop coming: each gang waits far longer than that, and most of a
plan's cost does not depend on how much it decides."""
STEADY = 10
"""So many plans one after the other had to wait for the pause: changes do not stop coming."""
BACKLOG = 200
BACKLOG_PAUSE = 0.5
"""Seconds between two plans while so many decisions are yet to be stored: what another plan decides would be stored
after them."""
SHARE = 6
LONGEST = 0.25
"""The pause is so many times as long as the last plan took, up to this."""
GREAT_SHARE = 20
GREAT_LONGEST = 0.5
"""The same where very many wait and changes do not stop coming: a plan of a thousand queues takes as long for one
change as for fifty."""


class PlanPace:
    def __init__(self) -> None:
        self._ended = float("-inf")
        self._next = 0.0
        self._hurried = 0

    def left(self, now: float, crowd: int, unstored: int = 0) -> float:
        """Seconds until the next plan may begin; asked once for each plan. `unstored`: decisions on their way."""
        left = self._next - now
        self._hurried = self._hurried + 1 if left > 0 else 0
        if unstored > BACKLOG:
            left = max(left, self._ended + BACKLOG_PAUSE - now)
        return left if left > 0 and crowd > CROWD else 0.0

    def planned(self, began: float, ended: float, crowd: int) -> None:
        steady = self._hurried >= STEADY and crowd > GREAT_CROWD
        least, share, longest = (GREAT_PAUSE, GREAT_SHARE, GREAT_LONGEST) if steady else (PAUSE, SHARE, LONGEST)
        self._ended = ended
        self._next = ended + max(least, min(longest, share * (ended - began)))
