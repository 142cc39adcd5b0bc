"""Quota arithmetic, by small examples."""

from __future__ import annotations

import gc
from weakref import ref

import pytest

from shoal.engine.kueue import FlavorResource
from shoal.engine.kueue.views import quota_of
from tests.unit.engine.kueue.world import CPU, World, cohort, gang, limits, queue

CPU_DEFAULT = FlavorResource("default", "cpu")


def available(world: World, name: str) -> int:
    return quota_of(world.kueue, name).available[CPU_DEFAULT] // CPU


def potential(world: World, name: str) -> int:
    return quota_of(world.kueue, name).potential[CPU_DEFAULT] // CPU


def test_lending_and_borrowing_limits_bound_what_a_cohort_shares():
    world = World(queue("a", limits(10, lending=4), "team"), queue("b", limits(5, borrowing=3), "team"))
    assert (available(world, "a"), available(world, "b")) == (15, 8)
    world.tell(gang("big", "a", cpu=8))
    world.plan()
    assert (available(world, "a"), available(world, "b")) == (7, 7)
    assert (potential(world, "a"), potential(world, "b")) == (15, 8)


def test_cohort_quota_is_shared_on_top_of_its_queues():
    world = World(cohort("team", cpu=4), queue("a", 2, "team"), queue("b", 0, "team"))
    assert (available(world, "a"), available(world, "b")) == (6, 6)


def test_a_limit_in_the_middle_of_the_tree_holds_for_everyone_below():
    upper = cohort("company", cpu=10)
    world = World(
        upper, cohort("team", parent="company"), queue("a", limits(1, borrowing=3), "team"), queue("b", 1, "team")
    )
    assert (available(world, "a"), available(world, "b")) == (4, 12)


def test_usage_within_the_part_that_is_not_lent_is_invisible_above():
    world = World(queue("a", limits(10, lending=4), "team"), queue("b", 0, "team"), gang("small", "a", cpu=6))
    world.plan()
    assert available(world, "b") == 4
    world.tell(gang("more", "a", cpu=1))
    world.plan()
    assert available(world, "b") == 3


def test_removing_all_load_returns_everything_to_zero():
    world = World(queue("a", limits(5, lending=2), "team"), queue("b", 5, "team"))
    world.tell(*(gang(f"g{number}", "ab"[number % 2], cpu=2) for number in range(5)))
    world.plan()
    world.finish(*list(world.gangs))
    for node in [*world.kueue.state.forest.queues.values(), *world.kueue.state.forest.cohorts.values()]:
        assert not any(node.usage.values()), node.name


@pytest.mark.parametrize("moves", [("team", "other", "team"), ("other", "", "team")])
def test_moving_a_queue_between_cohorts_moves_its_usage(moves):
    world = World(queue("a", 5, "team"), queue("b", 5, "team"), queue("c", 5, "other"), gang("used", "a", cpu=4))
    world.plan()
    for name in moves:
        world.tell(queue("a", 5, name))
    assert (available(world, "b"), available(world, "c")) == (6, 5)


def test_queues_that_are_not_needed_any_more_are_gone_without_the_collector():
    """Trials copy an engine many times: a cycle of references would leave each copy to the collector."""
    world = World(queue("a", 4), queue("b", 4, "team"))
    world.tell(gang("one", "a", cpu=2))
    world.plan()
    left = ref(world.kueue.state)
    gc.disable()
    try:
        world.kueue = None
        assert left() is None
    finally:
        gc.enable()
