"""A gang that makes way for one of another namespace does not learn that one's UID; the controller still knows it."""

from __future__ import annotations

import json

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.appwrapper.v1beta1 import follow
from shoal.controllers.planning import PlanningLoop
from shoal.controllers.planning.preemptors import Preemptors, stored_preemptor
from shoal.controllers.queues import state_machine
from shoal.engine.model import Gang, Preempt
from shoal.kube.client import Client
from tests.cluster import PATIENCE, Cluster
from tests.faults import proven
from tests.patience import patiently
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, dispatched, pod
from tests.unit.queues.build import cluster_queue, flavor, job, local_queue, make, name_of, said, true
from tests.unit.queues.conftest import decide
from tests.unit.queues.test_leaving import HIGH, priority_class

NAMESPACES = ("red", "blue")
UNKNOWN = "Preempted to accommodate a workload (UID: UNKNOWN, JobUID: UNKNOWN) due to prioritization"


def in_namespace(obj: Json, name: str) -> Json:
    obj["metadata"]["namespace"] = name
    return obj


async def two_tenants(cluster: Cluster) -> None:
    for name in NAMESPACES:
        await cluster.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        await make(cluster, in_namespace(local_queue(), name))
    queue = cluster_queue(preemption={"withinClusterQueue": "LowerPriority"})
    await make(cluster, flavor(), priority_class("high", 100), queue)


async def readable(cluster: Cluster, namespace: str, *also: Json) -> str:
    """All that a user of the namespace could read about this, as one text."""
    events = await cluster.client.list(kinds.EVENT, namespace)
    workloads = await cluster.client.list(kinds.WORKLOAD, namespace)
    return json.dumps([*also, *events, *workloads])


async def told_of(cluster: Cluster, namespace: str, name: str) -> str:
    """The message of the event on a Workload that preempts."""
    watch = cluster.client.watch(kinds.EVENT, namespace, send_initial_events=True)
    async with patiently(PATIENCE):
        async for event in watch:
            one = msgspec.json.decode(event.object) if event.type == "ADDED" else {}
            if one.get("reason") == "PreemptedWorkload" and one["involvedObject"]["name"] == name:
                return str(one["message"])
    raise AssertionError("the watch ended")


def tells_the_uid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_machine, "told_preemptor", lambda preempt, namespace: preempt.message)
    monkeypatch.setattr(state_machine, "stored_preemptor", lambda preempt, namespace: preempt.preemptor_uid)
    monkeypatch.setattr(follow, "stored_preemptor", lambda preempt, namespace: preempt.preemptor_uid)


@proven(without=tells_the_uid)
async def test_f225_a_workload_does_not_show_the_uid_of_a_preemptor_of_another_namespace(quiet: Cluster) -> None:
    """F225: a queued gang is preempted by one of another namespace, and its message and annotation name that one's UID.
    Holds: its namespace sees Kueue's UNKNOWN and a digest, and the preemptor starts all the same."""
    decide(quiet)
    await two_tenants(quiet)
    (low,) = await make(quiet, in_namespace(job("low", 4), "red"))
    await quiet.until(kinds.JOB, "low", lambda one: one["spec"]["suspend"] is False, "red")
    (high,) = await make(quiet, in_namespace(job("high", 4, labels=HIGH), "blue"))
    preemptor = await quiet.until(kinds.WORKLOAD, name_of(high), true("Admitted"), "blue")
    victim = await quiet.get(kinds.WORKLOAD, name_of(low), "red")
    assert said(victim, "Preempted")[2].startswith(UNKNOWN)
    assert victim["metadata"]["annotations"]["shoal.dev/preempted-for"].startswith("sha256:")
    shown = await readable(quiet, "red")
    assert preemptor["metadata"]["uid"] not in shown
    assert high["metadata"]["uid"] not in shown
    seen = await told_of(quiet, "blue", name_of(high))
    assert seen == "Preempted a workload of another namespace in ClusterQueue cluster-queue"
    assert victim["metadata"]["uid"] not in await readable(quiet, "blue")


