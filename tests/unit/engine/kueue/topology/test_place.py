"""Where pods go in a topology, by small examples."""

from __future__ import annotations

import pytest

from shoal.engine.kueue.topology import Placer, Repair, TopologySettings, TopologyTree, TopologyWish
from shoal.engine.kueue.topology.request import SliceLayer
from shoal.engine.model import NodeFact, Taint
from tests.unit.engine.kueue.topology.build import (
    ANYWHERE,
    BLOCK,
    CPU,
    PREFERRED_RACK,
    RACK,
    REQUIRED_RACK,
    cluster,
    node,
    placed,
    places,
    pods,
)

TWO_RACKS = {"a": {"a1": 2, "a2": 2}, "b": {"b1": 3, "b2": 3}}


def test_a_required_rack_is_the_smallest_that_takes_all():
    assert placed(cluster(TWO_RACKS), pods(4, REQUIRED_RACK)) == {"main": {"a1": 2, "a2": 2}}
    assert placed(cluster(TWO_RACKS), pods(5, REQUIRED_RACK)) == {"main": {"b1": 3, "b2": 2}}


def test_a_required_rack_that_is_too_small_is_refused_with_what_fits():
    assert placed(cluster(TWO_RACKS), pods(7, REQUIRED_RACK)) == {
        "main": 'topology "racks" allows to fit only 6 out of 7 pod(s)'
    }


def test_a_preferred_rack_gives_way_to_several():
    assert placed(cluster(TWO_RACKS), pods(7, PREFERRED_RACK)) == {"main": {"a1": 1, "b1": 3, "b2": 3}}


def test_unconstrained_pods_go_to_the_fullest_nodes():
    assert placed(cluster(TWO_RACKS), pods(2, ANYWHERE)) == {"main": {"a1": 2}}
    assert placed(cluster(TWO_RACKS), pods(3, ANYWHERE)) == {"main": {"b1": 3}}


def test_slices_stay_whole_within_their_rack():
    slices = TopologyWish(preferred=RACK, layers=(SliceLayer(RACK, 3),))
    assert placed(cluster(TWO_RACKS), pods(9, slices)) == {"main": {"a1": 2, "a2": 1, "b1": 3, "b2": 3}}


def test_a_head_finds_its_place_beside_its_workers():
    racks = {"a": {"a1": 4}, "b": {"b1": 5}}
    head, workers = pods(1, REQUIRED_RACK, name="head", group="ray"), pods(4, REQUIRED_RACK, name="work", group="ray")
    assert placed(cluster(racks), head, workers) == {"head": {"b1": 1}, "work": {"b1": 4}}


def test_pod_sets_of_one_gang_do_not_take_the_same_room():
    tree = cluster({"a": {"a1": 2}, "b": {"b1": 2}})
    both = placed(tree, pods(2, REQUIRED_RACK, name="one"), pods(2, REQUIRED_RACK, name="two"))
    assert both == {"one": {"a1": 2}, "two": {"b1": 2}}


def test_balanced_placement_spreads_evenly():
    tree = cluster({"a": {"a1": 4, "a2": 4}})
    wish = TopologyWish(preferred=RACK)
    assert placed(tree, pods(6, wish)) == {"main": {"a1": 4, "a2": 2}}
    assert placed(tree, pods(6, wish), settings=TopologySettings(balanced=True)) == {"main": {"a1": 3, "a2": 3}}


def test_nodes_that_are_out_of_the_question_are_counted_with_their_reason():
    tainted = NodeFact(
        name="t", labels={"kubernetes.io/hostname": "t", RACK: "a"}, allocatable={"cpu": CPU, "pods": 5},
        taints=(Taint("team", "x", "NoSchedule"),),
    )  # fmt: skip
    tree = TopologyTree("racks", (RACK, "kubernetes.io/hostname"), [tainted, node("full", 0, {RACK: "a"})])
    assert placed(tree, pods(1, ANYWHERE)) == {
        "main": 'topology "racks" doesn\'t allow to fit any of 1 pod(s). Total nodes: 2;'
        ' excluded: resource "cpu": 1, taint "team=x:NoSchedule": 1'
    }


