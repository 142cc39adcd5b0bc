"""The judge of gangs finds each lie, and lets an honest life pass."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.checker.gang_history import Write, violations
from tests.checker.gang_rules import SECOND, judge
from tests.checker.gang_world import Change

Json = dict[str, Any]


class Story:
    """A history written by hand; every step is one revision, ten minutes after the one before."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._there: dict[tuple[str, str], Json] = {}

    def put(self, collection: str, obj: Json) -> Story:
        key = (collection, obj["metadata"]["name"])
        number = len(self.changes) + 1
        self.changes.append(Change(number, collection, self._there.get(key), copy.deepcopy(obj), number * 600 * SECOND))
        self._there[key] = copy.deepcopy(obj)
        return self

    def drop(self, collection: str, name: str) -> Story:
        number = len(self.changes) + 1
        self.changes.append(
            Change(number, collection, self._there.pop((collection, name)), None, number * 600 * SECOND)
        )
        return self

    def forget(self, collection: str, name: str) -> Story:
        """The next one of that name comes as if none had been there."""
        del self._there[collection, name]
        return self

    def gang(self, name: str, state: str = "Pending", *, run: bool = False, cpu: int = 2, **more: Any) -> Story:
        """An AppWrapper around a ConfigMap of its name that declares one pod."""
        admission: Json = dict(more.get("admission") or {})
        if run:
            given = {"0.0": [1, {"cpu": cpu * 1000}, {"n": 1}]}
            base = {"epoch": 1, "generation": 1, "sets": given, "objects": [["v1", "ConfigMap", name]]}
            admission = {**base, **admission}
        item = {
            "generictemplate": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}},
            "custompodresources": [{"replicas": 1, "requests": {"cpu": str(cpu)}}],
        }
        status = {"state": state, "controllerfirsttimestamp": more.get("first", f"2026-01-01T00:00:00.{name}Z")}
        status.update({"canrun": True} if run else {})
        status.update({"admission": json.dumps(admission)} if admission else {})
        status["conditions"] = more.get("conditions", [])
        metadata = {"name": name, "namespace": "d", "uid": f"u-{name}", "generation": 1}
        metadata["labels"] = more.get("labels") or {}
        if "creator" in more:
            metadata["annotations"] = {"shoal.dev/created-by": json.dumps({"user": more["creator"]})}
        spec = {"priority": more.get("priority", 0), "resources": {"GenericItems": [item]}}
        return self.put("appwrappers", {"metadata": metadata, "spec": spec, "status": status})

    def made(self, name: str, of: str = "", kind: str = "configmaps", **more: Any) -> Story:
        owner = {"kind": "AppWrapper", "controller": True, "uid": f"u-{of or name}"}
        metadata = {"name": name, "namespace": "d", "uid": f"{kind}-{name}", "ownerReferences": [owner]}
        metadata.update({"namespace": more.pop("namespace")} if "namespace" in more else {})
        return self.put(kind, {"metadata": metadata, **more})

    def pod(self, name: str, of: str, phase: str = "Running", cpu: str = "2") -> Story:
        containers = [{"resources": {"requests": {"cpu": cpu}}}]
        return self.made(name, of, "pods", spec={"nodeName": "n", "containers": containers}, status={"phase": phase})

    def runs(self, name: str, **more: Any) -> Story:
        return self.gang(name, run=True, **more).made(name).gang(name, "Running", run=True, **more)


def town(cpu: int = 4) -> Story:
    status = {"allocatable": {"cpu": str(cpu)}, "conditions": [{"type": "Ready", "status": "True"}]}
    return Story().put("nodes", {"metadata": {"name": "n"}, "spec": {}, "status": status})


def told(reason: str = "Preempted") -> list[Json]:
    return [{"type": "PreemptCandidate", "status": "True", "reason": reason, "message": "because"}]


def tree(story: Story, root: str = "4", leaf: str = "2", used: Json | None = None) -> Story:
    def node(name: str, cpu: str, hard: bool = False) -> Json:
        return {"name": name, "quotas": {"requests": {"cpu": cpu}, "hardLimit": hard}}

    for name, parent, children in (("top", "", [node("root", root)]), ("low", "root", [node("a", leaf, True)])):
        shown = [{"name": one["name"], "allocated": {"requests": used or {}}} for one in children]
        metadata = {"name": name, "namespace": "d", "uid": name, "labels": {"team": "x", "tree": "team"}}
        spec = {"parent": parent, "children": children}
        story.put("quotasubtrees", {"metadata": metadata, "spec": spec, "status": {"children": shown}})
    return story


