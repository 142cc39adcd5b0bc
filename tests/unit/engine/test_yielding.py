"""Who stood back for another is not overtaken by its equals: they have to leave that other one alone, too."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .build import SECOND, admitted, engine, gang, node, pods, preempted, quota, subtree, why
from .world import World

BLUE = {"team": "blue"}


def yielded(**settings):
    """`small`, within blue's quota, pushed out a borrower, and made way for `big`, which borrows with more priority."""
    judge = engine(
        node("n", cpu=64),
        subtree("team", "", quota("root", cpu=4)),
        subtree("team", "root", quota("blue", cpu=2), quota("default", cpu=0)),
        gang("top", pods(4), labels={"team": "default"}, priority=9),
        quota=True,
        preemption=True,
        **settings,
    )
    assert admitted(judge.plan(1)) == ["top"]
    judge.update(gang("big", pods(4, cpu=1), labels=BLUE, priority=5, at=1, supply="aggregate"))
    judge.update(gang("small", pods(2), labels=BLUE, at=2, supply="aggregate"))
    plan = judge.plan(3 * SECOND)
    assert (admitted(plan), preempted(plan)) == (["big"], ["top"])
    assert "preempted by AppWrapper/default/big earlier" in why(plan, "small")
    judge.remove("AppWrapper/default/top")
    return judge


def test_an_equal_that_came_later_does_not_get_past_one_that_yielded():
    judge = yielded()
    judge.update(gang("later", pods(2), labels=BLUE, at=4, supply="aggregate"))
    plan = judge.plan(5 * SECOND)
    assert plan.is_empty
    assert "it preempted AppWrapper/default/small, an equal gang ahead" in why(plan, "later")
    assert "an equal gang ahead in the queue" in judge.explain("AppWrapper/default/later").message
    assert "preempted by AppWrapper/default/big earlier" in judge.explain("AppWrapper/default/small").message


def test_an_equal_that_came_before_or_asks_for_something_else_is_not_concerned():
    judge = yielded()
    judge.update(gang("before", pods(2), labels=BLUE, at=1, supply="aggregate"))
    plan = judge.plan(5 * SECOND)
    assert (admitted(plan)[0], preempted(plan)) == ("before", ["big"])
    judge = yielded()
    judge.update(gang("other", pods(1), labels=BLUE, at=4, supply="aggregate"))
    plan = judge.plan(5 * SECOND)
    assert (admitted(plan)[0], preempted(plan)) == ("other", ["big"])


def test_who_comes_back_ahead_of_its_barred_equals_is_looked_at():
    judge = yielded()
    judge.update(gang("later", pods(2), labels=BLUE, at=4, supply="aggregate"))
    assert judge.plan(5 * SECOND).is_empty
    judge.update(gang("before", pods(2), labels=BLUE, at=1, supply="aggregate"))
    assert admitted(judge.plan(6 * SECOND)) == ["before", "small"]


@pytest.mark.parametrize("how", ["removed", "other priority", "bad"])
def test_equals_are_free_again_once_it_is_out_of_their_way(how):
    judge = yielded()
    judge.update(gang("later", pods(2), labels=BLUE, at=4, supply="aggregate"))
    assert judge.plan(5 * SECOND).is_empty
    small = judge.gang("AppWrapper/default/small")
    match how:
        case "removed":
            judge.remove(small.key)
        case "other priority":
            judge.update(msgspec.structs.replace(small, priority=-1))
        case _:
            judge.update(msgspec.structs.replace(small, problem="a field makes no sense"))
    plan = judge.plan(6 * SECOND)
    assert (admitted(plan)[0], preempted(plan)) == ("later", ["big"])


def test_the_one_who_yielded_goes_first_when_its_way_is_free():
    judge = yielded()
    judge.update(gang("later", pods(2), labels=BLUE, at=4, supply="aggregate"))
    assert judge.plan(5 * SECOND).is_empty
    judge.remove("AppWrapper/default/big")
    assert admitted(judge.plan(6 * SECOND)) == ["small", "later"]


POLICIES = st.sampled_from(["fifo", "priority", "priority-slope", "fair-share", "backfill"])


@given(st.integers(0, 10**9), POLICIES, st.sampled_from(["fit", "aggregate"]))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_no_gang_passes_an_equal_that_waits(seed, policy, supply):
    """Random histories of borrowing, eviction, taking back, ends and edits of quota: whenever one is admitted, or
    others are stopped for it, everyone of the same queue, priority and shape who came before has got as far. Only who
    was stopped for it lets it pass."""
    world = World(seed, policy=policy, quota=True, preemption=True)
    world.tell(wide := node("n", cpu=64))
    world.nodes["n"] = wide
    dice = world.dice

    def trees():
        world.tell(subtree("team", "", quota("root", cpu=dice.randint(4, 10))))
        leaves = [quota(name, cpu=dice.randint(0, 4), hard=dice.random() < 0.2) for name in ("blue", "green")]
        world.tell(subtree("team", "root", *leaves, quota("default", cpu=0)))

    def arrive():
        world.number += 1
        made = gang(
            f"g{world.number:03}",
            pods(dice.choice([1, 2, 2, 4])),
            labels={"team": dice.choice(["blue", "blue", "green", "default"])},
            priority=dice.choice([0, 0, 0, 5, 9]),
            at=world.now // SECOND,
            supply=supply,
        )
        world.gangs[made.key] = made
        world.tell(made)

    def equals(one):
        return (one.priority, one.labels["team"], one.pod_sets, one.namespace)

    trees()
    chosen: set[str] = set()
    for _ in range(60):
        world.now += SECOND
        match dice.choice(["arrive"] * 4 + ["finish", "stop", "stop", "edit", "trees"]):
            case "arrive":
                arrive()
            case "finish":
                world.finish()
            case "stop":
                world.progress_stopping()
            case "edit" if world.gangs:
                one = world.gangs[dice.choice(sorted(world.gangs))]
                world.change(one, priority=dice.choice([0, 5, 9]))
            case _ if dice.random() < 0.3:
                trees()
        plan = world.plan()
        chosen -= {hold.gang for hold in plan.holds if hold.reason != "preempting"} | {
            one.gang for one in plan.preempts
        }
        new = {one.gang for one in plan.admits} | {hold.gang for hold in plan.holds if hold.reason == "preempting"}
        waiting = [one for one in world.gangs.values() if one.state == "waiting" and one.key not in chosen | new]
        for one in [world.gangs[key] for key in new - chosen]:
            ahead = [old for old in waiting if equals(old) == equals(one) and old.queued_at < one.queued_at]
            passed = [old.key for old in ahead if old.stopping_for != one.uid]
            assert not passed, f"{one.key} passed {passed}"
        chosen |= new
