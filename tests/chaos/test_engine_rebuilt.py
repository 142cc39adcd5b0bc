"""Long seeded runs: after every fact, the engine that was told step by step decides as a rebuilt one."""

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.line.waiting import Waiting
from tests.faults import proven
from tests.unit.engine.build import quota, subtree
from tests.unit.engine.test_properties import SEEDS, busy_world, quota_world


def copied(engine):
    """An engine in the very same state. The facts, which never change, are shared: to copy them takes longest."""
    return copy.deepcopy(engine, {id(fact): fact for fact in engine._state.facts()})


def without_order(plan):
    """Who starts where, who is stopped. Numbers that order seats count on and may differ; the order is the same."""
    return (
        [
            (admit.gang, {tree: seat.node for tree, seat in admit.seats.items()}, admit.assignment)
            for admit in plan.admits
        ],
        plan.preempts,
    )


@proven(without=lambda patch: patch.setattr(Waiting, "reconsider", lambda self, gang_class: None))
@given(SEEDS, st.booleans())
@settings(max_examples=16, deadline=None)
def test_f021_incremental_equals_rebuilt_after_every_fact(seed, preemption):
    """F21: a change that could help a waiting gang is not noticed. Holds: a rebuilt engine decides the same."""
    world = busy_world(seed, preemption=preemption)
    for _ in range(60):
        world.step()
        again = world.rebuilt().plan(world.now)
        mine = copied(world.engine).plan(world.now)
        assert without_order(mine) == without_order(again)


@given(SEEDS, st.booleans())
@settings(max_examples=10, deadline=None)
def test_with_quota_trees_incremental_equals_rebuilt_given_the_seats(seed, preemption):
    """Borrowing, pushing up, sliding down, eviction of borrowers: seats are facts. Which gang yielded to which is
    given; it is kept in memory only, as is the seat that somebody waits for while others are being stopped."""
    world = quota_world(seed, preemption=preemption)
    for _ in range(60):
        if world.dice.random() < 0.4:
            world.submit(labels={"team": world.dice.choice(["a", "b", "default", "none"])})
        if world.dice.random() < 0.05:
            world.tell(subtree("team", "root", quota("c", cpu=world.dice.randint(0, 4), memory="8Gi"), key="c"))
        world.step()
        if world.engine._state.victims:
            continue
        again = world.rebuilt().plan(world.now)
        mine = copied(world.engine).plan(world.now)
        assert without_order(mine) == without_order(again)
