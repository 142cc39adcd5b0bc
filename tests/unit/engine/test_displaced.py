"""Pods that were admitted and cannot go where they were planned keep as much room elsewhere."""

import msgspec

from shoal.engine.nodes.ledger import Ledger
from tests.faults import proven

from .build import admitted, engine, gang, held, node, pod, pods, preempted


def two_on_two_nodes():
    """`one` is planned on node a, `two` on node b; nothing is left."""
    judge = engine(node("a", cpu=2), node("b", cpu=2), gang("one", pods(2), at=1), gang("two", pods(2), at=2))
    plan = judge.plan(3)
    assert [admit.assignment[0].nodes for admit in plan.admits] == [{"a": 2}, {"b": 2}]
    judge.update(gang("next", at=4))
    assert held(judge.plan(5)) == {"next": "resources"}
    return judge


def test_a_pod_that_another_scheduler_puts_on_somebodys_planned_node_gives_no_room_away():
    judge = two_on_two_nodes()
    for name in ("p", "q"):
        judge.update(pod(name, on="b", of="one"))
    assert admitted(judge.plan(6)) == [], "node a looks free, and is all that is left for two"
    for name in ("r", "s"):
        judge.update(pod(name, on="a", of="two"))
    assert admitted(judge.plan(7)) == []
    judge.remove("Pod/p")
    judge.remove("AppWrapper/default/one")
    assert admitted(judge.plan(8)) == ["next"]


def test_of_a_plan_only_what_lost_its_place_is_moved():
    judge = two_on_two_nodes()
    judge.update(node("c", cpu=2))
    judge.update(pod("stranger", on="b", cpu=1))
    plan = judge.plan(6)
    assert admitted(plan) == ["next"], "one of the two free is for the pod that was pushed out, one is left"
    judge.update(gang("last", at=7))
    assert admitted(judge.plan(8)) == []
    judge.remove("Pod/stranger")
    assert admitted(judge.plan(9)) == ["last"], "the plan is good again"


def test_who_waits_for_a_node_that_is_gone_or_closed_has_room_on_the_others():
    for closed in (None, node("b", cpu=2, unschedulable=True), node("b", cpu=2, ready=False)):
        judge = two_on_two_nodes()
        judge.update(node("c", cpu=2))
        if closed is None:
            judge.remove("Node/b")
        else:
            judge.update(closed)
        judge.update(gang("wide", pods(2), at=5, priority=1))
        assert admitted(judge.plan(6)) == [], f"node c is for two: {closed}"
        judge.update(node("b", cpu=2))
        assert admitted(judge.plan(7)) == ["wide"]


def test_as_much_as_there_is_room_for_is_kept():
    """Three pods lost their node and two places are left: both are theirs."""
    judge = engine(node("a", cpu=3), gang("lost", pods(3), at=1))
    assert admitted(judge.plan(2)) == ["lost"]
    judge.remove("Node/a")
    judge.update(node("b", cpu=2))
    judge.update(gang("next", at=3))
    assert admitted(judge.plan(4)) == []


def test_pod_sets_that_lost_their_node_do_not_share_one_place():
    judge = engine(node("a", cpu=4), gang("lost", pods(1, cpu=2, name="head"), pods(1, cpu=2, name="worker"), at=1))
    assert admitted(judge.plan(2)) == ["lost"]
    judge.remove("Node/a")
    for name in ("b", "c"):
        judge.update(node(name, cpu=2))
    judge.update(gang("next", at=3))
    assert admitted(judge.plan(4)) == []


def test_sums_move_nothing():
    judge = engine(node("a", cpu=2), gang("sum", pods(2), at=1, supply="aggregate"))
    (admit,) = judge.plan(2).admits
    known = judge.gang("AppWrapper/default/sum")
    judge.update(
        msgspec.structs.replace(known, assignment=(msgspec.structs.replace(admit.assignment[0], nodes={"a": 2}),))
    )
    judge.remove("Node/a")
    judge.update(node("b", cpu=2))
    judge.update(gang("next", at=3))
    assert admitted(judge.plan(4)) == ["next"], "a gang that was admitted by sums may wait for a node"


def forgets_who_lost_their_place(monkeypatch):
    monkeypatch.setattr(Ledger, "_move_ghosts", lambda self, gone: {})


@proven(without=forgets_who_lost_their_place)
def test_f015_no_gang_is_evicted_for_room_that_a_gang_that_lost_its_place_would_take():
    """F15: an admitted gang lost its node and finds no other; a more important one looks for victims. Holds: what they
    would free is counted for the one that was admitted first, so no gang is evicted in vain, again and again."""
    judge = engine(node("a", cpu=2), node("b", cpu=2), preemption=True)
    judge.update(gang("lost", pods(2), at=1, priority=5))
    judge.update(gang("small", pods(2), at=2))
    assert admitted(judge.plan(3)) == ["lost", "small"]
    judge.remove("Node/a")
    judge.update(gang("urgent", pods(2), at=4, priority=5))
    plan = judge.plan(5)
    assert (preempted(plan), admitted(plan)) == ([], [])
    judge.update(node("c", cpu=2))
    plan = judge.plan(6)
    assert preempted(plan) == ["small"], "now there is room for both"


@proven(without=lambda patch: patch.setattr(Ledger, "_pieces", lambda self, one, index, count: {}))
def test_f039_a_pod_that_no_node_takes_whole_any_more_keeps_its_room_in_pieces():
    """F39: another scheduler puts a pod where an admitted one was planned, and only pieces are left. Holds: no other
    gang is admitted into these while the admitted one waits."""
    judge = engine(node("a", cpu=4), node("b", cpu=4), gang("rest", pods(1, cpu=2), pods(1, cpu=1, name="one"), at=1))
    assert admitted(judge.plan(2)) == ["rest"]
    judge.update(pod("p", on="a", of="rest", cpu=2))
    judge.update(pod("q", on="b", of="rest", cpu=1))
    judge.update(gang("pair", pods(1, cpu=2), pods(1, cpu=2, name="other"), at=3))
    judge.update(gang("small", pods(1, cpu=1), at=4))
    assert admitted(judge.plan(5)) == ["pair", "small"], "b has room for one more"
    judge.update(pod("r", on="a", of="small", cpu=1))
    judge.update(gang("next", at=6))
    assert admitted(judge.plan(7)) == [], "a and b have one cpu each, and a pod of two waits for them"
    judge.remove("Pod/r")
    judge.remove("AppWrapper/default/small")
    assert admitted(judge.plan(8)) == ["next"], "now its place is whole again"
