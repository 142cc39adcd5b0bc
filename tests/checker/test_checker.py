"""The checker itself: it lets true histories pass and finds each kind of lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.api.kinds import CONFIG_MAP, LEASE
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from shoal.kube.errors import KubeError
from shoal.kube.history import History, RecordingTransport
from tests.checker import check, from_audit
from tests.embedded import Embedded

THINGS = "apis/example.test/v1/things"


def thing(
    revision: int, *, uid: str = "u1", generation: int = 1, status: Any = None, **metadata: Any
) -> dict[str, Any]:
    meta = {"name": "a", "namespace": "team", "uid": uid, "resourceVersion": str(revision), "generation": generation}
    return {"metadata": {**meta, "creationTimestamp": "2026-01-01T00:00:10Z", **metadata}, "status": status or {}}


class Script:
    """A history written by hand: each request takes one unit of time."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def add(self, verb: str, new: Any = None, **values: Any) -> Script:
        order = len(self.entries) + 1
        metadata = (new or {}).get("metadata", {})
        entry = {
            "order": order, "began": order * 10, "ended": order * 10 + 5, "replica": "r1", "verb": verb, "path": THINGS,
            "namespace": "team", "name": metadata.get("name", "a"), "uid": metadata.get("uid", "u1"), "new": new,
        }  # fmt: skip
        self.entries.append({**entry, **values})
        return self

    @property
    def broken(self) -> set[str]:
        return {violation.invariant for violation in check(self.entries)}


def condition(status: str, time: str, **more: Any) -> dict[str, Any]:
    return {"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": time, **more}]}


def lease(revision: int, holder: str, number: int) -> dict[str, Any]:
    spec = {"holderIdentity": holder, "leaseTransitions": number}
    return {"metadata": {"name": "l", "uid": "lease", "resourceVersion": str(revision)}, "spec": spec}


GONE: dict[str, Any] = {"outcome": "refused", "code": 404, "reason": "NotFound"}
LEASES = "apis/coordination.k8s.io/v1/leases"


@pytest.mark.parametrize(
    "invariant, script",
    [
        # I19: times of conditions
        ("I19", Script().add("create", thing(5, status=condition("True", "2025-12-31T23:59:09Z")))),
        (
            "I19",
            Script().add("create", thing(5)).add("patch", thing(6, status=condition("True", "2026-01-01T00:00:09Z"))),
        ),
        (
            "I19",
            Script()
            .add("create", thing(5, status=condition("True", "2026-01-01T00:00:09Z")))
            .add("patch", thing(6, status=condition("False", "2026-01-01T00:00:09Z"))),
        ),
        (
            "I19",
            Script()
            .add("create", thing(5, status=condition("True", "2026-01-01T00:00:20Z")))
            .add("patch", thing(6, status=condition("False", "2026-01-01T00:00:19Z"))),
        ),
        (
            "I19",
            Script()
            .add("create", thing(5, status=condition("True", "2026-01-01T00:00:20Z")))
            .add("patch", thing(6, status=condition("True", "2026-01-01T00:00:21Z"))),
        ),
        # I21: nothing changed
        ("I21", Script().add("create", thing(5)).add("patch", thing(5))),
        (
            "I21",
            Script()
            .add("delete", thing(5, finalizers=["x"], deletionTimestamp="2026-01-01T00:00:30Z"))
            .add("patch", thing(5, finalizers=["x"], deletionTimestamp="2026-01-01T00:00:30Z")),
        ),
        # I22: observed generations
        ("I22", Script().add("create", thing(5)).add("patch", thing(6, status={"observedGeneration": 2}))),
        (
            "I22",
            Script()
            .add("patch", thing(5, generation=3, status={"observedGeneration": 3}))
            .add("patch", thing(6, generation=3, status={"observedGeneration": 2})),
        ),
        # I23: quiet, and texts only
        ("I23", Script().add("create", thing(5)).add("quiet").add("patch", thing(6, generation=2))),
        (
            "I23",
            Script()
            .add("create", thing(5, status={"message": "a"}))
            .add("patch", thing(6, status={"message": "b"}))
            .add("patch", thing(7, status={"message": "c"}))
            .add("patch", thing(8, status={"message": "d"})),
        ),
        # I24: terms
        ("I24", Script().add("create", lease(3, "r2", 1), path=LEASES).add("create", thing(5), term=1)),
        (
            "I24",
            Script()
            .add("create", lease(3, "r1", 1), path=LEASES)
            .add("update", lease(6, "r2", 2), path=LEASES, replica="r2")
            .add("create", thing(7), term=1),
        ),
        (
            "I24",
            Script()
            .add("create", lease(3, "r1", 1), path=LEASES)
            .add("create", thing(5), term=1)
            .add("synced", term=1),
        ),
        (
            "I24",
            Script()
            .add("create", lease(3, "r1", 1), path=LEASES)
            .add("update", lease(4, "r2", 1), path=LEASES, replica="r2"),
        ),
        # I25: after the loss
        (
            "I25",
            Script().add("create", lease(3, "r1", 1), path=LEASES).add("stop", term=1).add("create", thing(5), term=1),
        ),
        # I26: watches
        *[
            (
                "I26",
                Script()
                .add("watch", query={"resourceVersion": "4"})
                .add("event", thing(first), event=kind, watch=1)
                .add("event", thing(second), event="MODIFIED", watch=1),
            )
            for first, kind, second in [(6, "MODIFIED", 5), (6, "ADDED", 6), (4, "ADDED", 6), (8, "BOOKMARK", 7)]
        ],
        (
            "I26",
            Script()
            .add("create", thing(5))
            .add("create", thing(6, uid="u2", name="b"))
            .add("watch", query={"resourceVersion": "4"})
            .add("event", thing(6, uid="u2", name="b"), event="ADDED", watch=3),
        ),
        # I27, I29: what was acknowledged
        ("I29", Script().add("create", thing(5)).add("get", thing(4))),
        ("I29", Script().add("create", thing(5)).add("get", **GONE)),
        ("I29", Script().add("create", thing(5)).add("list", {"metadata": {}, "items": []}, name="")),
        (
            "I27",
            Script().add("create", thing(5)).add("crash").add("get", **GONE),
        ),
        # I28: revisions
        ("I28", Script().add("create", thing(5)).add("create", thing(4, uid="u2", name="b"))),
        ("I28", Script().add("create", thing(5)).add("create", thing(5, uid="u2", name="b"))),
        # I30: old revisions
        (
            "I30",
            Script()
            .add("create", thing(5))
            .add("patch", thing(6), replica="r2")
            .add("update", thing(7), body={"metadata": {"resourceVersion": "5"}}),
        ),
        # I31: unknown fates
        (
            "I31",
            Script()
            .add("create", outcome="unknown", body={"metadata": {"generateName": "a-"}}, name="")
            .add("create", thing(5), body={"metadata": {"generateName": "a-"}}, name=""),
        ),
        (
            "I31",
            Script()
            .add("patch", outcome="unknown", body={"items": [{"op": "add"}]})
            .add("patch", thing(5), body={"items": [{"op": "add"}]}),
        ),
        (
            "I31",
            Script().add("delete", outcome="unknown", body={}).add("delete", thing(5), body={}),
        ),
    ],
)
def test_each_lie_is_found(invariant: str, script: Script) -> None:
    assert script.broken == {invariant}


