"""What holds whatever happens: room, wholeness, order, rest. Sameness: tests/chaos/test_engine_rebuilt.py."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .build import SECOND, admitted, engine, gang, node, pods, quota, subtree
from .world import World

SEEDS = st.integers(0, 10**9)
POLICIES = ["fifo", "priority", "priority-slope", "fair-share", "backfill", "strict-priority"]


def busy_world(seed, **more):
    world = World(seed, **more)
    for _ in range(3):
        world.add_node()
    return world


def quota_world(seed, **more):
    world = busy_world(seed, quota=True, **more)
    world.tell(subtree("team", "", quota("root", cpu=10, memory="64Gi", gpu=4)))
    world.tell(
        subtree(
            "team",
            "root",
            quota("a", cpu=4, memory="32Gi", gpu=2),
            quota("b", cpu=3, memory="32Gi", gpu=2, hard=True),
            quota("default", cpu=0, memory=0, gpu=0),
        )
    )
    return world


@given(SEEDS, st.sampled_from(POLICIES), st.booleans())
@settings(max_examples=60, deadline=None)
def test_never_over_a_nodes_capacity_and_gangs_stay_whole(seed, policy, preemption):
    world = busy_world(seed, policy=policy, preemption=preemption)
    for _ in range(80):
        world.step()
        world.assert_holds()


@given(SEEDS, st.sampled_from(POLICIES), st.booleans())
@settings(max_examples=40, deadline=None)
def test_without_outside_change_decisions_come_to_rest(seed, policy, preemption):
    world = busy_world(seed, policy=policy, preemption=preemption)
    for _ in range(60):
        world.step()
    cycles = world.settle()
    assert cycles <= 2 * len(world.gangs) + 2
    assert world.plan().is_empty


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_admissions_of_one_shape_follow_priority_and_age(seed):
    """Same shape, same queue: the gang with more priority, then the gang that came first, starts first."""
    world = busy_world(seed)
    world.tell(node("last", cpu=2))
    world.nodes["last"] = node("last", cpu=2)
    shape = (pods(2, cpu=1),)
    for _ in range(12):
        world.number += 1
        made = gang(f"g{world.number}", *shape, priority=world.dice.choice([0, 1]), uid=f"uid-g{world.number}")
        made = msgspec.structs.replace(made, queued_at=world.now + world.dice.randint(0, 3) * SECOND)
        world.gangs[made.key] = made
        world.tell(made)
    order = []
    for _ in range(12):
        order += [world.gangs[admit.gang] for admit in world.plan().admits]
        world.finish()
    assert len(order) == 12
    ranks = [(-one.priority, one.queued_at, one.name, one.uid) for one in order]
    assert ranks == sorted(ranks)


@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_under_backfill_a_big_gang_starts_although_small_ones_keep_coming(seed):
    """A full cluster, an endless stream of small gangs, and one that needs half of it: it starts in bounded time."""
    world = World(seed, policy="backfill")
    for index in range(4):
        fact = node(f"n{index}", cpu=4)
        world.nodes[fact.name] = fact
        world.tell(fact)

    def small():
        world.number += 1
        made = gang(f"small{world.number}", at=world.now // SECOND)
        world.gangs[made.key] = made
        world.tell(made)

    for _ in range(16):
        small()
    world.plan()
    big = gang("big", pods(2, cpu=4), at=world.now // SECOND)
    world.gangs[big.key] = big
    world.tell(big)
    for _ in range(200):
        small()
        small()
        world.finish()
        world.plan()
        if world.gangs[big.key].state == "admitted":
            return
    pytest.fail("the big gang starved")


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_never_over_quota_at_any_instant(seed):
    world = quota_world(seed, preemption=True)
    for _ in range(80):
        if world.dice.random() < 0.4:
            world.submit(labels={"team": world.dice.choice(["a", "b", "default", "none"])})
        world.step()
        world.assert_holds()
        limits = {"root": 10_000, "b": 3_000}
        for place, limit in limits.items():
            holders = [one for one in world.gangs.values() if one.state == "admitted"]
            inside = [one for one in holders if place == "root" or one.labels.get("team") == "b"]
            total = sum(set_.count * set_.requests["cpu"] for one in inside for set_ in one.pod_sets)
            assert total <= limit
    world.settle()


def test_the_same_facts_give_the_same_plan_in_any_order():
    facts = [node("a", cpu=3), node("b", cpu=3), *(gang(f"g{n}", pods(2), at=n % 2) for n in range(4))]
    plans = [engine(*order).plan(9) for order in (facts, facts[::-1], facts[2:] + facts[:2])]
    assert plans[0].admits == plans[1].admits == plans[2].admits
    assert admitted(plans[0]) == ["g0", "g2", "g1"]
