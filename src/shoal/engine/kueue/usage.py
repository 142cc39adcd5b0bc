"""Usage of LocalQueues (and of users within one) that fades with time: who had much lately comes later.

Kept by the queues' state where `admissionFairSharing` is configured; asked by the line of a ClusterQueue whose
`admissionScope` says so. What runs is folded in at every sampling interval, an older sample counts half after each
half-life. Between a reservation and the admission a penalty stands in, so that one queue does not get everything before
its first sample. Time is given; what is needed after a restart is told with the LocalQueue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import WHOLE_WEIGHT, ConsumedUsage, LocalQueue, LocalQueueUsage, Usage, UsageSharing
from shoal.engine.model import Gang

Lane = tuple[str, str, str]
"""Namespace, LocalQueue and user; no user: all of the queue."""
Rank = tuple[float, float]
"""Usage of the LocalQueue and of the user in it, by weight: the lower goes first."""
LAST: float = float("inf")
NOTHING = 1e-4
"""Less than what statuses can show: it has faded away."""


class _Consumed(msgspec.Struct):
    """What one lane has had. Amounts are in the engine's units and fractions of them."""

    amounts: dict[str, float]
    at: int | None = None
    """When it was last sampled; None: not yet."""
    penalties: dict[str, dict[str, float]] = {}
    """By UID of a gang that has quota and is not admitted yet."""


