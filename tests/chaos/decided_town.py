"""A town of queues in which decisions take their time to be stored: the engine, what it decided, and what is stored.

The hands are a model of the queue controller's: one writer per gang, writes that get through, get lost, lose only their
answer or meet a newer revision; facts heard late. Pods of an admitted gang are bound where the plan had them, at once,
and gone when it is. `come_to_rest` lets all of that end; nothing is planned that no fact
asked for.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from shoal.controllers.planning.decisions import Decisions
from shoal.engine import Engine
from shoal.engine.kueue import ClusterQueue, Cohort, KueueSettings, LocalQueue, Terms, terms_of
from shoal.engine.model import Gang, Namespace, NodeFact, Plan, PodFact, Supply, key_of
from tests.unit.engine.kueue.random_world import random_facts, random_gang
from tests.unit.engine.kueue.world import CPU

replace = msgspec.structs.replace
SECOND = 1_000_000
MOST_ROUNDS = 400


class Town:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.settings = KueueSettings(fair_sharing=self.chance.random() < 0.4)
        self.now = SECOND
        self.facts: dict[str, Any] = {"namespace": Namespace(name="default")}
        self.supply: Supply = self.chance.choice(("off", "off", "fit"))
        if self.supply == "fit":  # then some have quota and wait for room
            for name in ("north", "south"):
                cpu = self.chance.randint(2, 12) * CPU
                self.facts[name] = NodeFact(name=name, allocatable={"cpu": cpu})
        for fact in random_facts(self.chance):
            self._note(fact)
        self.queues = [fact.name for fact in self.facts.values() if isinstance(fact, ClusterQueue)]
        self.stored: dict[str, tuple[int, Gang]] = {}
        """By key: revision and gang."""
        self.pods: dict[str, list[PodFact]] = {}
        """By key of their gang."""
        self.revision = 0
        self.number = 0
        self.number_of_pods = 0
        self.history: list[str] = []
        self.evictions: list[tuple[str, str]] = []
        self.start()

    def _note(self, fact: Any) -> None:
        self.facts[f"{type(fact).__name__}/{fact.name}"] = fact
        if isinstance(fact, ClusterQueue):
            local = LocalQueue(namespace="default", name=fact.name, cluster_queue=fact.name)
            self.facts.setdefault(f"LocalQueue/{fact.name}", local)

    # --- the controller

    def start(self) -> None:
        """A controller that knows nothing but what is stored."""
        self.engine = Engine(queues=self.settings)
        self.decisions = Decisions()
        self.cache: dict[str, tuple[int, Gang]] = {}
        self.unheard: set[str] = set()
        self.due: set[str] = set()
        self.in_doubt: set[str] = set()
        self.replan = True
        self.wake_at = 0
        for fact in self.facts.values():
            self.engine.update(fact)
        for pods in self.pods.values():
            for pod in pods:
                self.engine.update(pod)
        for key in self.stored:
            self.hear(key)

    def hear(self, key: str) -> None:
        """What is stored of a gang comes in."""
        self.unheard.discard(key)
        before = self.cache.pop(key, None)
        if key not in self.stored:
            if before is not None:
                self.decisions.forget(key, before[1].uid)
                self.engine.remove(key)
        else:
            self.cache[key] = self.stored[key]
            self.tell(key)
        self.due.add(key)
        self.replan = True

    def tell(self, key: str) -> None:
        gang = self.cache[key][1]
        self.decisions.settle(gang)
        self.engine.update(self.decisions.assumed(gang))
        self.replan = True

    def plan(self) -> Plan:
        self.replan = False
        plan = self.engine.plan(self.now)
        assert not plan.warnings, plan.warnings
        self.evictions += [(one.preemptor, one.gang) for one in plan.preempts]
        both = {one.uid for one in plan.reservations} & {one.uid for one in plan.preempts}
        assert not both, f"one plan gives {both} quota and takes it back"
        self.due.update(self.decisions.planned(plan, self.now))
        self.replan = self.replan or plan.unfinished
        self.wake_at = plan.wake_at or self.wake_at
        return plan

    def write(self, key: str, fate: str = "done") -> None:
        """One look of the writer at one gang."""
        self.due.discard(key)
        if key not in self.cache:
            return
        revision, seen = self.cache[key]
        if self.decisions.is_overtaken(key, seen.uid) and seen.state == "waiting" and seen.uid not in self.in_doubt:
            self.decisions.withdraw(key)
            self.tell(key)
        wanted = self._wanted(seen)
        if wanted == seen:
            return
        current = self.stored.get(key, (0, None))[0]
        if fate == "lost" or current != revision:
            if current == revision:
                self.in_doubt.add(seen.uid)
            self.due.add(key)
            return
        self._store(wanted)
        if wanted.state == "admitted" != seen.state:
            self._bind(wanted)
        if fate == "unanswered":
            self.in_doubt.add(seen.uid)
            self.due.add(key)
        else:
            self.in_doubt.discard(seen.uid)
            self.hear(key)

    def _wanted(self, gang: Gang) -> Gang:
        key, uid = gang.key, gang.uid
        preempt = self.decisions.preempt(key, uid)
        if preempt is not None and gang.state == "admitted":
            return replace(gang, state="stopping", stopping_for=preempt.preemptor_uid)
        if preempt is not None and gang.state == "reserved":
            return waiting_again(gang, preempt.preemptor_uid, self.now)
        reservation = self.decisions.reservation(key, uid)
        if reservation is not None and gang.state == "waiting":
            terms = Terms(cluster_queue=reservation.queue)
            gang = replace(
                gang,
                state="reserved",
                assignment=reservation.assignment,
                stopping_for="",
                admitted_at=self.now,
                details={"kueue": terms},
            )
        if gang.state == "reserved" and self.decisions.admit(key, uid) is not None:
            gang = replace(gang, state="admitted")
        return gang

    def _bind(self, gang: Gang) -> None:
        decided = self.decisions.admit(gang.key, gang.uid)
        assert decided is not None
        made = self.pods[gang.key] = []
        for pod_set, given in zip(gang.pod_sets, decided.assignment, strict=True):
            for node, count in given.nodes.items():
                for _ in range(count):
                    self.number_of_pods += 1
                    uid = f"pod-{self.number_of_pods}"
                    pod = PodFact(uid=uid, node=node, requests=pod_set.requests, gang=gang.uid, pod_set=pod_set.name)
                    made.append(pod)
                    self.engine.update(pod)

    def _unbind(self, key: str) -> None:
        for pod in self.pods.pop(key, ()):
            self.engine.remove(key_of(pod))
            self.replan = True

    def _store(self, gang: Gang) -> None:
        self.revision += 1
        self.stored[gang.key] = (self.revision, gang)
        self.unheard.add(gang.key)

    # --- what happens outside

    def deed(self) -> None:
        chance, keys = self.chance, sorted(self.stored)
        running = [key for key in keys if self.stored[key][1].state == "admitted"]
        waiting = [key for key in keys if self.stored[key][1].state == "waiting"]
        match chance.randrange(12):
            case 0 | 1 | 2 | 3:
                self.number += 1
                self._say("create", self._new())
            case 4 | 5 if running:
                self._remove(chance.choice(running))
            case 6 if keys:
                self._remove(chance.choice(keys))
            case 7 if keys and chance.random() < 0.3:
                gang = self.stored[chance.choice(keys)][1]
                self._say("checks", replace(gang, checks_done=True))
            case 7 if keys:
                gang = self.stored[chance.choice(keys)][1]
                self._say("priority", replace(gang, priority=chance.choice((0, 10, 100))))
            case 8 if waiting:
                gang = self.stored[chance.choice(waiting)][1]
                sizes = random_gang(chance, 0, self.queues).pod_sets
                self._say("resize", replace(gang, pod_sets=sizes))
            case 9 if waiting:
                gang = self.stored[chance.choice(waiting)][1]
                if chance.random() < 0.5:
                    terms = replace(terms_of(gang), requeue_at=self.now + chance.randint(0, 30) * SECOND)
                    self._say("later", replace(gang, details={"kueue": terms}))
                else:
                    self._say("move", replace(gang, queue=chance.choice(self.queues)))
            case 10:
                changed = [fact for fact in random_facts(chance) if isinstance(fact, (ClusterQueue, Cohort))]
                fact = chance.choice([one for one in changed if f"{type(one).__name__}/{one.name}" in self.facts])
                self._note(fact)
                self.history.append(f"edit {fact}")
                self.engine.update(fact)
                self.replan = True
            case 11 if chance.random() < 0.15:
                self.history.append("restart")
                self.start()

    def _new(self) -> Gang:
        gang = random_gang(self.chance, self.number, self.queues)
        return replace(gang, created_at=self.now, supply=self.supply, checks_done=self.chance.random() < 0.8)

    def _say(self, what: str, gang: Gang) -> None:
        self.history.append(f"{what} {gang.name}: {gang.queue} {gang.priority} {gang.pod_sets}")
        self._store(gang)

    def _remove(self, key: str) -> None:
        self.history.append(f"remove {key}")
        del self.stored[key]
        self._unbind(key)
        self.unheard.add(key)

    def stop(self, key: str) -> None:
        """The pods of a gang that was told to leave are gone."""
        gang = self.stored[key][1]
        self._unbind(key)
        self._store(waiting_again(gang, gang.stopping_for, self.now))

    def stopping(self) -> list[str]:
        return sorted(key for key, (_, gang) in self.stored.items() if gang.state == "stopping")

    # --- time goes by

    def step(self) -> None:
        chance = self.chance
        self.now += SECOND
        self._wake()
        match chance.randrange(6):
            case 0 | 1:
                self.deed()
            case 2 if self.unheard:
                self.hear(chance.choice(sorted(self.unheard)))
            case 3 if self.replan:
                self.plan()
            case 4 if self.due:
                self.write(chance.choice(sorted(self.due)), chance.choice(("done", "done", "lost", "unanswered")))
            case 5 if self.stopping():
                self.stop(chance.choice(self.stopping()))

    def _wake(self) -> None:
        """The moment has come that the last plan named."""
        if self.wake_at and self.wake_at <= self.now:
            self.wake_at, self.replan = 0, True

    def come_to_rest(self) -> None:
        for _ in range(MOST_ROUNDS):
            self.now += SECOND
            self._wake()
            moved = bool(self.unheard or self.due or self.replan or self.stopping())
            for key in sorted(self.unheard):
                self.hear(key)
            for key in sorted(self.due):
                self.write(key)
            for key in self.stopping():
                self.stop(key)
            if self.replan:
                self.plan()
            if not moved:
                if not self.wake_at:
                    return
                self.now = self.wake_at
        raise AssertionError(f"no rest: {self.evictions[-6:]}")


def waiting_again(gang: Gang, preemptor: str, now: int) -> Gang:
    terms = Terms(evicted_at=now, evicted_reason="Preempted")
    return replace(
        gang, state="waiting", admitted_at=0, assignment=(), stopping_for=preemptor, details={"kueue": terms}
    )
