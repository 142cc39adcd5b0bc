"""Stored reasons that follow their causes: after a change, each waiting gang is told what is short now.

A plan says why when it refuses, and not again while it knows without a look that nothing became better; the amounts,
and even what it is that is short, may be others since. After every plan waiting gangs are gone through, equal ones at
the price of one, and those whose reason reads otherwise are looked at again. At rest nothing is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from shoal.controllers.planning.decisions import Decisions
from shoal.controllers.planning.naming import is_same_cause
from shoal.controllers.queues.telling import FEW, Telling
from shoal.engine import Engine
from shoal.engine.kueue import Known
from shoal.engine.model import Explanation, Gang, Hold
from shoal.kube.clock import Clock

FIRST = 0.5
"""Seconds after a change until the first look: what changes together is looked at once."""
PER_GANG = 0.004
"""Seconds between two rounds for every gang that waits, at least; where more than a few wait, so that what changes all
the time is not written all the time: 3.5 s up to 500, 20 s up to 5,000."""
PAUSES = ((500, 3.5), (5_000, 20.0))
MANY = 5_000
"""Where more than so many wait and things keep changing, other amounts alone are told only once it is calm."""
CHUNK = 100
"""So many are looked at before others get a turn."""


class Reasons:
    """`telling` knows those that wait, and which of them are told; `wake(gang)` asks for a look at one."""

    def __init__(
        self, decisions: Decisions, telling: Telling, clock: Clock, wake: Callable[[Gang], None], engine: Engine
    ) -> None:
        self._decisions = decisions
        self._telling = telling
        self._clock = clock
        self._wake = wake
        self._changed = asyncio.Event()
        self._turn = -1
        self._engine = engine

    def changed(self, turn: int) -> None:
        """A plan was made; `turn` counts what the engine was told before it."""
        if turn != self._turn:
            self._turn = turn
            self._changed.set()

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._clock.sleep(FIRST)
            waiting = list(self._telling.waiting.values())
            sparing = self._changed.is_set() and len(waiting) > MANY
            self._changed.clear()
            left_out = await self._look(waiting, sparing)
            if sparing or left_out:
                self._changed.set()  # what was left out is told in a later round
            if waiting:
                await self._clock.sleep(_pause(len(waiting)))

    async def _look(self, waiting: list[Gang], sparing: bool) -> bool:
        """True where some are not to be told yet."""
        left_out = False
        now = self._clock.now()
        known, room = Known(), dict[object, Explanation]()
        for number, gang in enumerate(waiting, 1):
            if number % CHUNK == 0:
                await asyncio.sleep(0)
                if self._changed.is_set():
                    known, room = Known(), {}  # planned meanwhile
            if self._telling.waiting.get(gang.key) is not gang:
                continue
            if not self._telling.is_due(gang, now) and not self._telling.grant(gang, now):
                left_out = True
                continue
            hold = self._engine.reason(gang.key, known) if gang.state == "waiting" else self._without_room(gang, room)
            if self._telling.is_owed(gang):
                if hold is not None:
                    self._decisions.restate(hold)
                self._wake(gang)
            elif hold is None or (sparing and self._differs_in_amounts(gang, hold)):
                continue
            elif self._decisions.restate(hold):
                self._wake(gang)
        return left_out

    def _differs_in_amounts(self, gang: Gang, hold: Hold) -> bool:
        said = self._decisions.hold(gang.key, gang.uid) or self._decisions.no_room(gang.key, gang.uid)
        return said is not None and is_same_cause(said.explanation.message, hold.explanation.message)

    def _without_room(self, gang: Gang, known: dict[object, Explanation]) -> Hold | None:
        """Why a gang that has quota is not started, where a plan found no room for it and that is still so."""
        said = self._decisions.no_room(gang.key, gang.uid)
        if said is None or said.reason != "resources":
            return None
        found = self._engine.room_reason(gang.key, known)
        return msgspec.structs.replace(said, explanation=found) if found is not None else None


def _pause(waiting: int) -> float:
    """Seconds between two rounds."""
    if waiting <= FEW:
        return PER_GANG * waiting
    return next((pause for most, pause in PAUSES if waiting <= most), PER_GANG * waiting)