class UsageLedger:
    def __init__(self, settings: UsageSharing, local_queues: Mapping[tuple[str, str], LocalQueue]) -> None:
        """`local_queues` is the live mapping of the register."""
        self.settings = settings
        self._local_queues = local_queues
        self._lanes: dict[Lane, _Consumed] = {}
        self._charged: dict[str, tuple[Lane, ...]] = {}
        """UID of a gang with a penalty to where it is counted."""
        self._next: int | None = None
        """When the next sample is due; None: there is nothing to sample."""
        self._changed: set[tuple[str, str]] = set()
        self._ranks: dict[Lane, Rank] = {}
        """Worked out since usage changed last: lines are ranked in every cycle."""

    # Facts.

    def update_queue(self, fact: LocalQueue) -> None:
        """What was stored counts for a queue of which nothing is known yet; later on this ledger knows better."""
        whole = (fact.namespace, fact.name, "")
        self._ranks.clear()
        if fact.consumed is None:
            self._consumed(whole)
        if fact.consumed is None or self._consumed(whole).at is not None:
            return
        self._lanes[whole] = _Consumed(dict(fact.consumed.amounts), fact.consumed.at, {})
        for user, amounts in fact.consumed.users.items():
            self._lanes[fact.namespace, fact.name, user] = _Consumed(dict(amounts), fact.consumed.at, {})

    def remove_queue(self, namespace: str, name: str) -> None:
        self._ranks.clear()
        for lane in [one for one in self._lanes if one[:2] == (namespace, name)]:
            for uid in self._lanes.pop(lane).penalties:
                self._charged.pop(uid, None)

    def reserved(self, member: QueueMember) -> None:
        """It has quota, and is not admitted yet."""
        if member.uid in self._charged:
            return
        rate = _rate(self.settings.sampling, self.settings.half_life)
        penalty = {name: amount * rate for name, amount in by_resource(member.usage).items()}
        lanes = self._charged[member.uid] = self._lanes_of(member.gang, member.terms.user)
        for lane in lanes:
            self._consumed(lane).penalties[member.uid] = penalty
        self._forget_ranks(lanes)

    def admitted(self, uid: str) -> None:
        """The penalty stays: it becomes part of what was consumed."""
        lanes = self._charged.pop(uid, ())
        self._forget_ranks(lanes)
        for lane in lanes:
            consumed = self._lanes[lane]
            self._changed.add(lane[:2])
            for name, amount in consumed.penalties.pop(uid).items():
                consumed.amounts[name] = consumed.amounts.get(name, 0.0) + amount

    def left(self, uid: str) -> None:
        """It gave its quota back before it was admitted: nothing is held against it."""
        lanes = self._charged.pop(uid, ())
        self._forget_ranks(lanes)
        for lane in lanes:
            self._lanes[lane].penalties.pop(uid, None)

    # Time.

    def sample(self, now: int, running: Iterable[QueueMember]) -> bool:
        """Fold in what runs, where a sampling interval has passed. True when any usage has changed."""
        self._ranks.clear()
        latest = now - self.settings.sampling
        due = {lane: one for lane, one in self._lanes.items() if one.at is None or not latest < one.at <= now}
        use: dict[Lane, dict[str, int]] = {}
        for member in running:
            if member.gang.state not in ("admitted", "stopping"):
                continue
            for lane in self._lanes_of(member.gang, member.terms.user):
                if lane in due:
                    into = use.setdefault(lane, {})
                    for name, amount in by_resource(member.usage).items():
                        into[name] = into.get(name, 0) + amount
        changed = False
        for lane, consumed in due.items():
            if consumed.at is None or consumed.amounts or lane in use:
                self._changed.add(lane[:2])
            if consumed.at is not None:
                before = dict(consumed.amounts)
                fold(consumed.amounts, use.get(lane, {}), _rate(now - consumed.at, self.settings.half_life))
                changed = changed or before != consumed.amounts
            consumed.at = now
            if lane[2] and not consumed.amounts and not consumed.penalties:
                del self._lanes[lane]  # a user who had nothing for long
        self._next = self._after_last_sample()
        return changed

    def _after_last_sample(self) -> int | None:
        """None once the last LocalQueue is gone."""
        sampled = [one.at or 0 for one in self._lanes.values()]
        return min(sampled) + self.settings.sampling if sampled else None

    def is_due(self, now: int) -> bool:
        return self._next is not None and self._next <= now

    def next_sample(self) -> int | None:
        """When the next sample is due; None: there is nothing to sample."""
        return self._next or None

    # Answers.

    def lane(self, member: QueueMember) -> Lane:
        return (member.gang.namespace, member.gang.queue, member.terms.user if self.settings.per_user else "")

    def rank(self, lane: Lane) -> Rank:
        known = self._ranks.get(lane)
        if known is None:
            known = self._ranks[lane] = self._ranked(lane)
        return known

    def _ranked(self, lane: Lane) -> Rank:
        namespace, name, user = lane
        local = self._local_queues.get((namespace, name))
        weight = local.weight if local is not None else WHOLE_WEIGHT
        return (
            self._weighed((namespace, name, ""), weight),
            self._weighed(lane, WHOLE_WEIGHT) if user or self.settings.per_user else 0.0,
        )

    def view(self, namespace: str, name: str) -> LocalQueueUsage | None:
        """What is known of one LocalQueue; None: nothing yet."""
        whole = self._lanes.get((namespace, name, ""))
        if whole is None or whole.at is None:
            return None
        users = {lane[2]: one for lane, one in self._lanes.items() if lane[:2] == (namespace, name) and lane[2]}
        return LocalQueueUsage(
            consumed=ConsumedUsage(
                amounts=dict(whole.amounts), at=whole.at, users={user: dict(one.amounts) for user, one in users.items()}
            ),
            share=self.rank((namespace, name, ""))[0],
            user_shares={user: self._weighed((namespace, name, user), WHOLE_WEIGHT) for user in users},
        )

    def take_changed(self) -> set[tuple[str, str]]:
        """Namespace and name of the LocalQueues whose figures are others since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _forget_ranks(self, lanes: Iterable[Lane]) -> None:
        """The usage of these has changed; that of a whole queue is part of the rank of each of its users."""
        for namespace, name, _ in lanes:
            if self.settings.per_user:
                for lane in [one for one in self._ranks if one[:2] == (namespace, name)]:
                    del self._ranks[lane]
            else:
                self._ranks.pop((namespace, name, ""), None)

    def _weighed(self, lane: Lane, weight: int) -> float:
        if weight <= 0:
            return LAST
        consumed = self._lanes.get(lane)
        if consumed is None:
            return 0.0
        weights = self.settings.weights
        total = 0.0
        for amounts in (consumed.amounts, *consumed.penalties.values()):
            for name, amount in amounts.items():
                total += weights.get(name, 1.0) * (amount / 1000 if name == "cpu" else amount)
        return total * WHOLE_WEIGHT / weight

    def _lanes_of(self, gang: Gang, user: str) -> tuple[Lane, ...]:
        whole = (gang.namespace, gang.queue, "")
        return (whole, (gang.namespace, gang.queue, user)) if user and self.settings.per_user else (whole,)

    def _consumed(self, lane: Lane) -> _Consumed:
        found = self._lanes.get(lane)
        if found is None:
            found = self._lanes[lane] = _Consumed({}, None, {})
            self._next = 0
        return found


def _rate(elapsed: int, half_life: int) -> float:
    """How much of a sample after `elapsed` counts, against all before it. Without a half-life nothing is counted."""
    return 1.0 - 0.5 ** (max(0, elapsed) / half_life) if half_life > 0 else 0.0


def fold(amounts: dict[str, float], running: Mapping[str, int], rate: float) -> None:
    for name in amounts.keys() | running.keys():
        amounts[name] = amounts.get(name, 0.0) * (1.0 - rate) + running.get(name, 0) * rate
        if amounts[name] < NOTHING:
            del amounts[name]


def by_resource(usage: Usage) -> dict[str, int]:
    found: dict[str, int] = {}
    for at, amount in usage.items():
        found[at.resource] = found.get(at.resource, 0) + amount
    return found
