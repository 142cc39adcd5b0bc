"""Each rule by which room, order and quota trees decide who of AppWrappers may start: a stored world in which one waits
wrongly beside an equal one in which it waits rightly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.checker.at_rest import Rules
from tests.checker.rest_build import NOW, World, template
from tests.checker.rest_pods import Counting

Json = dict[str, Any]
RULES = Rules(now=NOW)
PREEMPTING = Rules(now=NOW, preemption=True)
FITS = "I18: AppWrapper default/mine waits although it fits"


def put(world: World, name: str, *items: Json, priority: int = 0, status: Json | None = None, **spec: Any) -> Json:
    """An AppWrapper that waits, unless its status says otherwise."""
    wrapped = [{"generictemplate": one} for one in items]
    spec = {"priority": priority, "resources": {"GenericItems": wrapped}, **spec}
    status = status or {"state": "Pending", "queuejobstate": "Backoff", "message": "waits"}
    return world.put("appwrappers", name, kind="AppWrapper", spec=spec, status=status)


def pod(cpu: str) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **template(cpu)}


def running(world: World, name: str, cpu: int, priority: int = 0, seat: str = "", **labels: str) -> Json:
    """An AppWrapper of one pod that runs."""
    admission: Json = {"epoch": 1, "sets": {"a": [1, {"cpu": 1000 * cpu}, {"node": 1}]}}
    if seat:
        admission["seats"] = {"tree": [seat, len(world.objects.get("appwrappers", []))]}
    status = {"state": "Running", "canrun": True, "queuejobstate": "Dispatched", "admission": json.dumps(admission)}
    made = put(world, name, {**pod(str(cpu)), "metadata": {"name": f"{name}-0"}}, priority=priority, status=status)
    made["metadata"]["labels"] = labels
    world.pod(f"{name}-0", made, "node", str(cpu))
    return made


def said(found: list[str]) -> list[str]:
    return [one.split(" (")[0] for one in found]


# --- what is wrapped

JOB = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"parallelism": 5, "completions": 3, "template": template("1")}}
DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 3, "template": template("1")}}
CLUSTER_SPEC = {
    "headGroupSpec": {"template": template("1")},
    "workerGroupSpecs": [{"replicas": 1, "numOfHosts": 2, "template": template("1")}],
}
RAY_CLUSTER = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "spec": CLUSTER_SPEC}
RAY_JOB = {
    "apiVersion": "ray.io/v1",
    "kind": "RayJob",
    "spec": {"rayClusterSpec": {"headGroupSpec": CLUSTER_SPEC["headGroupSpec"]}},
}
JOB_SET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "spec": {"replicatedJobs": [{"replicas": 3, "template": {"spec": {"template": template("1")}}}]},
}
LEADERS = {
    "apiVersion": "leaderworkerset.x-k8s.io/v1",
    "kind": "LeaderWorkerSet",
    "spec": {"leaderWorkerTemplate": {"size": 3, "leaderTemplate": template("1"), "workerTemplate": template("1")}},
}


@pytest.mark.parametrize("wrapped", [JOB, DEPLOYMENT, RAY_CLUSTER, JOB_SET, LEADERS], ids=lambda one: one["kind"])
def test_what_is_wrapped_needs_room_for_its_pods(wrapped: Json) -> None:
    """Three pods of one cpu each."""
    for cpu, expected in (("3", [FITS]), ("2", [])):
        world = World()
        world.node(cpu=cpu)
        put(world, "mine", wrapped)
        assert said(world.found(RULES)) == expected


def test_a_ray_job_needs_room_for_the_pod_that_submits_it() -> None:
    for cpu, expected in (("1500m", [FITS]), ("1400m", [])):
        world = World()
        world.node(cpu=cpu)["status"]["allocatable"]["memory"] = "1Gi"
        put(world, "mine", RAY_JOB)
        assert said(world.found(RULES)) == expected


def test_workers_that_scale_count_as_administrators_chose() -> None:
    group = {"replicas": 1, "minReplicas": 0, "maxReplicas": 2, "template": template("1")}
    options = {"resources": {"requests": {"cpu": "0"}}}
    spec = {**CLUSTER_SPEC, "enableInTreeAutoscaling": True, "autoscalerOptions": options, "workerGroupSpecs": [group]}
    world = World()
    world.node(cpu="2")
    put(world, "mine", {**RAY_CLUSTER, "spec": spec})
    assert said(world.found(RULES)) == [FITS]
    assert world.found(Rules(now=NOW, counting=Counting("maximum"))) == []


def test_declared_resources_count_instead_of_the_template() -> None:
    world = World()
    world.node(cpu="3")
    made = put(world, "mine", pod("1"))
    (item,) = made["spec"]["resources"]["GenericItems"]
    item["custompodresources"] = [{"replicas": 2, "requests": {"cpu": "2"}}]
    assert world.found(RULES) == []
    item["custompodresources"] = [{"replicas": 1, "limits": {"cpu": "3"}}]
    assert said(world.found(RULES)) == [FITS]


def test_components_need_room_as_declared() -> None:
    """A kind that the controllers do not know says by path where its pods are."""
    strange = {"kind": "Train", "metadata": {"name": "train"}, "spec": {"groups": [{"template": template("2")}]}}
    for replicas, expected in ((1, [FITS]), (2, [])):
        world = World()
        world.node(cpu="3")
        sets = [{"path": "template.spec.groups[0].template", "replicas": replicas}]
        spec = {"components": [{"template": strange, "podSets": sets}]}
        world.put("appwrappers", "mine", kind="AppWrapper", spec=spec, status={"phase": "Suspended"})
        assert said(world.found(RULES)) == expected


def test_an_unknown_kind_is_undecided() -> None:
    world = World()
    world.node()
    put(world, "mine", {"kind": "Train", "spec": {"groups": [{"template": template("2")}]}})
    assert world.undecided(RULES) == ["AppWrapper default/mine: what pods a Train has"]


def test_one_that_cannot_be_read_is_undecided() -> None:
    world = World()
    world.put("appwrappers", "mine", kind="AppWrapper", spec="nothing", status={})
    world.objects["appwrappers"].append({"kind": "AppWrapper", "metadata": {"name": "bare", "uid": "bare"}})
    named = Rules(now=NOW, wrappers=True, queues=False, ray=False)
    assert [one.partition(": ")[2] for one in _doubts(world, named)] == ["its spec cannot be read"] * 2


def _doubts(world: World, rules: Rules) -> list[str]:
    from tests.checker.rest_objects import Stored
    from tests.checker.rest_room import Room
    from tests.checker.rest_wrappers import Wrappers

    stored = Stored(world.objects)
    return Wrappers(stored, rules).judge(Room(stored, [])).undecided


def test_limits_of_a_namespace_that_change_its_pods_leave_it_undecided() -> None:
    world = World()
    world.node()
    put(world, "mine", pod("1"))
    world.put("limitranges", "small", spec={"limits": [{"type": "Container", "max": {"cpu": "500m"}}]})
    assert world.undecided(RULES) == ["AppWrapper default/mine: limits of its namespace"]


def test_sums_are_enough_where_administrators_chose_so() -> None:
    rules = Rules(now=NOW, wrapper_supply="aggregate")
    for cpu, expected in (("4", [FITS]), ("5", [])):
        world = World()
        world.node("one", cpu="2")
        world.node("two", cpu="2")
        put(world, "mine", pod(cpu))
        assert said(world.found(rules)) == expected
        assert world.found(RULES) == []


# --- order


def _line(policy: str) -> list[str]:
    world = World()
    world.node(cpu="2")
    put(world, "large", pod("3"), priority=5)
    put(world, "mine", pod("1"))
    return said(world.found(Rules(now=NOW, policy=policy)))


def test_only_a_strict_policy_keeps_a_gang_behind_the_first() -> None:
    assert _line("priority") == [FITS]
    assert _line("strict-priority") == []


def test_the_first_of_a_strict_line_starts() -> None:
    world = World()
    world.node(cpu="2")
    put(world, "mine", pod("1"), priority=5)
    put(world, "later", pod("1"))
    assert said(world.found(Rules(now=NOW, policy="strict-priority"))) == [FITS]


def test_room_that_may_be_kept_for_the_first_leaves_others_undecided() -> None:
    world = World()
    world.node(cpu="2")
    put(world, "large", pod("3"), priority=5)
    put(world, "mine", pod("1"))
    put(world, "huge", pod("9"))
    rules = Rules(now=NOW, policy="backfill")
    assert world.undecided(rules) == ["AppWrapper default/mine: room is kept for the first in line"]


# --- priority


def _crowded(theirs: int) -> World:
    world = World()
    world.node(cpu="2")
    running(world, "other", 2, priority=theirs)
    put(world, "mine", pod("2"), priority=5)
    return world


def test_a_higher_priority_takes_the_place_of_a_lower_one_where_that_is_on() -> None:
    expected = ["I18: AppWrapper default/mine waits although it may take the place of default/other"]
    assert said(_crowded(1).found(PREEMPTING)) == expected
    assert _crowded(1).found(RULES) == []
    assert _crowded(5).found(PREEMPTING) == []
    assert _crowded(1).found(Rules(now=NOW, preemption=True, policy="fifo")) == []


def test_no_gang_is_preempted_in_vain() -> None:
    world = _crowded(1)
    world.pod("stranger", None, "node", "1")
    assert world.found(PREEMPTING) == []


# --- quota trees


def _tree(hard: bool = False, right: str = "2") -> World:
    """`left` has 2 cpus of its own, `right` as many; both are below a root of 4."""
    world = World()
    world.node(cpu="16")
    labels = {"tree": "tree"}

    def node(name: str, cpu: str, hard: bool = False) -> Json:
        return {"name": name, "quotas": {"hardLimit": hard, "requests": {"cpu": cpu}}}

    world.put(
        "quotasubtrees",
        "root",
        kind="QuotaSubtree",
        metadata={"labels": labels},
        spec={"parent": "nil", "children": [node("root", "4")]},
    )
    below = [node("left", "2", hard), node("right", right)]
    world.put(
        "quotasubtrees",
        "below",
        kind="QuotaSubtree",
        metadata={"labels": labels},
        spec={"parent": "root", "children": below},
    )
    return world


def mine(world: World, cpu: str, leaf: str = "left", priority: int = 0) -> None:
    put(world, "mine", pod(cpu), priority=priority)["metadata"]["labels"] = {"tree": leaf}


def found_in(world: World, rules: Rules = RULES) -> list[str]:
    return [one for one in said(world.found(rules)) if not one.startswith("I10")]


def test_quota_of_a_tree_is_borrowed_up_to_the_root() -> None:
    for cpu, expected in (("4", [FITS]), ("5", [])):
        world = _tree()
        mine(world, cpu)
        assert found_in(world) == expected


def test_a_hard_node_lends_nothing_to_those_below_it() -> None:
    for cpu, expected in (("2", [FITS]), ("3", [])):
        world = _tree(hard=True)
        mine(world, cpu)
        assert found_in(world) == expected


def _borrowed() -> World:
    """`right` has borrowed what is of `left`, in one gang."""
    world = _tree()
    running(world, "other", 4, priority=9, seat="root", tree="right")
    return world


def test_a_borrower_is_pushed_out_of_a_tree_by_a_gang_that_stays_within_its_own() -> None:
    world = _borrowed()
    mine(world, "2")
    expected = ["I18: AppWrapper default/mine waits although it may take the place of default/other"]
    assert found_in(world, PREEMPTING) == expected
    assert found_in(world) == []  # no gang is pushed out where preemption is off


def test_a_borrower_does_not_push_out_a_higher_priority() -> None:
    world = _borrowed()
    mine(world, "3")
    assert found_in(world, PREEMPTING) == []


def test_who_pushes_somebody_out_of_a_tree_needs_room() -> None:
    world = _borrowed()
    mine(world, "2")
    world.objects["nodes"][0]["status"]["allocatable"]["cpu"] = "5"
    world.pod("stranger", None, "node", "1")
    assert len(found_in(world, PREEMPTING)) == 1
    world.pod("another", None, "node", "3")
    assert found_in(world, PREEMPTING) == []


def test_who_once_made_way_leaves_pushing_out_undecided() -> None:
    world = _borrowed()
    mine(world, "2")
    world.objects["appwrappers"][1]["status"]["admission"] = json.dumps({"stoppingFor": "appwrappers-other"})
    rules = Rules(now=NOW, preemption=True, skipped=frozenset({"I10"}))  # nothing is published here
    assert world.undecided(rules) == ["AppWrapper default/mine: it depends on which gang once made way for which"]
