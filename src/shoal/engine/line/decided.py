"""What one cycle has decided so far, each decision written into the state at once.

The cycle finds out what may be done and has it done here. No caller was told of any of it yet: what has to yield to a
later decision of the same cycle is taken back without a trace.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shoal.engine.line.judge import Start
from shoal.engine.line.state import LineState
from shoal.engine.line.surplus import PREFIX, is_surplus
from shoal.engine.model import (
    Admit,
    Explanation,
    Gang,
    Hold,
    HoldReason,
    Obtain,
    Preempt,
    Reseat,
    Seat,
    Shortfall,
    Shrink,
)
from shoal.engine.nodes.affinity import company_of
from shoal.engine.nodes.fit import Placement
from shoal.engine.nodes.pools import Wanting
from shoal.engine.nodes.supply import few, obtaining

WHY = {"quota": "borrowed or lower-priority quota", "backfill": "room, which it was given by backfill"}


class Decided:
    def __init__(self, state: LineState, now: int) -> None:
        self.state = state
        self.now = now
        self.started: list[str] = []
        self.preempts: list[Preempt] = []
        self.shrinks: list[Shrink] = []
        self.obtains: list[Obtain] = []
        self.holds: dict[str, Hold] = {}
        self.spoken_for: set[str] = set()
        """Gangs that were decided on and still wait: they are not looked at again in this cycle."""
        self._before: dict[str, Gang] = {}
        """Gangs that start, as they were when they waited."""
        self._pending: dict[str, Placement] = {}
        """Gangs for which others have to leave, since this cycle, and the room that is kept for them."""

    def take_up(self, gang: Gang, start: Start, stopping: Iterable[str] = ()) -> None:
        """Start it now, or stop its victims and keep the room for it until they, and those `stopping`, are gone."""
        pending = set(stopping)
        if not pending:
            gang, start = self._for_the_oldest(gang, start)
        for uid in start.victims:
            if uid in self.started:
                self._take_back(uid, gang)
            elif is_surplus(uid):
                self._shrink(uid, gang)
                pending.add(uid)
            else:
                if self.state.by_uid(uid).state != "stopping":
                    self._preempt(uid, gang, "backfill" if uid in self.state.fillers else start.cause)
                pending.add(uid)
        # As MCAD: where sums decide, quota does not wait for pods to disappear.
        if not pending or (gang.supply == "aggregate" and start.cause == "quota"):
            self._start(gang, start)
            return
        if start.victims:
            self._pending[gang.uid] = start.placement
        self._wait_for(gang, start.placement, pending)

    def await_nodes(self, gang: Gang, wanting: Wanting) -> None:
        """Ask for nodes, once, and keep what the gang needs of those that exist until they are there."""
        state = self.state
        if gang.uid not in state.pools.asked:
            self.obtains.append(Obtain(gang=gang.key, uid=gang.uid, nodes=wanting.nodes, pod_sets=wanting.there))
            state.assume_obtaining(gang, wanting.nodes)
            state.fresh[gang.uid] = None
        state.ledger.claim(gang, wanting.here, partly=True)
        self.spoken_for.add(gang.uid)
        if gang.uid in state.fresh:
            self.hold(gang, "obtaining", obtaining(state.pools.to_come(gang.uid)))

    def hold(self, gang: Gang, reason: HoldReason, explanation: Explanation) -> None:
        self.state.fresh.pop(gang.uid, None)
        self.holds[gang.uid] = Hold(gang=gang.key, uid=gang.uid, reason=reason, explanation=explanation)

    def is_concerned(self, gang: Gang) -> bool:
        """Do other pods matter to where its pods may go?"""
        around = self.state.ledger.room.around
        return any(around.concerns(company_of(pod_set, gang.namespace)) for pod_set in gang.pod_sets)

    def _start(self, gang: Gang, start: Start) -> None:
        self.started.append(gang.uid)
        self._before[gang.uid] = gang
        self.holds.pop(gang.uid, None)
        self.state.assume_admitted(gang, self.now, start.seats, start.placement.assignment(gang))
        self.state.ledger.settle(started=True)

    def _wait_for(self, gang: Gang, placement: Placement, victims: Iterable[str]) -> None:
        leaving = set(victims)
        self.state.ledger.claim(gang, placement, leaving=leaving)
        self.spoken_for.add(gang.uid)
        keys = tuple(sorted(self.state.keys[uid] for uid in leaving))
        shortfall = Shortfall(kind="stopping", place="nodes", message=f"waits for {few(keys, ', ')} to stop")
        explanation = Explanation(message=shortfall.message, shortfalls=(shortfall,), place="nodes", holders=keys)
        self.hold(gang, "preempting", explanation)

    def _preempt(self, uid: str, preemptor: Gang, cause: str) -> None:
        victim = self.state.by_uid(uid)
        why = WHY.get(cause, "room of lower priority")
        self.preempts.append(
            Preempt(
                gang=victim.key,
                uid=uid,
                preemptor=preemptor.key,
                preemptor_uid=preemptor.uid,
                cause=cause,
                message=f"makes way for {preemptor.key}, which needs its {why}",
                term="InClusterQueue" if cause == "backfill" else "",
            )
        )
        self.state.assume_stopping(victim, preemptor)
        self.state.ledger.settle()

    def _shrink(self, uid: str, preemptor: Gang) -> None:
        """What an elastic gang has on top leaves; what is on its way out is only waited for."""
        state = self.state
        if state.by_uid(uid).state != "stopping":
            pod = uid.removeprefix(PREFIX)
            self.shrinks.append(state.surplus.shrink(pod, preemptor, state, state.ledger.pods[pod].node))
            state.ledger.settle()

    # Taking back

    def _take_back(self, uid: str, preemptor: Gang) -> None:
        """It was to start in this very cycle and has to yield: it simply waits on. Quota takes the oldest first; where
        an equal that came later was decided on, too, that one waits, and this one gets its place."""
        state, gang = self.state, self.state.by_uid(uid)
        last = self._last_equal(gang)
        seats = state.forest.seats(last.uid)
        state.forest.take_out(last.uid)
        state.yielding.note(last.uid, preemptor.uid)
        state.note_started(last.uid)  # whatever was freed for it is another's now
        if last.uid in self._pending:
            self.started.remove(uid)
            self._inherit(gang, last, seats)
        else:
            self.started.remove(last.uid)
            state.put(self._before[last.uid])
            if last.uid != uid:
                state.put(msgspec.structs.replace(gang, seats=seats, assignment=last.assignment))
        state.ledger.settle()

    def _for_the_oldest(self, gang: Gang, start: Start) -> tuple[Gang, Start]:
        """Would it push out an equal that came before and was to start in this cycle? Then that one gets its place."""
        state = self.state
        for uid in start.victims:
            other = state.by_uid(uid)
            if uid not in self.started or not state.are_equal(gang, other) or self.is_concerned(gang):
                continue
            if state.policy.order(other) < state.policy.order(gang):
                self.started.remove(uid)
                state.put(other := self._before[uid])
                state.forest.take_out(gang.uid)
                state.forest.restore(state.consumer(other), start.seats)
                victims = tuple(one for one in start.victims if one != uid)
                return other, msgspec.structs.replace(start, victims=victims, cause=start.cause if victims else "")
        return gang, start

    def _last_equal(self, gang: Gang) -> Gang:
        """Of those decided on in this cycle: the last that is judged as this one is, in its line."""
        state = self.state
        if self.is_concerned(gang):
            return gang
        others = (state.by_uid(uid) for uid in (*self.started, *self._pending))
        return max((other for other in others if state.are_equal(gang, other)), key=state.policy.order, default=gang)

    def _inherit(self, gang: Gang, last: Gang, seats: dict[str, Seat]) -> None:
        """Gangs that had to leave for the last of its equals now leave for this one."""
        state, placement = self.state, self._pending.pop(last.uid)
        victims = [preempt for preempt in self.preempts if preempt.preemptor_uid == last.uid]
        self.preempts = [preempt for preempt in self.preempts if preempt.preemptor_uid != last.uid]
        state.ledger.unclaim(last.uid)
        self.spoken_for.discard(last.uid)
        self.holds.pop(last.uid, None)
        state.fresh[last.uid] = None
        state.put(self._before[gang.uid])
        for victim in victims:
            self._preempt(victim.uid, gang, victim.cause)
        state.enqueue(last)
        state.forest.restore(state.consumer(gang), seats)
        self._pending[gang.uid] = placement
        self._wait_for(gang, placement, [victim.uid for victim in victims])

    # What is told of it

    def admits(self) -> tuple[Admit, ...]:
        gangs = (self.state.by_uid(uid) for uid in self.started)
        return tuple(Admit(gang=gang.key, uid=gang.uid, seats=gang.seats, assignment=gang.assignment) for gang in gangs)

    def reseats(self) -> tuple[Reseat, ...]:
        state = self.state
        found = []
        for uid in sorted(state.forest.take_moved()):
            key = state.keys.get(uid)
            gang = state.gangs[key] if key is not None else None
            if gang is None or gang.state != "admitted":
                continue
            seats = state.forest.seats(uid)
            if seats != gang.seats:
                state.put(msgspec.structs.replace(gang, seats=seats))
                if uid not in self.started:
                    found.append(Reseat(gang=gang.key, uid=uid, seats=seats))
        return tuple(found)
