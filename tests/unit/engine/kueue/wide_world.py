"""Wider random worlds than `random_world`: deep cohorts with limits at every level, several resource groups, pod sets,
every setting of fungibility, thresholds, taints and selectors. From one seed; small enough to be looked through."""

from __future__ import annotations

import random
from typing import Any

from shoal.engine.kueue import ClusterQueue, Cohort, Flavor, FlavorQuota, Fungibility, Limits, Preemption, ResourceGroup
from shoal.engine.model import Gang, PodSet, Taint, Toleration
from tests.unit.engine.kueue.world import CPU, World, gang

GROUPS = ((("cpu", "memory"), ("f1", "f2", "f3")), (("gpu",), ("g1", "g2")))
UNIT = {"cpu": CPU, "memory": 1, "gpu": 1}
WEIGHTS = (0, 5 * 10**8, 10**9, 10**9, 3 * 10**9)


def some_limits(chance: random.Random, unit: int, *, root: bool) -> Limits:
    nominal = chance.choice((0, chance.randint(0, 10))) * unit
    if root:
        return Limits(nominal)
    borrowing = chance.randint(0, 6) * unit if chance.random() < 0.3 else None
    lending = chance.randint(0, 6) * unit if chance.random() < 0.35 else None
    return Limits(nominal, borrowing, lending)


def some_groups(chance: random.Random, *, root: bool) -> tuple[ResourceGroup, ...]:
    groups = []
    for resources, flavors in GROUPS:
        if groups and chance.random() < 0.25:
            continue
        covered = resources if chance.random() < 0.6 else resources[:1]
        names = chance.sample(flavors, chance.randint(1, len(flavors)))
        quotas = [
            FlavorQuota(name, {each: some_limits(chance, UNIT[each], root=root) for each in covered}) for name in names
        ]
        groups.append(ResourceGroup(covered, tuple(quotas)))
    return tuple(groups)


def some_queue(chance: random.Random, name: str, home: str) -> ClusterQueue:
    reclaim = chance.choice(("Never", "LowerPriority", "Any", "Any"))
    return ClusterQueue(
        name=name,
        cohort=home,
        groups=some_groups(chance, root=not home),
        strategy=chance.choice(("StrictFIFO", "BestEffortFIFO", "BestEffortFIFO")),
        namespace_selector={},
        fungibility=Fungibility(
            next_when_borrowing=chance.random() < 0.5,
            next_when_preempting=chance.random() < 0.5,
            prefer_preempting=chance.random() < 0.4,
        ),
        preemption=Preemption(
            reclaim_within_cohort=reclaim,
            within_cluster_queue=chance.choice(("Never", "LowerPriority", "LowerOrNewerEqualPriority")),
            borrow_within_cohort="Never" if reclaim == "Never" else chance.choice(("Never", "LowerPriority")),
            borrow_threshold=chance.choice((None, None, 0, 5, 50)),
        ),
        weight=chance.choice(WEIGHTS),
    )


def wide_facts(chance: random.Random) -> list[Any]:
    facts: list[Any] = [Flavor(name=name) for _, flavors in GROUPS for name in flavors]
    taints = (Taint("kept", "yes"),) if chance.random() < 0.2 else ()
    facts[1] = Flavor(name="f2", taints=taints, labels={"zone": "a"} if chance.random() < 0.3 else {})
    cohorts: list[str] = []
    for number in range(chance.randint(1, 5)):
        parent = chance.choice(cohorts) if cohorts and chance.random() < 0.85 else ""
        groups = some_groups(chance, root=not parent) if chance.random() < 0.5 else ()
        facts.append(Cohort(name=f"c{number}", parent=parent, groups=groups, weight=chance.choice(WEIGHTS)))
        cohorts.append(f"c{number}")
    for number in range(chance.randint(1, 6)):
        facts.append(some_queue(chance, f"q{number}", chance.choice([*cohorts, *cohorts, ""])))
    return facts


def wide_gang(chance: random.Random, number: int, queues: list[str]) -> Gang:
    pod_sets = []
    for index in range(chance.choice((1, 1, 1, 2, 2, 3))):
        asked = {name: chance.randint(0, 4) * unit for name, unit in UNIT.items() if chance.random() < 0.5}
        count = chance.randint(0, 4)
        pod_sets.append(
            PodSet(
                name=f"set{index}",
                count=count,
                min_count=chance.randint(1, count) if count > 1 and chance.random() < 0.25 else None,
                requests=asked or {"cpu": CPU},
                tolerations=(Toleration(key="kept", operator="Exists"),) if chance.random() < 0.3 else (),
                node_selector={"zone": chance.choice("ab")} if chance.random() < 0.15 else {},
            )
        )
    priority, at = chance.choice((0, 0, 0, 5, 10, 100)), chance.randint(0, 6)
    return gang(f"g{number:02}", chance.choice(queues), priority=priority, at=at, pod_sets=tuple(pod_sets))


def wide_world(seed: int, **settings: Any) -> tuple[random.Random, World, list[Any]]:
    chance = random.Random(seed)
    settings.setdefault("fair_sharing", chance.random() < 0.4)
    facts = wide_facts(chance)
    return chance, World(*facts, **settings), facts


def queues_of(facts: list[Any]) -> list[str]:
    return [fact.name for fact in facts if isinstance(fact, ClusterQueue)]
