"""Everything changes at any time: no fact crashes a plan, and the ledger never drifts from its facts."""

from __future__ import annotations

import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.kueue import ClusterQueue, Cohort, Flavor, Kueue, LocalQueue, Terms
from shoal.engine.kueue.quota.tree import QuotaTreeNode, settle
from shoal.engine.model import Namespace
from tests.unit.engine.kueue.random_world import FLAVORS, random_facts, random_gang, random_world
from tests.unit.engine.kueue.world import World


def assert_ledger_matches_facts(world: World) -> None:
    """Usage kept step by step equals usage added up from the gangs that hold quota."""
    kueue = world.kueue
    kueue.state.forest.settled()
    for name, record in kueue.state.records.items():
        summed: dict[object, int] = {}
        for member in record.reserved.values():
            for at, amount in member.usage.items():
                summed[at] = summed.get(at, 0) + amount
        assert {at: used for at, used in record.node.usage.items() if used} == summed, name
    for node in kueue.state.forest.cohorts.values():
        before = _state(node)
        settle(node.root())
        assert _state(node) == before, node.name
    holding = {member.uid for member in kueue.members.values() if member.holds and member.queue in kueue.state.records}
    assert holding == {uid for record in kueue.state.records.values() for uid in record.reserved}


def _state(node: QuotaTreeNode) -> tuple[object, ...]:
    return {at: used for at, used in node.usage.items() if used}, dict(node.subtree), dict(node.potential)


def change(chance: random.Random, world: World, number: int, queues: list[str]) -> None:
    """One random thing happens outside."""
    kueue = world.kueue
    names = sorted(world.gangs)
    match chance.randrange(12):
        case 0 | 1 | 2:
            world.tell(random_gang(chance, number, queues))
        case 3 if names:
            world.finish(chance.choice(names))
        case 4 if names:
            kueue.remove(world.gangs.pop(chance.choice(names)))
        case 5:
            changed = [fact for fact in random_facts(chance) if isinstance(fact, (ClusterQueue, Cohort))]
            world.tell(chance.choice(changed))
        case 6:
            kueue.remove(ClusterQueue(name=chance.choice(queues)))
        case 7:
            name = chance.choice(FLAVORS)
            world.kueue.remove(Flavor(name=name)) if chance.random() < 0.5 else world.tell(Flavor(name=name))
        case 8:
            name = chance.choice(queues)
            kueue.update(LocalQueue(namespace="default", name=name, cluster_queue=chance.choice(queues), stopped=False))
        case 9:
            parent = chance.choice(("", "left", "right", "root"))
            world.tell(Cohort(name=chance.choice(("left", "right", "root")), parent=parent))  # cycles included
        case 10:
            kueue.update(Namespace(name="default", labels={"x": str(number % 2)}))
        case 11 if names:
            waiting = [name for name in names if world.gangs[name].state == "waiting"]
            if waiting:
                one = world.gangs[chance.choice(waiting)]
                terms = Terms(requeue_at=world.now + chance.randint(0, 3_000_000), backing_off=chance.random() < 0.2)
                world.tell(msgspec.structs.replace(one, details={"kueue": terms}))


@settings(max_examples=150, deadline=None)
@given(st.integers(min_value=0, max_value=10**9))
def test_churn_never_crashes_and_never_drifts(seed):
    chance, world, queues = random_world(seed)
    for number in range(40):
        change(chance, world, number, queues)
        if chance.random() < 0.6:
            assert not world.plan().warnings
        world.leaving = [victim for victim in world.leaving if victim.gang.rpartition("/")[2] in world.gangs]
        if world.leaving and chance.random() < 0.5:
            world.let_go(chance.choice(world.leaving).gang.rpartition("/")[2])
        assert_ledger_matches_facts(world)
        for name in sorted(world.gangs)[:2]:
            world.kueue.explain(f"Workload/default/{name}")
            assert_ledger_matches_facts(world)


def test_telling_the_same_fact_again_changes_nothing():
    chance, world, queues = random_world(7)
    world.tell(*(random_gang(chance, number, queues) for number in range(8)))
    world.settle()
    kueue: Kueue = world.kueue
    cycles = kueue.planner.cycles
    world.tell(*world.gangs.values())
    decisions = world.plan()
    assert not (decisions.reserved or decisions.evicted or decisions.waiting)
    assert kueue.planner.cycles == cycles
