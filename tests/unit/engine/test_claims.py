"""Room kept for a preemptor stands on the room of those who leave for it: of the two, the larger counts."""

import msgspec
import pytest

from .build import SECOND, admitted, engine, gang, held, node, pod, pods, preempted


def gone(judge, name):
    """Its pods are gone; it waits again."""
    one = judge.gang(f"AppWrapper/default/{name}")
    judge.update(msgspec.structs.replace(one, state="waiting", assignment=(), admitted_at=0))


@pytest.mark.parametrize("supply", ["fit", "aggregate"])
@pytest.mark.parametrize("bound", [True, False])
def test_what_is_free_now_and_later_is_not_kept_from_others(supply, bound):
    judge = engine(node("n", cpu=8), gang("victim", pods(1, cpu=5), supply=supply), preemption=True)
    judge.plan(1)
    if bound:
        judge.update(pod("p", on="n", of="victim", cpu=5, pod_set="main"))
    judge.update(gang("urgent", pods(1, cpu=4), priority=9, at=1, supply=supply))
    judge.update(gang("beside", pods(1, cpu=3), at=2, supply=supply))
    judge.update(gang("more", pods(1, cpu=1), at=3, supply=supply))
    plan = judge.plan(4 * SECOND)
    assert (preempted(plan), admitted(plan)) == (["victim"], ["beside"])
    assert held(plan) == {"urgent": "preempting", "more": "resources"}
    assert judge.plan(5 * SECOND).is_empty
    if bound:
        judge.remove("Pod/p")
    gone(judge, "victim")
    assert admitted(judge.plan(6 * SECOND)) == ["urgent", "more"]


def test_each_node_counts_for_itself():
    """The victim leaves one node, the preemptor also needs another: there all of its claim counts."""
    judge = engine(node("a", cpu=4), node("b", cpu=4), gang("victim", pods(1, cpu=3)), preemption=True)
    assert judge.plan(1).admits[0].assignment[0].nodes == {"a": 1}
    judge.update(gang("urgent", pods(2, cpu=3), priority=9, at=1))
    judge.update(gang("beside", pods(3, cpu=1), at=2))
    judge.update(gang("small", pods(2, cpu=1), at=3))
    plan = judge.plan(4 * SECOND)
    assert (preempted(plan), admitted(plan)) == (["victim"], ["small"])
    gone(judge, "victim")
    assert admitted(judge.plan(5 * SECOND)) == ["urgent"]


def test_the_end_of_a_gang_that_leaves_anyway_helps_no_other():
    judge = engine(node("n", cpu=8), gang("victim", pods(1, cpu=5)), preemption=True)
    judge.plan(1)
    judge.update(gang("urgent", pods(1, cpu=4), priority=9, at=1))
    judge.update(gang("beside", pods(1, cpu=3), at=2))
    judge.update(gang("wide", pods(1, cpu=5), at=3))
    judge.update(gang("last", pods(1, cpu=4), at=4))
    judge.plan(5 * SECOND)
    assert judge.explain("AppWrapper/default/wide").release == ()
    before = judge.explain("AppWrapper/default/last")
    assert before.release == ("AppWrapper/default/beside",), "victim ends anyway"
    assert judge.explain("AppWrapper/default/last") == before
    assert judge.plan(6 * SECOND).is_empty


def test_behind_the_front_others_fill_what_is_left_beside_it():
    """Backfill: the front waits for one that runs; what is free beside both is used now."""
    judge = engine(node("n", cpu=8), gang("runs", pods(1, cpu=5)), policy="backfill")
    judge.plan(1)
    judge.update(gang("front", pods(1, cpu=4), at=1))
    judge.update(gang("beside", pods(1, cpu=3), at=2))
    judge.update(gang("more", pods(1, cpu=1), at=3))
    assert admitted(judge.plan(4 * SECOND)) == ["beside"]
    judge.remove("AppWrapper/default/runs")
    assert admitted(judge.plan(5 * SECOND)) == ["front", "more"]


def test_gangs_judged_by_nodes_leave_what_a_gang_judged_by_sums_waits_for():
    """No node takes a pod of `sum`, yet the sum over both would do once `victim` has left. `small` fits beside it now;
    if it started, `sum` would be stopped for in vain, and have to evict `small` in turn, again and again."""
    judge = engine(node("a", cpu=3), node("b", cpu=3), preemption=True)
    judge.update(gang("victim", pods(1, cpu=3)))
    assert judge.plan(1).admits[0].assignment[0].nodes == {"a": 1}
    judge.update(gang("sum", pods(1, cpu=6), priority=5, at=1, supply="aggregate"))
    judge.update(gang("small", pods(1, cpu=3), at=2))
    plan = judge.plan(3 * SECOND)
    assert (preempted(plan), admitted(plan)) == (["victim"], [])
    assert judge.plan(4 * SECOND).is_empty
    gone(judge, "victim")
    assert "sum" in admitted(judge.plan(5 * SECOND))
    assert not judge.plan(6 * SECOND).preempts
