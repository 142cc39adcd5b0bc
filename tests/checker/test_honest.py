"""Histories that look odd and are legal: the checker must stay silent, and still find the lie next to each.

Requests overlap, and end in another order than a server served them; watches tell of a write before its own answer
does; clocks stand still or step; servers die with the answer on their lips; other clients write that no recorder sees.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.checker.test_checker import GONE, LEASES, Script, condition, lease, thing

EARLY, LATE = "2026-01-01T00:00:09Z", "2026-01-01T00:00:20Z"
LATER, LATEST = "2026-01-01T00:00:21Z", "2026-01-01T00:00:22Z"
NAMESPACES, DEFINITIONS = "api/v1/namespaces", "apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ENDING = {"deletionTimestamp": "2026-01-01T00:00:30Z"}


def during(start: int, finish: int, at: int = 100) -> dict[str, Any]:
    """From one count to another, while the clock stands still."""
    return {"order": start, "finished": finish, "began": at, "ended": at}


def ready(status: str, time: str, **metadata: str) -> dict[str, Any]:
    return {"body": {"metadata": metadata, "status": condition(status, time)}}


def story(**more: Any) -> Script:
    return Script().add("create", thing(5), **more)


HONEST = {
    "two writers finish in the other order": Script()
    .add("create", thing(6, uid="u2", name="b"), **during(2, 3))
    .add("create", thing(5), **during(1, 4)),
    "the clock steps back while two writes are on their way": Script()
    .add("create", thing(6, uid="u2", name="b"), order=2, finished=3, began=50, ended=51)
    .add("create", thing(5), order=1, finished=4, began=100, ended=52),
    "an apply of what is there already, made before anybody looked": Script()
    .add("create", thing(9, uid="u2", name="b"))
    .add("patch", thing(5), body={"spec": {}}, query={"force": "true"}),
    "a write in vain by one who had never seen the object": Script()
    .add("create", thing(9, uid="u2", name="b"))
    .add("patch", thing(5), body={"spec": {}}),
    "a read served before a write that it overlaps, while the clock stands still": Script()
    .add("create", thing(5), **during(1, 3))
    .add("get", **during(2, 4), **GONE),
    "an older state read beside a write": Script()
    .add("create", thing(5), **during(1, 2))
    .add("patch", thing(6), body={"spec": {}}, **during(3, 5))
    .add("get", thing(5), **during(4, 6)),
    "a watch that tells of a write before its answer": Script()
    .add("watch", query={"resourceVersion": "4"})
    .add("event", thing(5), event="ADDED", watch=1, **during(3, 3))
    .add("create", thing(5), **during(2, 4)),
    "an answer that shows a write on its way": Script()
    .add("create", thing(5), **during(1, 2))
    .add("get", thing(6), **during(3, 5))
    .add("patch", thing(6), body={"spec": {}}, **during(4, 6)),
    "gone before the watch says so": story().add("get", **GONE).add("event", thing(7), event="DELETED", watch=1),
    "deleted by one whose requests are not here": Script().add("company").add("create", thing(5)).add("get", **GONE),
    "deleted by an answer that only says it failed": story()
    .add("delete", outcome="refused", code=504, reason="Timeout", body={"preconditions": {"uid": "u1"}})
    .add("get", **GONE),
    "a delete that ends after the read that no longer finds it": Script()
    .add("create", thing(5), **during(1, 2))
    .add("get", **during(4, 5), **GONE)
    .add("delete", thing(5), **during(3, 6)),
    "a collection deleted meanwhile": Script()
    .add("create", thing(5), **during(1, 2))
    .add("get", **during(4, 5), **GONE)
    .add("delete", name="", **during(3, 6)),
    "gone with its namespace": story().add("delete", path=NAMESPACES, name="team", namespace="").add("get", **GONE),
    "gone with its definition": story()
    .add("delete", path=DEFINITIONS, name="things.example.test", namespace="")
    .add("get", **GONE),
    "gone when others let go of it": story()
    .add("patch", thing(6, finalizers=["theirs"], **ENDING), body={"metadata": {"finalizers": ["theirs"]}})
    .add("get", **GONE),
    "its last finalizer taken by a write of which no client heard": story()
    .add("delete", thing(6, finalizers=["x"], **ENDING))
    .add("patch", outcome="unknown", body={"metadata": {"finalizers": None}})
    .add("get", **GONE),
    "gone with its owner": story()
    .add("patch", thing(6, ownerReferences=[{"uid": "o"}]), body={"metadata": {}})
    .add("list", {"metadata": {}, "items": []}, name=""),
    "a kind that is not served yet after a restart": story().add("crash").add("get", outcome="refused", code=404),
    "deleted and made again under the same name": story()
    .add("delete", thing(5), body={"preconditions": {"uid": "u1"}})
    .add("create", thing(8, uid="u2"))
    .add("get", thing(8, uid="u2"))
    .add("patch", thing(9, uid="u2"), body={"metadata": {"resourceVersion": "8"}}),
    "a condition that somebody else had stamped too early": Script()
    .add("create", thing(5, status=condition("True", EARLY)), marks={"foreign": "yes"})
    .add("patch", thing(6, status=condition("True", EARLY), labels={"a": "b"}), body={"metadata": {"labels": {}}}),
    "a condition that somebody unseen changed twice": Script()
    .add("create", thing(5, status=condition("True", LATE)))
    .add("patch", thing(8, status=condition("True", LATEST), labels={"a": "b"}), body={"metadata": {"labels": {}}}),
    "a condition that turned back and forth by a write of which no client heard": Script()
    .add("create", thing(5, status=condition("True", LATE)))
    .add("patch", outcome="unknown", **ready("False", LATER))
    .add("patch", thing(7, status=condition("True", LATEST)), **ready("True", LATEST, resourceVersion="6")),
    "what another had done already, as far as its own eyes saw": story(replica="r2")
    .add("patch", thing(6), replica="r2", body={"spec": {"x": 1}})
    .add("patch", thing(6), body={"spec": {"x": 1}}),
    "a repeat of a write of which no client heard, and which was done": story()
    .add("patch", outcome="unknown", body={"spec": {"x": 1}})
    .add("event", thing(6), event="MODIFIED", watch=9)
    .add("patch", thing(6), body={"spec": {"x": 1}}),
    "a generation that others observed wrongly": Script()
    .add("update", thing(5, generation=3, status={"observedGeneration": 3}), marks={"foreign": "yes"})
    .add("update", thing(6, generation=3, status={"observedGeneration": 2}), marks={"foreign": "yes"})
    .add("patch", thing(7, generation=3, status={"observedGeneration": 2}, labels={}), body={"metadata": {}})
    .add("get", thing(8, generation=3, status={"observedGeneration": 9})),
    "a write on its way when calm is declared": Script()
    .add("quiet", **during(2, 2))
    .add("create", thing(5), **during(1, 3)),
    "texts that tell of what others do": Script()
    .add("create", thing(5, status={"message": "a"}))
    .add("create", thing(6, uid="u2", name="b"))
    .add("patch", thing(7, status={"message": "b"}))
    .add("create", thing(8, uid="u3", name="c"))
    .add("patch", thing(9, status={"message": "c"}))
    .add("delete", thing(6, uid="u2", name="b"))
    .add("patch", thing(11, status={"message": "d"})),
    "a leader who deletes what is older than its term": Script()
    .add("create", thing(5))
    .add("create", lease(8, "r1", 1), path=LEASES)
    .add("delete", thing(5), term=1, body={"preconditions": {"uid": "u1"}}),
    "a leader who takes the last finalizer": Script()
    .add("create", lease(8, "r1", 1), path=LEASES)
    .add("patch", thing(5, **ENDING), term=1, body={"metadata": {"resourceVersion": "5"}}),
    "two writers at once, one of which never hears": Script()
    .add("patch", thing(6), body={"status": {"n": 2}}, **during(2, 3))
    .add("patch", outcome="unknown", body={"status": {"n": 1}}, **during(1, 4)),
    "another field, by another controller": story()
    .add("patch", outcome="unknown", body={"status": {"n": 1}})
    .add("patch", thing(7, labels={"a": "b"}), body={"metadata": {"labels": {"a": "b"}}}),
    "two that leave their names to the server": Script()
    .add("create", outcome="unknown", body={"metadata": {"generateName": "a-"}}, name="")
    .add("create", thing(5, name="b-1"), body={"metadata": {"generateName": "b-"}}),
    "looked, and nothing there": Script()
    .add("create", outcome="unknown", body={"metadata": {"generateName": "a-"}}, name="a")
    .add("delete", outcome="unknown", body={})
    .add("get", **GONE)
    .add("delete", **GONE, body={}),
    "looked by a list that a watch begins with": story()
    .add("patch", outcome="unknown", body={"status": {"n": 1}})
    .add("watch", query={"sendInitialEvents": "true"}, name="")
    .add("patch", thing(7), body={"status": {"n": 2}}),
    "a revision that does not matter": story()
    .add("patch", thing(6), replica="r2", body={"spec": {}})
    .add("update", thing(7), body={"metadata": {"resourceVersion": "0"}}),
}

LIES = {
    "the later write by count got the earlier revision": (
        "I28",
        Script().add("create", thing(6), **during(1, 2)).add("create", thing(5, uid="u2", name="b"), **during(3, 4)),
    ),
    "a write from a known revision got an earlier one than another had before": (
        "I28",
        Script()
        .add("create", thing(9, uid="u2", name="b"))
        .add("update", thing(8), body={"metadata": {"resourceVersion": "5"}}),
    ),
    "not there after it was acknowledged, while the clock stood still": (
        "I29",
        Script().add("create", thing(5), **during(1, 2)).add("get", **during(3, 4), **GONE),
    ),
    "gone before anybody asked for it": (
        "I29",
        story().add("get", **GONE).add("delete", thing(5), body={"preconditions": {"uid": "u1"}}),
    ),
    "gone with a namespace that is not its own": (
        "I29",
        story().add("delete", path=NAMESPACES, name="other", namespace="").add("get", **GONE),
    ),
    "gone with a definition that is not its own": (
        "I29",
        story().add("delete", path=DEFINITIONS, name="others.example.test", namespace="").add("get", **GONE),
    ),
    "a time sent too early": (
        "I19",
        Script()
        .add("create", thing(5))
        .add("patch", thing(6, status=condition("True", EARLY)), **ready("True", EARLY)),
    ),
    "a time sent again for the same value, after an unknown write of something else": (
        "I19",
        Script()
        .add("create", thing(5, status=condition("True", LATE)))
        .add("patch", outcome="unknown", body={"metadata": {"resourceVersion": "5"}})
        .add("get", thing(5, status=condition("True", LATE)))
        .add("patch", thing(7, status=condition("True", LATEST)), **ready("True", LATEST)),
    ),
    "in vain by one whose own watch had shown it": (
        "I21",
        Script().add("event", thing(5), event="ADDED", watch=9).add("patch", thing(5), body={"spec": {}}),
    ),
    "a generation sent that is not there yet": (
        "I22",
        story().add("patch", thing(6, status={"observedGeneration": 2}), body={"status": {"observedGeneration": 2}}),
    ),
    "chatter, although another came before": (
        "I23",
        Script()
        .add("create", thing(4, uid="u2", name="b"))
        .add("create", thing(5, status={"message": "a"}))
        .add("patch", thing(6, status={"message": "b"}))
        .add("patch", thing(7, status={"message": "c"}))
        .add("patch", thing(8, status={"message": "d"})),
    ),
    "unnamed and repeated, and the server gave a name": (
        "I31",
        Script()
        .add("create", outcome="unknown", body={"metadata": {"generateName": "a-"}}, name="")
        .add("create", thing(5, name="a-1"), body={"metadata": {"generateName": "a-"}}),
    ),
    "another value for the field whose fate is unknown": (
        "I31",
        story()
        .add("patch", outcome="unknown", body={"status": {"n": 1}})
        .add("patch", thing(6), body={"status": {"n": 2}}),
    ),
    "a leader who writes after its term": (
        "I24",
        Script()
        .add("create", lease(3, "r1", 1), path=LEASES)
        .add("update", lease(6, "r2", 2), path=LEASES, replica="r2")
        .add("patch", thing(7), term=1, old=thing(5), body={"metadata": {"resourceVersion": "5"}}),
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_a_legal_history_passes(name: str) -> None:
    assert HONEST[name].broken == set()


@pytest.mark.parametrize("name", LIES)
def test_the_lie_beside_it_is_found(name: str) -> None:
    invariant, script = LIES[name]
    assert script.broken == {invariant}