SEAT = {"seats": {"team": {"node": "a", "order": 1}}}
A = {"team": "a"}


def broken(story: Story, *, quiet: bool = False) -> set[str]:
    return {one.split(":")[0] for one in judge(story.changes, quiet=quiet, now=10**18)}


@pytest.mark.parametrize(
    "invariant, story",
    [
        ("I1", town().gang("g").made("g")),
        ("I1", town().gang("g", run=True).gang("g", admission={"epoch": 1}).made("g")),
        ("I2", town().runs("g").forget("configmaps", "g").made("g")),
        ("I8", town().runs("g", cpu=3).runs("h", cpu=2)),
        ("I10", town().gang("g", run=True, cpu=2, admission={"sets": {"0.0": [1, {"cpu": 9}, {}]}})),
        ("I11", town().runs("g").pod("p", "g").gang("g", admission={"epoch": 1})),
        ("I12", tree(town(), leaf="3").runs("g", labels=A, admission=SEAT).runs("h", labels=A, admission=SEAT)),
        ("I12", tree(town()).runs("g", labels=A, admission={"seats": {"team": {"node": "root", "order": 1}}})),
        ("I14", town().runs("g").gang("g", "Running", admission={"epoch": 1})),
        (
            "I14",
            town()
            .runs("g", priority=5)
            .gang("h", priority=5)
            .gang(
                "g",
                "Running",
                conditions=told(),
                priority=5,
                admission={"epoch": 1, "stopping": "Preempted", "stoppingFor": "u-h"},
            ),
        ),
        (
            "I15",
            town()
            .runs("v")
            .runs("w")
            .gang("h", priority=5, cpu=4)
            .gang(
                "v",
                "Running",
                conditions=told(),
                admission={
                    "epoch": 1,
                    "stopping": "Preempted",
                    "stoppingFor": "u-h",
                    "sets": {"0.0": [1, {"cpu": 2000}, {"n": 1}]},
                },
            )
            .drop("configmaps", "w")
            .drop("appwrappers", "w")
            .runs("x"),
        ),
        ("I20", town().runs("g").gang("g", "Completed", run=True)),
        ("I46", town().runs("g", creator="ann", admission={"by": "bob"})),
        ("I46", town().gang("g", run=True).made("g", namespace="elsewhere")),
        ("I20", town().gang("g", "Failed").gang("g", "Pending")),
        ("I20", town().runs("g", admission={"epoch": 3}).gang("g", "Running", run=True, admission={"epoch": 2})),
    ],
)
def test_each_lie_is_found(invariant: str, story: Story) -> None:
    assert invariant in broken(story)


@pytest.mark.parametrize(
    "invariant, story",
    [
        ("I3", town().gang("g", run=True)),
        ("I3", town().gang("g", run=True).gang("g", "Running", run=True)),
        ("I4", town().runs("g").gang("g", "Running", conditions=told(), admission={"epoch": 1, "stopping": "X"})),
        ("I5", town().gang("g", run=True).pod("p", "g").gang("g", "Deleted")),
        ("I6", town().runs("g").pod("p", "g").drop("appwrappers", "g")),
        ("I10", tree(town(), used={"cpu": "1"}).runs("g", labels=A, admission=SEAT)),
        ("I17", town(2).gang("a").gang("b").runs("b").gang("a")),
        ("I18", town().gang("g")),
    ],
)
def test_each_lie_is_found_at_rest(invariant: str, story: Story) -> None:
    assert invariant in broken(story, quiet=True)


def test_too_many_decisions_are_found() -> None:
    story = town()
    for number in range(1, 4):
        epoch = {"epoch": number}
        story.gang("g", run=True, admission=epoch)
        story.gang("g", admission={**epoch, "stopping": "Again"}, conditions=told("Again"))
        story.gang("g", admission=epoch)
    assert "I16" in broken(story, quiet=True)