@pytest.mark.parametrize(
    "wish, failure",
    [
        (TopologyWish(required="unheard"), "no requested topology level: unheard"),
        (TopologyWish(), "topology level not specified"),
        (
            TopologyWish(required="kubernetes.io/hostname", layers=(SliceLayer(RACK, 2),)),
            f"podset slice topology {RACK} is above the podset topology kubernetes.io/hostname",
        ),
        (
            TopologyWish(required=RACK, layers=(SliceLayer(RACK, 0),)),
            "slice topology requested, but slice size not provided",
        ),
        (
            TopologyWish(required=RACK, layers=(SliceLayer(RACK, 3), SliceLayer("kubernetes.io/hostname", 2))),
            "additional slice layer size 2 must evenly divide parent layer size 3",
        ),
    ],
)
def test_a_wish_that_no_placement_can_meet_is_refused_by_name(wish, failure):
    assert placed(cluster(TWO_RACKS), pods(6, wish)) == {"main": failure}


def repaired(tree: TopologyTree, wish: TopologyWish, count: int, failed: str) -> dict[str, int] | str:
    """Place pods, lose a node, and place its pods once more."""
    wanted = pods(count, wish)
    before = Placer(tree).place([wanted])["main"].placement
    assert before is not None
    tree.use(before, wanted.requests)
    left = TopologyTree(
        tree.name, tree.levels, [leaf.node for leaf in tree.leaves.values() if leaf.node and leaf.node.name != failed]
    )
    left.use(before, wanted.requests)
    return places(Placer(left).place([wanted], Repair(failed, {"main": before}))["main"])


def test_the_pods_of_a_failed_node_stay_in_the_required_rack():
    racks = {"a": {"a1": 2, "a2": 2, "a3": 1}, "b": {"b1": 9}}
    wish = TopologyWish(required=RACK)
    assert placed(cluster(racks), pods(3, wish)) == {"main": {"a1": 2, "a3": 1}}
    assert repaired(cluster(racks), wish, 3, "a3") == {"a1": 2, "a2": 1}
    assert "topologyDomain: 1" in str(repaired(cluster(racks), wish, 4, "a1"))


def test_unconstrained_pods_of_a_failed_node_go_anywhere():
    assert repaired(cluster({"a": {"a1": 2}, "b": {"b1": 4}}), ANYWHERE, 2, "a1") == {"b1": 2}


def test_a_block_above_racks_takes_what_no_rack_can():
    nodes = [node("x1", 2, {BLOCK: "one", RACK: "r1"}), node("x2", 2, {BLOCK: "one", RACK: "r2"})]
    nodes += [node("y1", 3, {BLOCK: "two", RACK: "r3"}), node("y2", 9, {BLOCK: "two", RACK: "r4"})]
    tree = TopologyTree("blocks", (BLOCK, RACK, "kubernetes.io/hostname"), nodes)
    assert placed(tree, pods(4, TopologyWish(required=BLOCK))) == {"main": {"x1": 2, "x2": 2}}
    assert placed(tree, pods(10, PREFERRED_RACK)) == {"main": {"y1": 1, "y2": 9}}


def test_without_nodes_as_lowest_level_the_whole_path_is_the_answer():
    nodes = [node("x1", 2, {BLOCK: "one", RACK: "r1"}), node("x2", 3, {BLOCK: "one", RACK: "r1"})]
    tree = TopologyTree("racks", (BLOCK, RACK), nodes)
    found = Placer(tree).place([pods(5, TopologyWish(required=RACK))])["main"].placement
    assert found is not None
    assert found.levels == (BLOCK, RACK)
    assert [(domain.values, domain.count) for domain in found.domains] == [(("one", "r1"), 5)]