@pytest.mark.parametrize(
    "script",
    [
        Script()
        .add("create", thing(5))
        .add("patch", outcome="unknown", body={"status": {"n": 1}})
        .add("get", thing(5))
        .add("patch", thing(6, status={"n": 1}), body={"status": {"n": 1}}),
        Script()
        .add("create", thing(5, status=condition("True", "2026-01-01T00:00:20Z")))
        .add("patch", thing(6, status=condition("False", "2026-01-01T00:00:21Z", message="x")))
        .add("delete", thing(6), body={"preconditions": {"uid": "u1"}})
        .add("get", **GONE),
        Script()
        .add("create", lease(3, "r1", 1), path=LEASES)
        .add("synced", term=1)
        .add("create", thing(5), term=1)
        .add("stop", term=1)
        .add("update", lease(6, "r2", 2), path=LEASES, replica="r2")
        .add("patch", term=1, outcome="unsent"),
        Script().add("create", thing(5)).add("get", thing(4), query={"resourceVersion": "0"}),  # asked for any state
        Script()  # a real server answers the write that ends an object with the revision before
        .add("delete", thing(5, finalizers=["x"], deletionTimestamp="2026-01-01T00:00:30Z"))
        .add("patch", thing(5, deletionTimestamp="2026-01-01T00:00:30Z")),
        Script()  # sent in one second, made in the next
        .add("create", thing(5, status=condition("True", "2026-01-01T00:00:09Z")))
        .add("patch", thing(6, status={"n": 1, **condition("True", "2026-01-01T00:00:09Z")})),
    ],
)
def test_honest_histories_pass(script: Script) -> None:
    assert script.broken == set()


async def test_a_server_that_forgets_is_found_out() -> None:
    clock = VirtualClock()
    server = await Embedded(clock).start("team")
    history = History()
    client = Client(RecordingTransport(server.transport(), history, clock=clock))
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    await client.create(CONFIG_MAP, body, "team")
    clock.step_wall(1)
    history.note("crash", "", clock)
    server.forget(CONFIG_MAP)
    clock.step_wall(1)
    assert await client.list(CONFIG_MAP) == []
    assert check(history.entries) == []  # a page of a list proves nothing by itself
    with pytest.raises(KubeError):
        await client.get(CONFIG_MAP, "a", "team")
    assert {one.invariant for one in check(history.entries)} == {"I27"}
    await server.stop()


def test_an_audit_log_is_read_as_well(tmp_path: Path) -> None:
    event = {
        "stage": "ResponseComplete",
        "verb": "patch",
        "user": {"username": "shoal"},
        "userAgent": "shoal/1",
        "objectRef": {
            "resource": "things",
            "apiGroup": "example.test",
            "apiVersion": "v1",
            "namespace": "team",
            "name": "a",
        },
        "responseStatus": {"code": 200},
        "requestReceivedTimestamp": "2026-01-01T00:00:11.000000Z",
        "stageTimestamp": "2026-01-01T00:00:11.100000Z",
        "responseObject": thing(6, status={"observedGeneration": 2}),
    }
    log = tmp_path / "audit.log"
    log.write_text(json.dumps(event) + "\n" + '{"cut')
    [record] = from_audit(log, users=("shoal",))
    assert record.path == THINGS and record.revision == 6
    assert [violation.invariant for violation in check([record])] == ["I22"]
    assert from_audit(log, users=("someone",)) == []


def test_leases_do_not_count_as_decisions() -> None:
    assert LEASE.path().strip("/") == LEASES
