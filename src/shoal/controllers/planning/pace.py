"""How soon one plan may follow another, and how much it decides: at once and everything where little goes on.

Asked by the planning loop before each plan. What comes during a pause becomes one plan; the API server may need the
same cores. Where thousands wait a plan decides no more than can be stored until the next one: what is decided late is
decided on what is known by then, and need not be taken back for those that came meanwhile. Knows nothing of gangs but
how many there are, and of how many a decision is on its way to the API server.
"""

from __future__ import annotations

CROWD = 100
PAUSE = 0.005
"""Seconds between two plans where there are more gangs than that."""
AT_ONCE = 3
"""So many plans after a rest follow each other without a pause if they are short: one gang's end comes as two or three
changes, and whatever starts in its place is decided by the last."""
GREAT_CROWD = 2_000
GREAT_PAUSE = 0.03
"""The same where very many wait and changes do not stop coming: most of a plan's cost does not depend on how much it
decides. Quota that a large gang gave back lies idle until the next plan, so it is no longer than it has to be."""
CALM_PAUSE = 0.25
"""And where none of them waits, so that a plan could start nothing."""
STEADY = 10
"""So many plans one after the other were asked for within `GREAT_PAUSE` of the last, or had to wait: changes do not
stop coming."""
STOCK = 100
"""While so many decisions are yet to be stored, what another plan decides would be stored after them."""
BACKLOG_PAUSE = 0.5
"""Seconds between two plans meanwhile, and more where plans take long."""
SHARE = 6
LONGEST = 0.25
"""The pause is so many times as long as the last plan took, up to this."""
GREAT_SHARE = 8
GREAT_LONGEST = 4.0
"""The same where very many wait and changes do not stop coming."""
LENGTHY = 0.01
LENGTHY_SHARE = 40
"""The same for plans that take that many seconds: a plan of a thousand queues takes as long for one change as for
fifty."""
LENGTHY_EACH = 0.001
"""But not for one that takes fewer seconds than this for each gang that it starts: the pause would not save the time,
and room that is free would lie idle until there is as much to decide again."""
BACKLOG_LONGEST = 5.0
"""The same while decisions are yet to be stored, so that the API server is not idle meanwhile."""
LEAST = 250
"""Gangs whose start may be on its way to the API server, however few were stored since the last plan."""
ALWAYS = 50
"""Gangs that a plan may start where none was stored since the last one: what is on its way may be stuck, and others are
not held up by that."""


class PlanPace:
    def __init__(self) -> None:
        self._next = 0.0
        self._next_if_none_waits = 0.0
        self._rested = 0.0
        self._next_with_stock = 0.0
        self._hurried = 0
        self._stored = 0

    def left(self, now: float, crowd: int, waiting: int = 1) -> float:
        """Seconds until the next plan may begin; asked once for each plan. `waiting`: how many of the crowd wait."""
        left = (self._next if waiting else self._next_if_none_waits) - now
        self._hurried = self._hurried + 1 if now < self._rested else 0
        return left if left > 0 and crowd > CROWD else 0.0

    def left_with_stock(self, now: float, crowd: int) -> float:
        """The same while there is a `STOCK` of decisions on their way."""
        return max(0.0, self._next_with_stock - now) if crowd > CROWD else 0.0

    def most(self, crowd: int, unstored: int, stored: int) -> int | None:
        """How many gangs the plan that begins now may start; None: all that can. `unstored`: those on their way;
        `stored`: how many were stored so far, in all. Asked once for each plan."""
        lately, self._stored = stored - self._stored, stored
        if crowd <= GREAT_CROWD:
            return None
        return max(0 if lately else ALWAYS, max(LEAST, 2 * lately) - unstored)

    def planned(self, began: float, ended: float, crowd: int, starts: int) -> None:
        """`starts`: how many gangs the plan started."""
        steady = self._hurried >= STEADY and crowd > GREAT_CROWD
        took = ended - began
        if steady:
            share = LENGTHY_SHARE if took >= max(LENGTHY, LENGTHY_EACH * starts) else GREAT_SHARE
            pause = max(GREAT_PAUSE, min(GREAT_LONGEST, share * took))
        elif self._hurried < AT_ONCE and took < LENGTHY:
            pause = 0.0
        else:
            pause = max(PAUSE, min(LONGEST, SHARE * took))
        self._next = ended + pause
        self._next_if_none_waits = ended + max(pause, CALM_PAUSE) if steady else self._next
        self._rested = ended + max(pause, GREAT_PAUSE)
        self._next_with_stock = ended + max(BACKLOG_PAUSE, min(BACKLOG_LONGEST, LENGTHY_SHARE * took))
