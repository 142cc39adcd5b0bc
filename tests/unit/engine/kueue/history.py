"""Random histories of queues as a controller sees them: decisions are stored late, twice, unseen or not at all.

Gangs come, end, are deleted, edited and wait for a while; quota changes; victims leave one by one. Everything follows
from the seed, whatever the ledger decides, so that two ledgers can be led through the same history.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from shoal.engine.kueue import (
    ClusterQueue,
    Cohort,
    Evict,
    Flavor,
    Kueue,
    KueueSettings,
    LocalQueue,
    Preemption,
    QueueDecisions,
    Reserve,
    Terms,
    UsageSharing,
)
from shoal.engine.kueue.index.plain import PlainHeads
from shoal.engine.model import Gang, Namespace
from tests.unit.engine.kueue.wide_world import queues_of, wide_facts, wide_gang
from tests.unit.engine.kueue.world import cohort, gang, queue

replace = msgspec.structs.replace
DEEDS = ("submit",) * 4 + ("end",) * 2 + ("plan", "store") * 3 + ("delete", "edit", "quota", "sleep", "unseen")


def reclaiming_queues(dice: random.Random) -> list[Any]:
    """Three queues in a tree of cohorts that reclaim and preempt by different rules; one owns nothing."""
    return [
        cohort("roof"),
        cohort("left", "roof"),
        cohort("right", "roof"),
        queue("a", dice.randint(1, 5), "left", reclaim="Any", within="LowerPriority"),
        queue("b", dice.randint(1, 5), "right", reclaim="LowerPriority", within="LowerOrNewerEqualPriority"),
        queue("c", 0, "right", reclaim="Any", borrow="LowerPriority"),
    ]


class History:
    """`peaceful`: no gang may be evicted. `sharing`: queues have two local queues each, which share by usage."""

    def __init__(self, seed: int, *, peaceful: bool = False, sharing: UsageSharing | None = None, **how: Any) -> None:
        self.dice = dice = random.Random(seed)
        self.wide = dice.random() < 0.4
        self.kueue = Kueue(KueueSettings(fair_sharing=dice.random() < 0.4, usage_sharing=sharing), **how)
        self.sharing = sharing
        self.facts = wide_facts(dice) if self.wide else reclaiming_queues(dice)
        if peaceful:
            self.facts = [
                replace(one, preemption=Preemption()) if isinstance(one, ClusterQueue) else one for one in self.facts
            ]
        if sharing is not None:
            self.facts = [replace(one, by_usage=True) if isinstance(one, ClusterQueue) else one for one in self.facts]
        self.gangs: dict[str, Gang] = {}
        """As they are stored."""
        self.decided: dict[str, Reserve | Evict] = {}
        """By key: what is not stored yet."""
        self.now = 1_000_000
        self.number = 0
        for fact in (Namespace(name="default"), Flavor(name="default"), *self.facts):
            self.kueue.update(fact)
            if isinstance(fact, ClusterQueue):
                for name in (fact.name, f"{fact.name}-2"):
                    self.kueue.update(LocalQueue(namespace="default", name=name, cluster_queue=fact.name))

    def step(self) -> str:
        """Do something; returns what."""
        self.now += self.dice.randint(1, 2_000_000)
        deed, pick = self.dice.choice(DEEDS), self.dice.random()
        getattr(self, f"_{deed}")(pick, random.Random(self.dice.random()))
        return deed

    def _pick(self, pick: float, *states: str) -> Gang | None:
        found = sorted(key for key, one in self.gangs.items() if one.state in states)
        return self.gangs[found[int(pick * len(found))]] if found else None

    # What users do

    def _submit(self, pick: float, dice: random.Random) -> None:
        if len(self.gangs) > 15:
            return
        self.number += 1
        if self.wide:
            made = wide_gang(dice, self.number, queues_of(self.facts))
        else:
            priority = dice.choice((0, 0, 1, 5))
            made = gang(f"g{self.number}", dice.choice("abc"), count=dice.randint(1, 3), priority=priority)
        if self.sharing is not None and dice.random() < 0.5:
            made = replace(made, queue=f"{made.queue}-2")
        self._update(replace(made, created_at=self.now, queued_at=self.now))

    def _end(self, pick: float, dice: random.Random) -> None:
        one = self._pick(pick, "admitted")
        if one is not None:
            self._forget(one)
            self.kueue.update(replace(one, state="finished"))

    def _delete(self, pick: float, dice: random.Random) -> None:
        one = self._pick(pick, "waiting", "admitted", "stopping")
        if one is not None:
            self._forget(one)
            self.kueue.remove(one)

    def _edit(self, pick: float, dice: random.Random) -> None:
        one = self._pick(pick, "waiting")
        if one is not None:
            self.decided.pop(one.key, None)
            self._update(replace(one, priority=dice.choice((0, 1, 5, 9))))

    def _sleep(self, pick: float, dice: random.Random) -> None:
        one = self._pick(pick, "waiting")
        if one is not None:
            self.decided.pop(one.key, None)
            self._update(replace(one, details={"kueue": Terms(requeue_at=self.now + dice.randint(1, 5_000_000))}))

    def _quota(self, pick: float, dice: random.Random) -> None:
        index = int(pick * len(self.facts))
        fact = self.facts[index]
        if not isinstance(fact, (ClusterQueue, Cohort)) or not fact.groups:
            return
        groups = []
        for group in fact.groups:
            flavors = []
            for flavor in group.flavors:
                limits = {
                    name: replace(
                        one, nominal=max(0, one.nominal + dice.choice((-1, 1)) * (1000 if name == "cpu" else 1))
                    )
                    for name, one in flavor.limits.items()
                }
                flavors.append(replace(flavor, limits=limits))
            groups.append(replace(group, flavors=tuple(flavors)))
        self.facts[index] = replace(fact, groups=tuple(groups))
        self.kueue.update(self.facts[index])

    # What the controller does

    def plan(self) -> QueueDecisions:
        self.now += 1_000
        decisions = self.kueue.plan(self.now)
        assert not decisions.warnings, decisions.warnings
        for one in (*decisions.reserved, *decisions.evicted):
            self.decided[one.gang] = one
        return decisions

    def _plan(self, pick: float, dice: random.Random) -> None:
        self.plan()

    def _store(self, pick: float, dice: random.Random) -> None:
        """The next write of one gang gets through, and its facts are told."""
        moving = sorted(self.decided.keys() | {key for key, one in self.gangs.items() if one.state == "stopping"})
        if moving:
            self.store(moving[int(pick * len(moving))])

    def store(self, key: str) -> None:
        one, decided = self.gangs[key], self.decided.pop(key, None)
        if isinstance(decided, Reserve) and one.state == "waiting":
            self._update(self._admitted(one, decided))
        elif isinstance(decided, Evict) and one.state == "admitted":
            self._update(replace(one, state="stopping", stopping_for=decided.preemptor_uid))
        elif isinstance(decided, Evict):
            self._update(one)  # it was given quota and told to leave, and neither is stored: it waits on
        elif one.state == "stopping":
            terms = Terms(evicted_at=self.now, evicted_reason="Preempted")
            self._update(
                replace(one, state="waiting", admitted_at=0, assignment=(), stopping_for="", details={"kueue": terms})
            )

    def _unseen(self, pick: float, dice: random.Random) -> None:
        """A reservation is written, no answer comes, it counts as lost; and then it shows."""
        found = sorted(key for key, one in self.decided.items() if isinstance(one, Reserve))
        if not found:
            return
        key = found[int(pick * len(found))]
        one, decided = self.gangs[key], self.decided.pop(key)
        if isinstance(decided, Reserve) and one.state == "waiting":
            self.kueue.update(one)
            self.plan()
            self.decided.pop(key, None)
            self._update(self._admitted(one, decided))

    def _admitted(self, one: Gang, decided: Reserve) -> Gang:
        terms = Terms(cluster_queue=decided.cluster_queue)
        return replace(
            one, state="admitted", admitted_at=self.now, assignment=decided.assignment, details={"kueue": terms}
        )

    def _update(self, one: Gang) -> None:
        self.gangs[one.key] = one
        self.kueue.update(one)

    def _forget(self, one: Gang) -> None:
        del self.gangs[one.key]
        self.decided.pop(one.key, None)

    # Rest

    def calm(self) -> bool:
        """Plan and store until nothing moves; False when it never comes to rest."""
        self.now += 10_000_000  # every back-off has ended
        for _ in range(200):
            self.plan()
            moving = sorted(self.decided.keys() | {key for key, one in self.gangs.items() if one.state == "stopping"})
            if not moving:
                return True
            for key in moving:
                self.store(key)
        return False

    def next_by_plain(self) -> list[str]:
        """Gangs that the plain way would serve now. Not where others are leaving: what becomes of that is decided when
        they are gone. Beside the head of a strict queue others may have to wait."""
        state = self.kueue.state
        plain, found = PlainHeads(state), []
        for record in state.records.values():
            tree = [other for node in record.node.root().queues() if (other := state.records.get(node.name))]
            leaving = any(member.evicted for other in tree for member in other.reserved.values())
            behind = any(other is not record and other.waiting.strict and len(other.waiting) for other in tree)
            member = None if leaving or behind else plain.next_of(record)
            if member is not None:
                found.append(member.key)
        return found
