"""One cycle: which gangs start, which are taken back, which wait and why.

Made by `Engine.plan` for one moment and thrown away. Works on one ledger, entry by entry: each decision is assumed at
once, so no two decisions of a cycle use the same room, quota or victim. Reads top to bottom as the order of business.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from itertools import count

from shoal.engine.line.decided import Decided
from shoal.engine.line.growth import grow
from shoal.engine.line.judge import SURPLUS, Blocked, Judge, Start
from shoal.engine.line.quota_index import QuotaWait
from shoal.engine.line.state import LineState
from shoal.engine.line.victims import smallest_release
from shoal.engine.line.waiting import GangClass
from shoal.engine.model import Explanation, Gang, HoldReason, Plan, Shortfall
from shoal.engine.nodes.fit import Placement
from shoal.engine.nodes.pools import Wanting
from shoal.engine.nodes.supply import explanation_of, find_room
from shoal.engine.policies import Rank

STEPS = 20_000
"""Judgements per cycle; what is left over is taken up by the next."""


class Cycle:
    def __init__(self, state: LineState, now: int) -> None:
        self.state = state
        self.now = now
        self.judge = Judge(state)
        self.decided = Decided(state, now)
        self.spoken_for = self.decided.spoken_for
        self.offered: dict[GangClass, QuotaWait] = {}
        """Classes that quota refused before and that get another try, and where the next one waits."""
        self.waits: list[QuotaWait] = []
        """Where quota became free, and from where no gang was taken up yet."""
        self.front: Gang | None = None
        """The first that had to wait, where room is set aside for it."""
        self.wake_at = 0
        self._asked_again_at = -1
        """The state of holders at which those ahead of a preemptor were last asked again."""

    def run(self) -> Plan:
        former = self._drop_claims()
        self.state.ledger.settle()
        self.state.charge_growth()
        self._serve_claimants(former)
        self._reconsider()
        if self._serve_the_front():
            if self.decided.preempts:
                self._reconsider()  # for its sake quota was freed
            self._serve_the_open()
        state = self.state
        for wait in (*self.offered.values(), *self.waits):
            state.forest.note_freed(wait.gates)  # their turn did not come: look there again
        self._notify_fresh()
        decided = self.decided
        grows = grow(state) if state.ledger.growing_alone or state.ledger.grew else ()
        reseats = decided.reseats()
        return Plan(
            admits=decided.admits(),
            preempts=tuple(decided.preempts),
            holds=tuple(decided.holds.values()),
            reseats=reseats,
            obtains=tuple(decided.obtains),
            grows=grows,
            shrinks=tuple(decided.shrinks),
            warnings=(*self.state.warnings.values(), *self.state.forest.warnings),
            unfinished=self._is_spent,
            wake_at=self.wake_at,
        )

    @property
    def _is_spent(self) -> bool:
        return self.judge.steps >= STEPS

    # What could have changed for which gangs

    def _reconsider(self) -> None:
        state = self.state
        helped = state.classes_helped(state.ledger.room.take_helped())
        for gang_class in helped if state.may_make_room else state.with_enough_nodes(helped):
            state.waiting.reconsider(gang_class)
        self.waits += state.quota_index.opened(state.forest.take_freed())
        if state.policy.strict or state.settings.head_hold:
            while self.waits:  # the gang at the front is looked at before all others
                self._offer(self.waits.pop())
        for gang_class in [
            gang_class for gang_class in state.watchers if gang_class.watches != state.watch(gang_class)
        ]:
            del state.watchers[gang_class]
            state.waiting.reconsider(gang_class)

    def _offer(self, wait: QuotaWait) -> GangClass | None:
        """Reconsider the first class that waits there, if its gates have room. The next follows once it was judged."""
        state = self.state
        gang_class = None if state.quota_index.wait_at_gate(wait) else state.quota_index.take_first(wait)
        if gang_class is not None:
            self.offered[gang_class] = wait
            state.waiting.reconsider(gang_class)
        return gang_class

    # Gangs for which others are being stopped, or nodes are on their way, come first: the room is theirs

    def _drop_claims(self) -> set[str]:
        """Claims on room are made again from the facts each time, in order; seats stay. Returns gangs that had one."""
        former = set(self.state.ledger.claimants)
        for uid in former:
            self.state.ledger.unclaim(uid)
        former.discard(self.state.reservation or "")
        return former

    def _serve_claimants(self, former: set[str]) -> None:
        state = self.state
        claimants = {uid for uid in (*state.victims, *state.pools.asked) if uid in state.waiting}
        for uid in sorted(claimants, key=lambda uid: self._rank(state.by_uid(uid))):
            gang = state.by_uid(uid)
            remaining = state.still_stopping(uid)
            state.open_brought(uid, True)
            outcome = self.judge.judge(gang, preempting=False)
            if isinstance(outcome, Blocked) and remaining:
                with state.ledger.without(remaining):
                    outcome = self.judge.judge(gang, preempting=False)
                if isinstance(outcome, Start):
                    self.decided.take_up(gang, outcome, remaining)
            elif isinstance(outcome, Start):
                self.decided.take_up(gang, outcome, remaining if state.forest.trees else set())
            elif uid in state.pools.asked:
                outcome = self.judge.judge(gang, preempting=False, asking=True)
                if isinstance(outcome, Wanting):
                    self.decided.await_nodes(gang, outcome)
            if uid in state.pools.asked:
                state.open_brought(uid, False)
        for uid in (former | claimants) - self.spoken_for:
            gang_class = state.waiting.class_of(uid)
            if gang_class is not None:  # it lost its claim: back to the line
                state.forest.take_out(uid)
                state.waiting.reconsider(gang_class)
                state.forest.version += 1

    # The front of the queue, where the policy gives it a privilege

    def _serve_the_front(self) -> bool:
        """Returns False when nothing may overtake the front."""
        state = self.state
        policy, hold = state.policy, state.settings.head_hold
        if policy.reserves:
            self._keep_room_for_the_front()
            return True
        if not policy.strict and not hold:
            return True
        while (gang := self._front()) is not None:
            gang_class = state.waiting.class_of(gang.uid)
            outcome = Blocked(()) if gang_class is None or gang_class.inadmissible else self._decide(gang)
            if isinstance(outcome, Start) and gang.uid not in self.spoken_for:
                continue
            until = state.first_held.setdefault(gang.uid, self.now) + hold
            if policy.strict or self.now < until:
                self.wake_at = 0 if policy.strict else until
                return False
            return True
        return True

    def _keep_room_for_the_front(self) -> None:
        state = self.state
        previous = state.reservation
        state.reservation = None
        while (gang := self._front()) is not None and not self._is_spent:
            outcome = self._judge(gang)
            if isinstance(outcome, Start):
                self.decided.take_up(gang, outcome)
                continue
            if isinstance(outcome, Wanting):
                self.decided.await_nodes(gang, outcome)
                continue
            self._block(gang, outcome)
            placement = self._where_it_will_be(gang, previous)
            if placement is not None:
                state.reservation, state.reserved_room = gang.uid, placement
                state.ledger.claim(gang, placement, leaving=state.reserved_after)
            self.spoken_for.add(gang.uid)
            self.front = gang
            break
        if state.reservation != previous:
            for gang_class in state.waiting.classes.values():
                state.waiting.reconsider(gang_class)

    def _ask_the_front_again(self) -> None:
        """Quota became free in this very cycle: the gang at the front now has the first say."""
        if self.front is not None:
            self.state.ledger.unclaim(self.front.uid)
            self.spoken_for.discard(self.front.uid)
            self.front = None
            self._keep_room_for_the_front()

    def _where_it_will_be(self, gang: Gang, previous: str | None) -> Placement | None:
        """Room to wait for: once chosen it stays, or it would never become free."""
        state = self.state
        if previous == gang.uid and state.reserved_room is not None:
            nodes = (node for nodes in state.reserved_room.pod_sets for node in nodes)
            if all((slot := state.ledger.room.by_name.get(node)) is not None and slot.fact for node in nodes):
                return state.reserved_room
        running = sorted(state.ledger.holders.values(), key=lambda other: (other.admitted_at, other.uid))
        release = smallest_release(gang, running, state.ledger)
        state.reserved_after = release.gangs if release is not None else ()
        return release.placement if release is not None else None

    def _front(self) -> Gang | None:
        """The first of all gangs that wait, whatever is known of its chances."""
        state = self.state
        best: tuple[Rank, Gang] | None = None
        for gang_class in state.waiting.classes.values():
            for line in gang_class.lanes.values():
                uid = next((uid for _, uid in line if uid not in self.spoken_for), None)
                if uid is None:
                    continue
                gang = state.by_uid(uid)
                rank = self._rank(gang)
                if best is None or rank < best[0]:
                    best = (rank, gang)
        return None if best is None else best[1]

    # The main line

    def _serve_the_open(self) -> None:
        """The best-ranked front of all open classes, again and again, until every class is empty or inadmissible."""
        state = self.state
        numbers, timeless = count(), getattr(state.policy, "timeless", False)
        heap: list[tuple[Rank, int, GangClass, Hashable, int]] = []
        waits: list[tuple[Rank, int, QuotaWait]] = []

        def push(gang_class: GangClass, lane: Hashable, position: int) -> None:
            line = gang_class.lanes.get(lane, ())
            while position < len(line) and line[position][1] in self.spoken_for:
                position += 1
            if position < len(line):
                rank = line[position][0] if timeless else self._rank(state.by_uid(line[position][1]))
                heapq.heappush(heap, (rank, next(numbers), gang_class, lane, position))

        def offer_later(wait: QuotaWait) -> None:
            """Its first class gets its chance at its turn: often others are faster, and it stays inadmissible."""
            rank = state.quota_index.first_rank(wait)
            if rank is not None:
                heapq.heappush(waits, (rank, next(numbers), wait))

        def go_on(gang_class: GangClass) -> None:
            """The next class that waits there gets its chance."""
            if gang_class in self.offered:
                offer_later(self.offered.pop(gang_class))

        for gang_class, lane in state.waiting.fronts():
            push(gang_class, lane, 0)
        for wait in self.waits:
            offer_later(wait)
        self.waits = []
        while (heap or waits) and not self._is_spent:
            if waits and (not heap or waits[0][0] < heap[0][0]):
                if (offered := self._offer(heapq.heappop(waits)[2])) is not None:
                    for its_lane in offered.lanes:
                        push(offered, its_lane, 0)
                continue
            rank, _, gang_class, lane, position = heapq.heappop(heap)
            line = gang_class.lanes.get(lane, ())
            if gang_class.inadmissible or position >= len(line):
                go_on(gang_class)
                continue
            if gang_class.explanation is not None and state.surely_unfit(gang_class):
                gang_class.stale, gang_class.reason = True, "resources"
                self._set_inadmissible(gang_class)
                go_on(gang_class)
                continue
            if gang_class in self.offered and state.quota_index.wait_at_gate(self.offered[gang_class]):
                del self.offered[gang_class]  # others were faster
                self._set_inadmissible(gang_class)
                continue
            gang = state.by_uid(line[position][1])
            if gang.uid in self.spoken_for or not (timeless or self._rank(gang) == rank):
                push(gang_class, lane, position)  # shares moved since it was ranked
                continue
            if self._stands_alone(gang, gang_class):
                state.enqueue(gang, personal=True)
                own = state.waiting.class_of(gang.uid)
                if own is not None:
                    push(own, state.policy.lane(gang), 0)
            else:
                outcome = self._judge(gang)
                if self._asks_those_ahead(outcome, rank):
                    for other, its_lane in state.waiting.fronts():
                        push(other, its_lane, 0)
                    continue
                self._carry_out(gang, outcome)
                if self._evicts(outcome):
                    self._ask_the_front_again()
                    self._reconsider()  # quota is free that was not: gangs that were refused may try again
                    for other, its_lane in state.waiting.fronts():
                        push(other, its_lane, 0)
            push(gang_class, lane, position)
            go_on(gang_class)
        self.waits += [wait for _, _, wait in waits]

    def _asks_those_ahead(self, outcome: Start | Wanting | Blocked, rank: Rank) -> bool:
        """Before an eviction: a gang that was refused ahead of this one, and since then others were admitted, is asked
        again. Where quota is short a gang can be pushed out, so what is taken can help, too; it must help in order.
        Takes the outcome back where there is a gang to ask."""
        state = self.state
        if not isinstance(outcome, Start) or outcome.cause == SURPLUS:
            return False
        if not outcome.victims or self._asked_again_at == state.holders_version:
            return False
        self._asked_again_at = state.holders_version
        ahead = [
            gang_class
            for gang_class in state.watchers
            if gang_class.watches != state.watch(gang_class) and self._is_ahead(gang_class, rank)
        ]
        if not ahead and self.front is None:
            return False
        if outcome.cause == "quota":
            state.forest.undo()
        self._ask_the_front_again()
        for gang_class in ahead:
            del state.watchers[gang_class]
            state.waiting.reconsider(gang_class)
        return True

    def _is_ahead(self, gang_class: GangClass, rank: Rank) -> bool:
        fronts = (
            next((uid for _, uid in line if uid not in self.spoken_for), "") for line in gang_class.lanes.values()
        )
        return any(uid and self._rank(self.state.by_uid(uid)) < rank for uid in fronts)

    def _evicts(self, outcome: Start | Wanting | Blocked) -> bool:
        return isinstance(outcome, Start) and bool(outcome.victims) and bool(self.state.forest.trees)

    def _stands_alone(self, gang: Gang, gang_class: GangClass) -> bool:
        """Do other pods' anti-affinity terms concern its labels? Then its class cannot be judged by it."""
        around = self.state.ledger.room.around
        if not around.closers or gang_class.signature.alone or gang_class.signature.company is not None:
            return False
        return self.decided.is_concerned(gang)

    def _decide(self, gang: Gang) -> Start | Wanting | Blocked:
        outcome = self._judge(gang)
        self._carry_out(gang, outcome)
        return outcome

    def _judge(self, gang: Gang) -> Start | Wanting | Blocked:
        return self.judge.judge(gang, preempting=self.state.settings.preemption, asking=True, shrinking=True)

    def _carry_out(self, gang: Gang, outcome: Start | Wanting | Blocked) -> None:
        if isinstance(outcome, Start):
            self.decided.take_up(gang, outcome)
        elif isinstance(outcome, Wanting):
            self.decided.await_nodes(gang, outcome)
        else:
            self._block(gang, outcome)

    # Gangs that are refused

    def _block(self, gang: Gang, blocked: Blocked) -> None:
        gang_class = self.state.waiting.class_of(gang.uid)
        if gang_class is not None and gang_class.reason == "quota" and not blocked.shortfalls:
            blocked = Blocked(_unfit(find_room(gang, self.state.ledger)))  # a new reason: quota said yes this time
        if gang_class is not None and gang_class.explanation is not None and not blocked.shortfalls:
            gang_class.stale = True  # the same verdict as before: reasons are worked out when a user asks
            self._set_inadmissible(gang_class)
            return
        explanation = explanation_of(blocked.shortfalls)
        reason: HoldReason = "quota" if blocked.by_quota else "resources"
        if gang_class is not None:
            gang_class.explanation, gang_class.reason, gang_class.stale = explanation, reason, False
            gang_class.refused_path = self.state.forest.refused_path if blocked.by_quota else ()
            self._set_inadmissible(gang_class)
        self.decided.hold(gang, reason, explanation)

    def _set_inadmissible(self, gang_class: GangClass) -> None:
        state = self.state
        front = next(state.waiting.members(gang_class), None) if gang_class.reason == "quota" else None
        if front is not None and state.index_by_quota(gang_class, state.by_uid(front)):
            state.watchers.pop(gang_class, None)
            state.set_inadmissible(gang_class)
            return
        gang_class.watches = state.watch(gang_class)
        if gang_class.watches:
            state.watchers[gang_class] = None
        state.set_inadmissible(gang_class)

    # Gangs of which nothing was said yet

    def _notify_fresh(self) -> None:
        state = self.state
        fresh, state.fresh = state.fresh, {}  # a dictionary that once held many stays slow to walk
        for uid in fresh:
            gang = state.by_uid(uid)
            gang_class = state.waiting.class_of(uid)
            if uid in state.problems:
                shortfall = Shortfall(kind="bad-fact", place=gang.key, message=state.problems[uid])
                explanation = Explanation(message=shortfall.message, shortfalls=(shortfall,), place=gang.key)
                self.decided.hold(gang, "bad-fact", explanation)
            elif gang_class is not None and gang_class.inadmissible and gang_class.explanation is not None:
                if gang_class.stale:
                    self._refresh(gang, gang_class)
                self.decided.hold(gang, gang_class.reason, gang_class.explanation)
            elif not self._is_spent:
                self.decided.hold(gang, "order", Explanation(message="waits behind others in the queue", place="queue"))
            else:
                state.fresh[uid] = None

    def _refresh(self, gang: Gang, gang_class: GangClass) -> None:
        """Refresh the numbers of a known verdict before a new gang is told of it."""
        found = find_room(gang, self.state.ledger)
        gang_class.stale = False
        if not isinstance(found, Placement):
            gang_class.explanation = explanation_of(found)

    def _rank(self, gang: Gang) -> Rank:
        return self.state.policy.rank(gang, self.state, self.now)


def _unfit(found: Placement | tuple[Shortfall, ...]) -> tuple[Shortfall, ...]:
    return () if isinstance(found, Placement) else found
