"""The queue of AppWrappers: who goes first, who waits, and what a wait costs others."""

import msgspec
import pytest

from shoal.engine.model import Seat

from .build import SECOND, admitted, engine, gang, held, node, pod, pods, quota, subtree, why


def test_a_gang_that_fits_starts_and_the_next_waits_until_it_ends():
    """The tutorial: one node, two equal RayClusters of head and worker."""
    ray = (pods(1, cpu=1, memory="2G", name="head"), pods(1, cpu=2, memory="2G", name="worker"))
    system = pod("system", on="n", cpu="3050m", memory="2918400Ki")
    judge = engine(node("n", cpu=8, memory="8118372Ki"), system, gang("a", *ray, at=1), gang("b", *ray, at=2))
    plan = judge.plan(3 * SECOND)
    assert admitted(plan) == ["a"]
    assert held(plan) == {"b": "resources"}
    assert why(plan, "b") == "3 cpu needed, 1950m free; 3906250Ki memory needed, 1293722Ki free"
    assert judge.plan(4 * SECOND).is_empty
    judge.update(pod("head", on="n", of="a", cpu=1, memory="2G", pod_set="head"))
    judge.update(pod("worker", on="n", of="a", cpu=2, memory="2G", pod_set="worker"))
    assert judge.plan(5 * SECOND).is_empty
    judge.remove("AppWrapper/default/a")
    assert judge.plan(6 * SECOND).is_empty, "its pods are still there"
    judge.remove("Pod/head")
    judge.remove("Pod/worker")
    assert admitted(judge.plan(7 * SECOND)) == ["b"]


def test_equal_priority_is_first_come_first_served():
    judge = engine(node("n", cpu=2), *(gang(name, at=at) for name, at in (("c", 3), ("a", 1), ("b", 2))))
    assert admitted(judge.plan(9)) == ["a", "b"]


def test_higher_priority_beats_age():
    judge = engine(node("n", cpu=1), gang("old", at=1), gang("urgent", at=9, priority=5))
    assert admitted(judge.plan(10)) == ["urgent"]


def test_a_small_gang_overtakes_a_big_one_that_does_not_fit():
    judge = engine(node("n", cpu=2), gang("big", pods(3), at=1), gang("small", at=2))
    plan = judge.plan(3)
    assert admitted(plan) == ["small"]
    assert held(plan) == {"big": "resources"}


def test_a_slope_lets_age_overtake_priority_at_the_computed_moment():
    """2 per second from 0 passes a constant 10 after five seconds, not before."""
    facts = [gang("ageing", at=0, priority_slope=2.0), gang("constant", at=0, priority=10)]
    assert admitted(engine(node("n", cpu=1), *facts, policy="priority-slope").plan(4 * SECOND)) == ["constant"]
    assert admitted(engine(node("n", cpu=1), *facts, policy="priority-slope").plan(6 * SECOND)) == ["ageing"]


@pytest.mark.parametrize("supply", ["fit", "aggregate"])
@pytest.mark.parametrize("cpu, starts", [("2", True), ("2001m", False)])
def test_equality_fits_and_one_millicore_more_does_not(supply, cpu, starts):
    judge = engine(node("n", cpu=2), gang("a", pods(1, cpu=cpu), supply=supply))
    assert bool(judge.plan(1).admits) is starts


def test_aggregate_supply_looks_at_sums_only():
    """900m fit into 400m and 500m by their sum, and not by nodes."""
    nodes = [node("a", cpu="400m"), node("b", cpu="500m")]
    assert admitted(engine(*nodes, gang("x", pods(1, cpu="900m"), supply="aggregate")).plan(1)) == ["x"]
    plan = engine(*nodes, gang("x", pods(1, cpu="900m"))).plan(1)
    assert plan.holds[0].explanation.shortfalls[0].kind == "fragmentation"


def test_a_gang_without_pods_starts_at_once():
    judge = engine(msgspec.structs.replace(gang("empty"), pod_sets=()))
    assert admitted(judge.plan(1)) == ["empty"]


def test_an_admitted_gang_holds_its_room_before_its_pods_exist():
    judge = engine(node("n", cpu=4), gang("a", pods(3)))
    judge.plan(1)
    judge.update(gang("b", pods(2), at=1))
    assert admitted(judge.plan(2)) == []
    judge.update(pod("p", on="n", of="a"))
    assert admitted(judge.plan(3)) == [], "one of three pods is there, two are still to come"


def test_pods_count_once_whether_planned_or_bound():
    judge = engine(node("n", cpu=4), gang("a", pods(2)))
    judge.plan(1)
    for name in ("p", "q"):
        judge.update(pod(name, on="n", of="a"))
    judge.update(gang("b", pods(2), at=1))
    assert admitted(judge.plan(2)) == ["b"]


def test_nothing_overtakes_the_front_while_it_is_held_there():
    facts = [node("n", cpu=2), gang("big", pods(3), at=1), gang("small", at=2)]
    judge = engine(*facts, head_hold=5 * SECOND)
    plan = judge.plan(10 * SECOND)
    assert admitted(plan) == [] and plan.wake_at == 15 * SECOND
    assert held(plan) == {"big": "resources", "small": "order"}
    assert admitted(judge.plan(15 * SECOND)) == ["small"]


def test_what_others_take_in_between_does_not_let_a_later_equal_evict_first():
    """Quota that is left needs no eviction, and so frees no room. Once `small` took it the borrower can be pushed out:
    by the older of two that ask for the same in other words, not by the gang that is looked at next."""
    team = {"team": "green"}
    judge = engine(
        subtree("team", "", quota("root", cpu=6)),
        subtree("team", "root", quota("green", cpu=3), quota("default", cpu=0)),
        node("n", cpu=4),
        gang("borrower", pods(3), state="admitted", admitted_at=1, seats={"team": Seat("root", 1)}),
        *(pod(f"p{number}", on="n", of="borrower") for number in range(3)),
        gang("older", pods(3), at=1, labels=team),
        gang("small", at=2),
        gang("later", *(pods(1, name=name) for name in "abc"), at=3, labels=team),
        quota=True,
        preemption=True,
    )
    plan = judge.plan(9 * SECOND)
    assert admitted(plan) == ["small"]
    assert [(preempt.gang, preempt.preemptor) for preempt in plan.preempts] == [
        ("AppWrapper/default/borrower", "AppWrapper/default/older")
    ]
    assert held(plan) == {"older": "preempting", "later": "quota"}
