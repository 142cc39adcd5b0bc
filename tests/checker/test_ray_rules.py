"""The rules for Ray find each kind of lie in a history written by hand, and let an honest one pass."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checker import normalize
from tests.checker.ray import CHECKS, CLUSTERS, JOBS, PODS

Json = dict[str, Any]


def cluster(revision: int, replicas: int = 1, **spec: Any) -> Json:
    group = {"groupName": "fish", "replicas": replicas, "minReplicas": 0, "maxReplicas": 9, **spec.pop("group", {})}
    return {
        "metadata": {"name": "reef", "uid": "c", "resourceVersion": str(revision)},
        "spec": {"workerGroupSpecs": [group], **spec},
    }


def pod(name: str, revision: int, kind: str = "worker", phase: str = "Running") -> Json:
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "resourceVersion": str(revision),
            "labels": {"ray.io/node-type": kind, "ray.io/group": "fish" if kind == "worker" else "headgroup"},
            "ownerReferences": [{"kind": "RayCluster", "uid": "c"}],
        },
        "status": {"phase": phase},
    }


def job(revision: int, **status: Any) -> Json:
    return {"metadata": {"name": "swim", "uid": "j", "resourceVersion": str(revision)}, "spec": {}, "status": status}


def seen(path: str, new: Json, event: str = "ADDED") -> Json:
    return {"verb": "event", "path": path, "event": event, "new": new}


def wrote(path: str, new: Json, verb: str = "create", **more: Any) -> Json:
    return {"verb": verb, "path": path, "new": new, **more}


def gone(old: Json, revision: int) -> Json:
    going = {**old, "metadata": {**old["metadata"], "resourceVersion": str(revision), "deletionTimestamp": "now"}}
    return wrote(PODS, going, "delete", old=old)


def held(revision: int) -> Json:
    marks = {"finalizers": ["ray.io/rayjob-finalizer"], "deletionTimestamp": "1970-01-01T00:00:00Z"}
    return {"metadata": {"name": "swim", "uid": "j", "resourceVersion": str(revision), **marks}}


def listed(revision: int, *pods: str) -> Json:
    items = [{"namespace": "", "name": name, "uid": name, "resourceVersion": "1"} for name in pods]
    return {"verb": "list", "path": PODS, "new": {"metadata": {"resourceVersion": str(revision)}, "items": items}}


def status(new: Json) -> Json:
    return wrote(JOBS, new, "patch", subresource="status")


SCALED_DOWN = cluster(9, 0, enableInTreeAutoscaling=True, group={"scaleStrategy": {"workersToDelete": ["w1"]}})

HONEST = {
    "a head after the last one ended": [
        wrote(PODS, pod("h1", 2, "head")),
        seen(PODS, pod("h1", 5, "head", "Failed"), "MODIFIED"),
        wrote(PODS, pod("h2", 6, "head")),
    ],
    "as many workers as wanted": [seen(CLUSTERS, cluster(1, 1)), wrote(PODS, pod("w1", 2))],
    "the one too many goes": [
        seen(CLUSTERS, cluster(1, 2)),
        wrote(PODS, pod("w1", 2)),
        wrote(PODS, pod("w2", 3)),
        seen(CLUSTERS, cluster(4, 1), "MODIFIED"),
        gone(pod("w2", 3), 5),
    ],
    "a named worker goes": [
        seen(CLUSTERS, cluster(1, 1, enableInTreeAutoscaling=True)),
        wrote(PODS, pod("w1", 2)),
        seen(CLUSTERS, SCALED_DOWN, "MODIFIED"),
        gone(pod("w1", 2), 10),
    ],
    "a head after the last one went, of which only a list tells": [
        wrote(PODS, pod("h1", 2, "head")),
        listed(5),
        wrote(PODS, pod("h2", 6, "head")),
    ],
    "a head under a name that is free again": [
        wrote(PODS, pod("h", 2, "head")),
        wrote(PODS, {**pod("h", 6, "head"), "metadata": {**pod("h", 6, "head")["metadata"], "uid": "h again"}}),
    ],
    "an answer that comes after the end was told": [
        seen(JOBS, held(3), "DELETED"),
        wrote(JOBS, held(2), "patch"),
        {"verb": "list", "path": PODS, "began": 10**9, "ended": 10**9},
    ],
    "a new attempt has a new id": [status(job(1, jobId="a")), status(job(2, jobId="")), status(job(3, jobId="b"))],
}

LIES = {
    "two heads, the first of which is listed": (
        "I32",
        [wrote(PODS, pod("h1", 2, "head")), listed(5, "h1"), wrote(PODS, pod("h2", 6, "head"))],
    ),
    "two heads": ("I32", [wrote(PODS, pod("h1", 2, "head")), wrote(PODS, pod("h2", 3, "head"))]),
    "a worker too many": (
        "I33",
        [seen(CLUSTERS, cluster(1, 1)), wrote(PODS, pod("w1", 2)), wrote(PODS, pod("w2", 3))],
    ),
    "a worker that was needed goes": (
        "I34",
        [seen(CLUSTERS, cluster(1, 1)), wrote(PODS, pod("w1", 2)), gone(pod("w1", 2), 3)],
    ),
    "an autoscaled worker goes that the autoscaler did not name": (
        "I34",
        [
            seen(CLUSTERS, cluster(1, 2, enableInTreeAutoscaling=True)),
            wrote(PODS, pod("w1", 2)),
            wrote(PODS, pod("w2", 3)),
            seen(CLUSTERS, SCALED_DOWN, "MODIFIED"),
            gone(pod("w2", 3), 10),
        ],
    ),
    "an id comes back": (
        "I35",
        [status(job(1, jobId="a")), status(job(2, jobId="")), status(job(3, jobId="a"))],
    ),
    "an end without a reason": ("I36", [status(job(1, jobDeploymentStatus="Failed", endTime="now"))]),
    "a success that Ray did not tell": (
        "I36",
        [status(job(1, jobDeploymentStatus="Complete", jobStatus="RUNNING", endTime="now"))],
    ),
    "a finalizer that stays": (
        "I37",
        [
            seen(JOBS, held(1)),
            {"verb": "list", "path": PODS, "began": 10**9, "ended": 10**9},
        ],
    ),
}


def broken(entries: list[Json]) -> set[str]:
    records = normalize(entries)
    return {violation.invariant for check in CHECKS.values() for violation in check(records)}


@pytest.mark.parametrize("entries", HONEST.values(), ids=HONEST)
def test_an_honest_history_passes(entries):
    assert broken(entries) == set()


@pytest.mark.parametrize("rule, entries", LIES.values(), ids=LIES)
def test_a_lie_is_found(rule, entries):
    assert broken(entries) == {rule}
