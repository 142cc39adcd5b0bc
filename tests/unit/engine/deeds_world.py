"""Random worlds of both dialects in which things are done: gangs end, quota grows, nodes come.

A world is made again from its seed for every deed, so that each is done to an engine that never heard of the others.
It stores plans, runs pods and lets victims leave by itself; it shares no code with what the engine tries out.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from shoal.engine import Engine, EngineSettings
from shoal.engine.kueue import (
    ClusterQueue,
    Cohort,
    Flavor,
    FlavorQuota,
    Fungibility,
    Limits,
    LocalQueue,
    Preemption,
    ResourceGroup,
    Terms,
)
from shoal.engine.kueue import KueueSettings as QueueSettings
from shoal.engine.model import Gang, HostPort, Namespace, NodeFact, Plan, PodFact, PodSet, QuotaNode, QuotaSubtree

from .build import SECOND
from .kueue.wide_world import UNIT, wide_facts
from .world import apart_from

POLICIES = ("fifo", "priority", "priority", "strict-priority", "priority-slope", "fair-share", "backfill", "backfill")
NAMESPACES = ("red", "blue")
replace = msgspec.structs.replace


class DeedsWorld:
    """`dialect` is mcad, kueue or both; everything else follows from the seed."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.dialect = dice.choice(("mcad", "kueue", "kueue", "both"))
        self.settings = EngineSettings(
            policy=dice.choice(POLICIES),
            preemption=dice.random() < 0.5,
            quota=self.dialect != "kueue" and dice.random() < 0.6,
            minimal_victims=dice.random() < 0.3,
        )
        self.engine = Engine(
            self.settings,
            QueueSettings(fair_sharing=dice.random() < 0.4, partial_admission=dice.random() < 0.7),
        )
        self.now = 1_000 * SECOND
        self.number = 0
        self.gangs: dict[str, Gang] = {}
        self.pods: dict[str, PodFact] = {}
        self.queue_facts: list[Any] = []
        self.subtrees: list[QuotaSubtree] = []
        self.room = self.dialect != "kueue" or dice.random() < 0.5
        """Whether nodes matter to gangs of queues."""
        for name in NAMESPACES:
            self.engine.update(Namespace(name=name))
        self._make_nodes()
        self._make_quota()
        for _ in range(dice.randint(6, 24)):
            self._step()
        if dice.random() < 0.8:
            self.settle()
        else:
            self.plan()

    # Making it

    def _make_nodes(self) -> None:
        for number in range(self.dice.randint(1, 4) if self.room else 0):
            self.add_node(f"n{number}", self._node_amounts(), {"zone": self.dice.choice("ab")})

    def _node_amounts(self) -> dict[str, int]:
        dice = self.dice
        amounts = {"cpu": dice.randint(3, 10) * 1000, "memory": dice.randint(3, 12)}
        return amounts | ({"gpu": dice.randint(1, 8)} if dice.random() < 0.7 else {})

    def _make_quota(self) -> None:
        dice = self.dice
        if self.settings.quota:
            for tree in ("team", "site")[: dice.choice((1, 1, 2))]:
                root = QuotaSubtree(key=f"default/{tree}", tree=tree, nodes=(self._quota("root", 16),))
                leaves = tuple(self._quota(name, 6, hard=dice.random() < 0.4) for name in ("a", "b", "default"))
                below = QuotaSubtree(key=f"default/{tree}-below", tree=tree, parent="root", nodes=leaves)
                self.subtrees += [root, below]
            for fact in self.subtrees:
                self.engine.update(fact)
        if self.dialect != "mcad":
            self.queue_facts = wide_facts(dice) if dice.random() < 0.3 else self._roomy_queues()
            for fact in self.queue_facts:
                self.engine.update(fact)
                for namespace in NAMESPACES if isinstance(fact, ClusterQueue) else ():
                    self.engine.update(LocalQueue(namespace=namespace, name=fact.name, cluster_queue=fact.name))
            self.checked = {fact.name for fact in self.cluster_queues if dice.random() < 0.15}

    def _roomy_queues(self) -> list[Any]:
        """Queues with quota for a few gangs each, so that many run when somebody asks."""
        dice = self.dice
        facts: list[Any] = [Flavor(name="f1"), Flavor(name="f2")]
        cohorts = ["", "c0", "c0", "c1"][: dice.randint(1, 4)]
        facts += [Cohort(name="c0"), Cohort(name="c1", parent=dice.choice(("", "c0")))]
        for number in range(dice.randint(1, 3)):
            home = dice.choice(cohorts)
            flavors = tuple(
                FlavorQuota(name, {each: self._limits(unit, home) for each, unit in UNIT.items()})
                for name in ("f1", "f2")[: dice.randint(1, 2)]
            )
            reclaim = dice.choice(("Never", "LowerPriority", "Any"))
            facts.append(
                ClusterQueue(
                    name=f"q{number}",
                    cohort=home,
                    groups=(ResourceGroup(tuple(UNIT), flavors),),
                    strategy=dice.choice(("StrictFIFO", "BestEffortFIFO", "BestEffortFIFO")),
                    namespace_selector={},
                    fungibility=Fungibility(dice.random() < 0.5, dice.random() < 0.5),
                    preemption=Preemption(
                        reclaim_within_cohort=reclaim,
                        within_cluster_queue=dice.choice(("Never", "Never", "LowerPriority")),
                        borrow_within_cohort="Never" if reclaim == "Never" else dice.choice(("Never", "LowerPriority")),
                    ),
                    weight=dice.choice((10**9, 10**9, 3 * 10**9)),
                )
            )
        return facts

    def _limits(self, unit: int, home: str) -> Limits:
        dice = self.dice
        most = dice.randint(0, 6) * unit if home and dice.random() < 0.25 else None
        return Limits(dice.randint(2, 12) * unit, most, None if most is None else dice.choice((None, most)))

    @property
    def cluster_queues(self) -> list[ClusterQueue]:
        return [fact for fact in self.queue_facts if isinstance(fact, ClusterQueue)]

    def _quota(self, name: str, most: int, hard: bool = False) -> QuotaNode:
        dice = self.dice
        amounts = {"cpu": dice.randint(1, most) * 1000, "memory": dice.randint(2, 2 * most), "gpu": dice.randint(1, 8)}
        return QuotaNode(name=name, quota=amounts, hard=hard)

    def _step(self) -> None:
        action = self.dice.choice(["submit"] * 6 + ["plan"] * 3 + ["pods"] * 2 + ["finish"])
        match action:
            case "submit":
                self.submit()
            case "pods":
                self._run_pods()
            case "finish":
                running = sorted(key for key, gang in self.gangs.items() if gang.state == "admitted")
                if running:
                    self.end(self.dice.choice(running))
            case _:
                self.plan()

    def submit(self) -> None:
        dice = self.dice
        self.number += 1
        name, namespace = f"g{self.number:02}", dice.choice(NAMESPACES)
        queued = self.dialect == "kueue" or (self.dialect == "both" and dice.random() < 0.5)
        queue = dice.choice(self.cluster_queues).name if queued else ""
        made = Gang(
            key=f"{'Workload' if queued else 'AppWrapper'}/{namespace}/{name}",
            uid=f"uid-{name}",
            namespace=namespace,
            name=name,
            dialect="kueue" if queued else "mcad",
            queue=queue,
            priority=dice.choice((0, 0, 0, 5, 10)),
            priority_slope=dice.choice((0.0, 0.1)),
            created_at=self.now,
            queued_at=self.now,
            pod_sets=tuple(self._pod_set(f"s{index}", queued) for index in range(dice.choice((1, 1, 2)))),
            labels={} if queued else {tree: dice.choice(("a", "b", "default")) for tree in ("team", "site")},
            supply=("fit" if self.room else "off") if queued else dice.choice(("fit",) * 5 + ("aggregate",)),
            preemptable=dice.random() < 0.9,
            checks_done=not queued or queue not in self.checked,
        )
        self.tell(made)

    def _pod_set(self, name: str, queued: bool) -> PodSet:
        dice = self.dice
        odds = {"cpu": 0.9, "memory": 0.25, "gpu": 0.2}
        asked = {each: dice.randint(1, 3) * unit for each, unit in UNIT.items() if dice.random() < odds[each]}
        count = dice.choice((1, 1, 1, 2, 3))
        labels = {"app": dice.choice("xy")}
        return PodSet(
            name=name,
            count=count,
            min_count=1 if queued and count > 1 and dice.random() < 0.2 else None,
            requests=asked or {"cpu": 1000},
            labels=labels,
            affinity=apart_from(labels) if dice.random() < 0.07 else {},
            host_ports=(HostPort(80),) if dice.random() < 0.05 else (),
            node_selector={"zone": dice.choice("ab")} if dice.random() < 0.15 else {},
        )

    def _run_pods(self) -> None:
        """Pods of one gang that was started come up where they were planned."""
        started = [gang for gang in self.gangs.values() if gang.state == "admitted" and not self._pods_of(gang)]
        if not started:
            return
        gang = self.dice.choice(started)
        for pod_set, given in zip(gang.pod_sets, gang.assignment, strict=True):
            for where, count in sorted(given.nodes.items()):
                for _ in range(count):
                    self.number += 1
                    fact = PodFact(
                        uid=f"p{self.number}", namespace=gang.namespace, name=f"p{self.number}", node=where,
                        requests=pod_set.requests, labels=pod_set.labels, affinity=pod_set.affinity,
                        host_ports=pod_set.host_ports, gang=gang.uid, pod_set=pod_set.name, phase="Running",
                    )  # fmt: skip
                    self.pods[fact.uid] = fact
                    self.engine.update(fact)

    def _pods_of(self, gang: Gang) -> list[str]:
        return sorted(uid for uid, pod in self.pods.items() if pod.gang == gang.uid)

    # What may be done

    def end(self, key: str) -> None:
        gang = self.gangs.pop(key)
        if gang.dialect == "kueue":
            self.engine.update(replace(gang, state="finished"))
        self.engine.remove(key)
        self._lose_pods(gang)

    def add_node(self, name: str, amounts: dict[str, int], labels: dict[str, str]) -> None:
        labels = {"kubernetes.io/hostname": name, **labels}
        self.engine.update(NodeFact(name=name, labels=labels, allocatable=amounts))

    def raise_quota(self, place: str, amounts: dict[str, int]) -> None:
        """As a person would: find the object, write larger numbers into it."""
        where, _, name = place.partition("/")
        for subtree in self.subtrees:
            if subtree.tree == where and name in [node.name for node in subtree.nodes]:
                nodes = [replace(n, quota=_sum(n.quota, amounts)) if n.name == name else n for n in subtree.nodes]
                self.subtrees[self.subtrees.index(subtree)] = grown = replace(subtree, nodes=tuple(nodes))
                self.engine.update(grown)
                return
        (queue,) = [fact for fact in self.cluster_queues if fact.name == where]
        groups = []
        for group in queue.groups:
            flavors = [
                replace(
                    flavor,
                    limits={
                        each: replace(
                            limits, nominal=limits.nominal + (amounts.get(each, 0) if flavor.name == name else 0)
                        )
                        for each, limits in flavor.limits.items()
                    },
                )
                for flavor in group.flavors
            ]
            groups.append(replace(group, flavors=tuple(flavors)))
        self.queue_facts[self.queue_facts.index(queue)] = grown = replace(queue, groups=tuple(groups))
        self.engine.update(grown)

    # What follows

    def tell(self, gang: Gang) -> None:
        self.gangs[gang.key] = gang
        self.engine.update(gang)

    def plan(self) -> Plan:
        self.now += SECOND
        plan = self.engine.plan(self.now)
        for one in plan.reservations:
            gang = self.gangs[one.gang]
            terms = Terms(cluster_queue=one.queue)
            self.tell(
                replace(gang, state="reserved", assignment=one.assignment, stopping_for="", details={"kueue": terms})
            )
        for admit in plan.admits:
            gang = self.gangs[admit.gang]
            self.tell(
                replace(
                    gang, state="admitted", admitted_at=self.now, stopping_for="", seats=admit.seats,
                    assignment=admit.assignment,
                )
            )  # fmt: skip
        for preempt in plan.preempts:
            gang = self.gangs[preempt.gang]
            self.tell(replace(gang, state="stopping", stopping_for=preempt.preemptor_uid))
        for reseat in plan.reseats:
            self.tell(replace(self.gangs[reseat.gang], seats=reseat.seats))
        return plan

    def let_go(self) -> bool:
        """Every gang that is being stopped has stopped, and waits again."""
        leaving = [gang for gang in self.gangs.values() if gang.state == "stopping"]
        for gang in leaving:
            self._lose_pods(gang)
            details = {}
            if gang.dialect == "kueue":
                details = {"kueue": Terms(evicted_at=self.now, evicted_reason="Preempted")}
            self.tell(replace(gang, state="waiting", seats={}, assignment=(), admitted_at=0, details=details))
        return bool(leaving)

    def settle(self) -> bool:
        """Plan and let go until nothing moves; False when it never comes to rest."""
        for _ in range(150):
            plan = self.plan()
            if not self.let_go() and plan.is_empty and not plan.unfinished:
                return True
        return False

    def _lose_pods(self, gang: Gang) -> None:
        for uid in self._pods_of(gang):
            del self.pods[uid]
            self.engine.remove(f"Pod/{uid}")

    def has_started(self, key: str) -> bool:
        """It has all that the engine gives: room, or quota where checks of others come next."""
        gang = self.gangs[key]
        return gang.state == "admitted" or (gang.state == "reserved" and not gang.checks_done)


def _sum(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in one.keys() | other.keys()}
