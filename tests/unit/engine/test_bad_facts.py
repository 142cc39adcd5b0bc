"""Facts that cannot be right: the gang at fault is held and named, everything else goes on."""

import msgspec
import pytest

from shoal.engine.model import NodeFact, NodePool, PodFact, PodSet, QuotaNode, QuotaSubtree

from .build import admitted, engine, gang, held, node, pod, pods, why

TERM = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    "bad, said",
    [
        (gang("bad", pods(-1)), "has a count of -1"),
        (gang("bad", pods(10**12)), "has a count of 1000000000000"),
        (gang("bad", pods(1, name="x"), pods(1, name="x")), "'x' appears twice"),
        (gang("bad", pods(2, min_count=3)), "has a minimum of 3"),
        (gang("bad", pods(1, affinity={"nodeAffinity": "nonsense"})), "affinity.nodeAffinity must be an object"),
        (gang("bad", pods(1, affinity={"podAntiAffinity": {TERM: [{}]}})), "needs a topologyKey"),
        (gang("bad", pods(1, affinity={"nodeAffinity": {TERM: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "k",
         "operator": "Like"}]}]}}})), "operator of In, NotIn"),
        (gang("bad", problem="spec.resources cannot be read"), "spec.resources cannot be read"),
    ],
)  # fmt: skip
def test_the_gang_at_fault_is_held_and_named(bad, said):
    judge = engine(node("n", cpu=2), bad, gang("good", at=9))
    plan = judge.plan(1)
    assert admitted(plan) == ["good"] and held(plan) == {"bad": "bad-fact"}
    assert said in why(plan, "bad") and said in judge.explain(bad.key).message
    judge.update(gang("bad"))
    assert admitted(judge.plan(2)) == ["bad"], "corrected, it is judged like any other"


def test_nodes_and_pods_with_negative_amounts_count_as_zero_and_are_named():
    broken = NodeFact(name="broken", allocatable={"cpu": -4000, "pods": 10})
    odd = PodFact(uid="odd", name="odd", namespace="x", node="n", requests={"cpu": -1000}, phase="Running")
    judge = engine(broken, node("n", cpu=1), odd, gang("a"), gang("b", at=1))
    plan = judge.plan(1)
    assert admitted(plan) == ["a"], "the pod's minus does not make room"
    assert [warning.split(" ")[0] for warning in plan.warnings] == ["Node/broken", "Pod/x/odd"]
    judge.remove("Node/broken")
    judge.remove("Pod/odd")
    assert judge.plan(2).warnings == ()


def test_quota_nodes_without_parent_are_named_and_the_rest_counts():
    lost = QuotaSubtree(key="ns/lost", tree="t", parent="nowhere", nodes=(QuotaNode(name="leaf"),))
    root = QuotaSubtree(key="ns/root", tree="t", nodes=(QuotaNode(name="default", quota={"cpu": 1000}),))
    judge = engine(node("n"), lost, root, gang("a"), gang("b", labels={"t": "leaf"}), quota=True)
    plan = judge.plan(1)
    assert admitted(plan) == ["a"] and held(plan) == {"b": "quota"}
    assert any("'leaf' does not reach the root" in warning for warning in plan.warnings)


def test_a_selector_that_matches_nothing_is_said():
    plan = engine(node("n"), gang("a", pods(1, node_selector={"no": "such"}))).plan(1)
    assert why(plan, "a") == "none of 1 node(s) may run pod set main: they do not match its node selector or affinity"


def test_removing_what_is_not_there_is_harmless():
    judge = engine(node("n"))
    for key in ("Node/x", "Pod/x", "QuotaSubtree/x", "Namespace/x", "AppWrapper/a/b", "ClusterQueue/x", "nonsense", ""):
        judge.remove(key)
    assert judge.plan(1).is_empty


def test_a_pod_on_an_unknown_node_counts_once_the_node_is_known():
    judge = engine(pod("early", on="n", cpu=1), gang("a", pods(2)))
    assert admitted(judge.plan(1)) == []
    judge.update(node("n", cpu=2))
    assert admitted(judge.plan(2)) == []
    judge.remove("Pod/early")
    assert admitted(judge.plan(3)) == ["a"]


def test_a_gang_deleted_and_made_again_is_another_one():
    judge = engine(node("n", cpu=1), gang("a", uid="one"))
    judge.plan(1)
    judge.update(gang("a", uid="two"))
    plan = judge.plan(2)
    assert [admit.uid for admit in plan.admits] == ["two"], "the first one's room went with it"


def test_an_admitted_gang_without_a_stored_plan_still_holds_room():
    """After a restart that lost where its pods were to go, they are counted where they would fit."""
    admitted_before = msgspec.structs.replace(gang("a", pods(2)), state="admitted")
    judge = engine(node("n", cpu=3), admitted_before, gang("b", pods(2), at=1))
    assert admitted(judge.plan(1)) == []


def test_pods_that_ask_for_more_than_numbers_hold_keep_no_gang_up():
    """Also where there are none of them: a set of zero pods is placed without being counted."""
    vast = PodSet(name="vast", count=0, requests={"cpu": 10**30})
    judge = engine(node("n"), gang("none", vast), gang("one", msgspec.structs.replace(vast, count=1)), gang("small"))
    plan = judge.plan(1)
    assert sorted(admitted(plan)) == ["none", "small"]
    assert held(plan) == {"one": "resources"}


def test_nodes_asked_for_beyond_all_bounds_are_not_imagined_one_by_one():
    pool = NodePool(name="pool", allocatable={"cpu": 1000, "pods": 10}, obtainable=10**30)
    judge = engine(node("n", cpu=1), pool, gang("wide", pods(3), obtaining={"pool": 10**30}))
    assert held(judge.plan(1)) == {"wide": "obtaining"}


def test_a_quota_node_without_a_name_is_named_by_its_object_and_the_rest_counts():
    nameless = QuotaSubtree(key="ns/odd", tree="t", nodes=(QuotaNode(name=""), QuotaNode(name="default")))
    root = QuotaSubtree(key="ns/top", tree="t", parent="default", nodes=(QuotaNode(name="leaf"),))
    judge = engine(node("n"), nameless, root, gang("a", pods(0), labels={"t": "leaf"}), quota=True)
    plan = judge.plan(1)
    assert admitted(plan) == ["a"]
    assert [warning for warning in plan.warnings if "ns/odd: a node without a name" in warning]


def test_of_two_gangs_with_one_uid_the_later_told_counts():
    judge = engine(node("n", cpu=1), gang("bad", pods(-1), uid="same"), gang("good", uid="same"))
    plan = judge.plan(1)
    assert admitted(plan) == ["good"]
    assert "AppWrapper/default/good has the UID of AppWrapper/default/bad" in plan.warnings[0]
    judge.remove("AppWrapper/default/good")
    assert judge.explain("AppWrapper/default/bad") is None
    assert judge.plan(2).warnings == ()


def test_a_gang_at_the_front_may_be_edited_while_room_is_set_aside_for_it():
    judge = engine(node("n", cpu=4), gang("runs", pods(4)), policy="backfill")
    judge.plan(1)
    judge.update(gang("front", pods(3), at=1))
    assert judge.plan(2).is_empty
    judge.update(gang("front", pods(1, name="head"), pods(1, name="worker"), at=1))
    assert judge.plan(3).is_empty
    judge.remove("AppWrapper/default/runs")
    assert admitted(judge.plan(4)) == ["front"]
