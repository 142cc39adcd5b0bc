"""Random queues, cohort trees and gangs from one seed, small enough to meet every rule often."""

from __future__ import annotations

import random
from typing import Any

from shoal.engine.kueue import ClusterQueue, Cohort, Flavor, FlavorQuota, Fungibility, Limits, Preemption, ResourceGroup
from shoal.engine.model import Gang, PodSet
from tests.unit.engine.kueue.world import CPU, World, gang

FLAVORS = ("default", "spot")


def maybe(chance: random.Random, most: int, odds: float = 0.3) -> int | None:
    return chance.randint(0, most) * CPU if chance.random() < odds else None


def random_limits(chance: random.Random, *, root: bool) -> Limits:
    nominal = chance.randint(0, 10) * CPU
    if root:
        return Limits(nominal)
    lending = maybe(chance, 6)
    return Limits(nominal, maybe(chance, 6), None if lending is None else min(lending, nominal))


def random_group(chance: random.Random, *, root: bool) -> ResourceGroup:
    flavors = FLAVORS[: chance.randint(1, 2)]
    return ResourceGroup(
        ("cpu",), tuple(FlavorQuota(name, {"cpu": random_limits(chance, root=root)}) for name in flavors)
    )


def random_facts(chance: random.Random) -> list[Any]:
    facts: list[Any] = [Flavor(name=name) for name in FLAVORS]
    facts.append(Cohort(name="root"))
    cohorts = ["root", "root"]
    for name in ("left", "right")[: chance.randint(0, 2)]:
        groups = (random_group(chance, root=False),) if chance.random() < 0.3 else ()
        facts.append(Cohort(name=name, parent="root", groups=groups, weight=chance.choice((0, 10**9, 2 * 10**9))))
        cohorts += [name, name]
    for index in range(chance.randint(1, 4)):
        name = f"q{index}"
        home = chance.choice([*cohorts, ""])
        try_next = chance.random() < 0.5
        facts.append(
            ClusterQueue(
                name=name,
                cohort=home,
                groups=(random_group(chance, root=not home),),
                strategy=chance.choice(("StrictFIFO", "BestEffortFIFO", "BestEffortFIFO")),
                namespace_selector={},
                fungibility=Fungibility(
                    next_when_borrowing=try_next,
                    next_when_preempting=try_next or chance.random() < 0.5,
                    prefer_preempting=try_next and chance.random() < 0.3,
                ),
                preemption=Preemption(
                    reclaim_within_cohort=chance.choice(("Never", "LowerPriority", "Any", "Any")),
                    within_cluster_queue=chance.choice(("Never", "LowerPriority", "LowerOrNewerEqualPriority")),
                    borrow_within_cohort=chance.choice(("Never", "Never", "LowerPriority")),
                ),
                weight=chance.choice((10**9, 10**9, 5 * 10**8, 0)),
            )
        )
    return facts


def random_gang(chance: random.Random, number: int, queues: list[str]) -> Gang:
    sizes = [chance.randint(0, 3) for _ in range(chance.randint(1, 2))]
    pod_sets = tuple(
        PodSet(
            name=f"set{index}",
            count=size,
            min_count=1 if index == 0 and size > 1 and chance.random() < 0.3 else None,
            requests={"cpu": chance.randint(1, 4) * CPU},
        )
        for index, size in enumerate(sizes)
    )
    return gang(
        f"g{number:02}",
        chance.choice(queues),
        priority=chance.choice((0, 0, 10, 100)),
        at=chance.randint(0, 5),  # equal moments on purpose
        pod_sets=pod_sets,
    )


def random_world(seed: int, **settings: Any) -> tuple[random.Random, World, list[str]]:
    chance = random.Random(seed)
    settings.setdefault("fair_sharing", chance.random() < 0.5)
    facts = random_facts(chance)
    world = World(*facts, **settings)
    return chance, world, [fact.name for fact in facts if isinstance(fact, ClusterQueue)]