async def test_within_a_namespace_the_words_are_kueues(quiet: Cluster) -> None:
    decide(quiet)
    await two_tenants(quiet)
    (low,) = await make(quiet, in_namespace(job("low", 4), "red"))
    await quiet.until(kinds.JOB, "low", lambda one: one["spec"]["suspend"] is False, "red")
    (high,) = await make(quiet, in_namespace(job("high", 4, labels=HIGH), "red"))
    preemptor = await quiet.until(kinds.WORKLOAD, name_of(high), true("Admitted"), "red")
    victim = await quiet.get(kinds.WORKLOAD, name_of(low), "red")
    uid, job_uid = preemptor["metadata"]["uid"], high["metadata"]["uid"]
    assert f"a workload (UID: {uid}, JobUID: {job_uid}) due to" in said(victim, "Preempted")[2]
    which = f"red/{name_of(low)} (UID: {victim['metadata']['uid']})"
    seen = await told_of(quiet, "red", name_of(high))
    assert seen == f"Preempted workload {which} in ClusterQueue cluster-queue"


@proven(without=tells_the_uid)
async def test_f225_an_app_wrapper_does_not_show_the_uid_of_a_preemptor_of_another_namespace(quiet: Cluster) -> None:
    """F225: an AppWrapper makes way for one of another namespace, whose UID is stored with its admission. Holds: its
    namespace sees a digest, and the room goes to the preemptor all the same."""
    for name in NAMESPACES:
        await quiet.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    quiet.start(planned(quiet.client, AppWrapperSettings(preemption=True, trust_unstamped=True)).run())
    await quiet.create(kinds.APP_WRAPPER, in_namespace(app_wrapper("low", pod("low", cpu="16")), "red"))
    await quiet.until(kinds.APP_WRAPPER, "low", dispatched, "red")
    high = in_namespace(app_wrapper("high", pod("high", cpu="16"), priority=5), "blue")
    made = await quiet.create(kinds.APP_WRAPPER, high)
    victim = await quiet.until(
        kinds.APP_WRAPPER, "low", lambda one: "stoppingFor" in one["status"].get("admission", ""), "red"
    )
    await quiet.until(kinds.APP_WRAPPER, "high", dispatched, "blue")
    assert made["metadata"]["uid"] not in await readable(quiet, "red", victim)


def gang(name: str, namespace: str, stopping_for: str = "") -> Gang:
    return Gang(
        key=f"AppWrapper/{namespace}/{name}",
        uid=f"uid-of-{name}",
        namespace=namespace,
        name=name,
        dialect="mcad",
        pod_sets=(),
        state="stopping" if stopping_for else "waiting",
        stopping_for=stopping_for,
    )


def resolves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Preemptors, "resolved", lambda self, gang: gang)


@proven(without=resolves_nothing)
@pytest.mark.parametrize("victim_first", [True, False])
async def test_f226_a_restarted_controller_knows_for_which_gang_it_was(quiet: Cluster, victim_first: bool) -> None:
    """F226: a controller restarts while a gang makes way for one of another namespace, of which only a digest is
    stored. Holds: whichever of the two is read first, the room is kept for the gang that it was meant for."""
    high = gang("high", "blue")
    decision = Preempt(gang="AppWrapper/red/low", uid="x", preemptor=high.key, preemptor_uid=high.uid, cause="priority")
    low = gang("low", "red", stored_preemptor(decision, "red"))
    assert high.uid not in low.stopping_for
    loop = PlanningLoop(Client(quiet.server.transport()))
    for one in (low, high) if victim_first else (high, low):
        loop.update(one)
    known = loop.engine.gang(low.key)
    assert known is not None and known.stopping_for == high.uid


def test_what_was_told_before_is_never_told_again() -> None:
    known, mark = (
        Preemptors(list),
        stored_preemptor(
            Preempt(gang="a", uid="a", preemptor="AppWrapper/blue/high", preemptor_uid="uid-of-high", cause="x"), "red"
        ),
    )
    known.resolved(gang("low", "red", mark))
    known.resolved(gang("low", "red"))
    assert known.learnt(gang("high", "blue")) == ()
    known.resolved(gang("other", "red", "sha256:of-one-that-never-comes"))
    known.forget("AppWrapper/red/other", "uid-of-other")
    assert known.resolved(gang("low", "red", mark)).stopping_for == "uid-of-high"