def test_an_honest_life_passes() -> None:
    """Two take turns; one makes way for a third, with its cause; quota is as published."""
    story = town().runs("a").pod("p", "a").gang("b", cpu=4).drop("pods", "p").drop("configmaps", "a")
    story.gang("a", "Deleted", admission={"epoch": 1}).runs("b", cpu=4)
    going = {"epoch": 1, "stopping": "Preempted", "stoppingFor": "u-c"}
    story.gang("c", priority=9).gang("b", "Running", cpu=4, admission=going, conditions=told()).drop("configmaps", "b")
    story.gang("b", cpu=4, admission={"epoch": 1, "stoppingFor": "u-c"}, conditions=told()).runs("c", priority=9)
    assert judge(story.changes, quiet=True, now=10**18) == []
    assert broken(tree(town(), used={"cpu": "2"}).runs("g", labels=A, admission=SEAT), quiet=True) == set()


NODE_OF_TWO = town(2).changes[0].obj


@pytest.mark.parametrize("ago, says", [(1, set()), (60, {"I8"})])
def test_a_decision_on_its_way_while_a_node_shrinks_is_no_lie(ago: int, says: set[str]) -> None:
    """By revisions where no record has the time: a few may come between the look and the write, not many."""
    story = town(4).runs("g", cpu=2).put("nodes", NODE_OF_TWO)
    for number in range(ago):
        story.put("events", {"metadata": {"name": f"e{number}"}})
    assert broken_without_times(story.gang("h", run=True, cpu=2)) == says


@pytest.mark.parametrize("ago, says", [(1, set()), (60, {"I11"})])
def test_a_pod_that_comes_while_its_gang_goes_is_no_lie(ago: int, says: set[str]) -> None:
    """A Job's controller makes one more while the Job is being removed; the garbage collector takes it."""
    story = town().runs("g").pod("p", "g")
    for number in range(ago):
        story.put("events", {"metadata": {"name": f"e{number}"}})
    gone = {"epoch": 1, "stopping": "Preempted", "stoppingFor": "u-h"}
    story.gang("h", priority=5).gang("g", admission=gone, conditions=told()).gang("g", admission={"epoch": 1})
    assert broken_without_times(story) == says


@pytest.mark.parametrize("ago, says", [(1, set()), (60, {"I1"})])
def test_an_object_on_its_way_while_its_gang_is_taken_back_is_no_lie(ago: int, says: set[str]) -> None:
    gone = {"epoch": 1, "stopping": "Again"}
    story = town().gang("g", run=True).gang("g", admission=gone, conditions=told("Again"))
    for number in range(ago):
        story.put("events", {"metadata": {"name": f"e{number}"}})
    assert broken_without_times(story.made("g")) == says


def broken_without_times(story: Story) -> set[str]:
    return {one.split(":")[0] for one in judge([replace(change, at=0) for change in story.changes])}


def test_i4_a_gang_said_to_run_before_all_of_it_was_made_is_found() -> None:
    early = town().gang("a", run=True).gang("a", "Running", run=True)
    assert [one.split(":")[0] for one in judge(early.changes)] == ["I4"]
    assert judge(town().runs("a").changes) == []


@pytest.mark.parametrize(
    "method, owner, body, says",
    [
        ("PATCH", None, {"data": {}}, "changed an object that is not an AppWrapper's"),
        ("DELETE", None, {"preconditions": {"uid": "1"}}, "hit an object that is not an AppWrapper's"),
        ("DELETE", "AppWrapper", {}, "carries no UID"),
        ("DELETE", "AppWrapper", {"preconditions": {"uid": "1"}}, ""),
    ],
)
def test_i7_who_touches_a_stranger_is_found(method: str, owner: str | None, body: Json, says: str) -> None:
    references = [{"kind": owner, "controller": True, "uid": "u"}] if owner else []
    there = {"metadata": {"name": "c", "uid": "1", "ownerReferences": references}, "data": {"a": "b"}}
    write = Write(method, "/api/v1/namespaces/d/configmaps/c", body, there, {**there, "data": {}}, None, 200)
    found = violations([write])
    assert (says in found[0] if says else found == []) and all(one.startswith("I7") for one in found)
