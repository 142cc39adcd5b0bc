"""After every fact, queues kept up to date step by step decide as queues rebuilt from the same facts."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.kueue import ClusterQueue, Cohort, Flavor, Kueue, LocalQueue, QueueDecisions
from shoal.engine.model import Gang, Namespace
from tests.unit.engine.kueue.random_world import FLAVORS, random_facts, random_gang, random_world
from tests.unit.engine.kueue.world import World


def facts_of(world: World) -> list[object]:
    """Everything that is known at rest, as it would be read after a restart."""
    kueue = world.kueue
    forest = kueue.state.forest
    shapes: list[object] = [Namespace(name="default"), *kueue.state.flavors.values(), *forest._cohort_facts.values()]
    queues = [record.fact for record in kueue.state.records.values()]
    return [*shapes, *queues, *kueue.register.local_queues.values(), *world.gangs.values()]


def rebuilt(world: World) -> Kueue:
    fresh = Kueue(world.kueue.settings)
    for fact in facts_of(world):
        fresh.update(fact)  # type: ignore[arg-type]
    return fresh


def decided(decisions: QueueDecisions) -> object:
    """What matters of decisions: which gang gets what, which leaves for which."""
    return (
        [(entry.gang, entry.cluster_queue, entry.assignment) for entry in decisions.reserved],
        [(entry.gang, entry.preemptor, entry.reason) for entry in decisions.evicted],
    )


def one_fact(chance: random.Random, world: World, number: int, queues: list[str]) -> tuple[str, object]:
    """Something that could change what is decided: `tell` or `remove`, and the fact."""
    running, names = sorted(world.running()), sorted(world.gangs)
    match chance.randrange(8):
        case 0 | 1 if running:
            return "remove", world.gangs[chance.choice(running)]
        case 2 if names:
            return "remove", world.gangs[chance.choice(names)]
        case 3:
            changed = [fact for fact in random_facts(chance) if isinstance(fact, (ClusterQueue, Cohort))]
            return "tell", chance.choice(changed)
        case 4:
            return "tell", Flavor(name=chance.choice(FLAVORS), labels={"number": str(number)})
        case 5:
            queue = chance.choice(queues)
            return "tell", LocalQueue(namespace="default", name=queue, cluster_queue=chance.choice(queues))
        case _:
            return "tell", random_gang(chance, number, queues)


def apply(kueue: Kueue, verb: str, fact: object) -> None:
    if verb == "tell":
        if isinstance(fact, ClusterQueue):
            kueue.update(LocalQueue(namespace="default", name=fact.name, cluster_queue=fact.name))
        kueue.update(fact)  # type: ignore[arg-type]
    else:
        kueue.remove(fact)  # type: ignore[arg-type]


@settings(max_examples=120, deadline=None)
@given(st.integers(min_value=0, max_value=10**9))
def test_rebuilt_queues_decide_the_same_after_every_fact(seed):
    """Quota, cohort trees, flavors, preemption, fair sharing, partial starts: what was set aside because it could not
    fit is found again exactly when it can."""
    chance, world, queues = random_world(seed)
    for number in range(6):
        world.tell(random_gang(chance, number, queues))
    for number in range(6, 30):
        world.settle()
        assert not rebuilt(world).plan(world.now).reserved, "at rest"
        if world.kueue.state._evicted_by:
            world.kueue = rebuilt(world)  # which gang yielded to which is kept in memory only: begin without it
            world.settle()
            if world.kueue.state._evicted_by:
                return  # here two gangs would take each other's place for ever
        fresh = rebuilt(world)
        verb, fact = one_fact(chance, world, number, queues)
        apply(fresh, verb, fact)
        expected = fresh.plan(world.now + 1_000_000)
        if verb == "tell":
            world.tell(fact)
        else:
            world.gangs.pop(getattr(fact, "name", ""), None) if isinstance(fact, Gang) else None
            world.kueue.remove(fact)  # type: ignore[arg-type]
        assert decided(world.plan()) == decided(expected), (number, verb, fact)
