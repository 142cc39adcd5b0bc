"""AppWrappers and queued jobs stand in one line for the same room: one ledger, whatever the dialect."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.appwrapper_rules import wraps_the_same
from shoal.api.booking import BOOKING, BookedPods, Booking, written
from shoal.api.kueue_workload import Workload
from shoal.api.meta import Json
from shoal.api.times import parse_time, seconds_text
from shoal.cli import why
from shoal.controllers.appwrapper import AppWrapperSettings, facts, reconciler
from shoal.controllers.planning.naming import discreet, in_plain_words
from shoal.controllers.queues import QueueController, QueueSettings
from shoal.controllers.queues.facts import QueueFacts
from shoal.engine.model import Gang
from shoal.kube.clock import SystemClock
from shoal.sdk import gangs
from tests.cluster import Cluster
from tests.faults import proven
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, needs, waits
from tests.unit.queues.build import (
    cluster_queue,
    complete,
    condition,
    flavor,
    job,
    local_queue,
    make,
    name_of,
    provisioning_check,
    provisioning_config,
    ray_job,
    said,
    true,
)
from tests.unit.queues.conftest import decide

SECOND = 1_000_000


@pytest.fixture
async def roomy(quiet: Cluster) -> Cluster:
    """More quota than the node's sixteen cores."""
    decide(quiet)
    await make(quiet, flavor(), cluster_queue(quota={"cpu": "100", "memory": "1000Gi"}), local_queue())
    return quiet


def wrapper(name: str, cores: str) -> Json:
    return app_wrapper(name, config_map(name), needs=[needs(1, cpu=cores)])


async def test_a_queued_job_waits_for_room_that_an_appwrapper_holds(roomy: Cluster) -> None:
    await roomy.create(kinds.APP_WRAPPER, wrapper("first", "12"))
    await roomy.until(kinds.APP_WRAPPER, "first", dispatched)
    (made,) = await make(roomy, job("second", 8))
    waiting = await roomy.until(
        kinds.WORKLOAD, name_of(made), lambda one: condition(one, "Admitted").get("status") == "False"
    )
    assert true("QuotaReserved")(waiting)
    assert said(waiting, "Admitted")[1] == "WaitingForRoom"
    assert "cpu" in said(waiting, "Admitted")[2]
    assert (await roomy.get(kinds.JOB, "second"))["spec"]["suspend"] is True
    await roomy.client.delete(kinds.APP_WRAPPER, "first", "default")
    await roomy.until(kinds.WORKLOAD, name_of(made), true("Admitted"))


def counts_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    gang = QueueFacts.gang

    def weightless(self: QueueFacts, workload: Workload) -> Gang:
        return msgspec.structs.replace(gang(self, workload), supply="off")

    monkeypatch.setattr(QueueFacts, "gang", weightless)


@proven(without=counts_no_room)
async def test_f004_two_dialects_do_not_both_get_the_last_room(roomy: Cluster) -> None:
    """F04: two gangs each hold half of the nodes. Holds: the whole of one fits before any of its pods exists, whichever
    queue it came from."""
    (made,) = await make(roomy, ray_job("first", 3, cpu="4"))
    await roomy.until(kinds.WORKLOAD, name_of(made, "RayJob", "ray.io"), true("Admitted"))
    await roomy.create(kinds.APP_WRAPPER, wrapper("second", "8"))
    await roomy.until(kinds.APP_WRAPPER, "second", waits)  # no pod of the first one exists yet


async def test_equals_of_both_dialects_get_room_in_the_order_they_came(roomy: Cluster) -> None:
    for name, cores in (("holder", "12"), ("early", "8")):
        await roomy.create(kinds.APP_WRAPPER, wrapper(name, cores))
        came = await roomy.until(kinds.APP_WRAPPER, name, dispatched if name == "holder" else waits)
    moment = parse_time(came["status"]["controllerfirsttimestamp"])
    await asyncio.sleep(1.1 - moment % SECOND / SECOND)  # a Workload's age is told in whole seconds
    (made,) = await make(roomy, job("late", 10))
    await roomy.until(kinds.WORKLOAD, name_of(made), lambda one: said(one, "Admitted")[1] == "WaitingForRoom")
    await roomy.client.delete(kinds.APP_WRAPPER, "holder", "default")
    await roomy.until(kinds.APP_WRAPPER, "early", dispatched)
    assert (await roomy.get(kinds.JOB, "late"))["spec"]["suspend"] is True


async def test_who_holds_the_room_goes_by_the_name_that_its_owner_gave_it(roomy: Cluster) -> None:
    """Not by that of its Workload, which no user chose; and by none in other namespaces, except to its readers."""
    (made,) = await make(roomy, ray_job("trainer", 3, cpu="4"))
    await roomy.until(kinds.WORKLOAD, name_of(made, "RayJob", "ray.io"), true("Admitted"))
    await roomy.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
    for namespace in ("default", "other"):
        body = wrapper("second", "8")
        body["metadata"]["namespace"] = namespace
        await roomy.create(kinds.APP_WRAPPER, body)
        waiting = await roomy.until(kinds.APP_WRAPPER, "second", waits, namespace)
        assert "Workload" not in str(waiting["status"])
        told = await why.explain_to(roomy.client, gangs.KINDS, "second", namespace)
        assert told["holders"] == ["RayJob/default/trainer"]
    assert "trainer" not in str(await roomy.get(kinds.APP_WRAPPER, "second", "other"))


def test_a_text_names_gangs_as_people_know_them_and_only_their_own() -> None:
    text = "waits for Workload/red/job-a-12345, AppWrapper/red/b#0f-1 and AppWrapper/blue/c#0f-2 to stop"
    plain = in_plain_words(text, lambda key: "Job/red/a" if key.startswith("Workload/") else key)
    assert plain == "waits for Job/red/a, AppWrapper/red/b and AppWrapper/blue/c to stop"
    assert discreet(plain, "red") == "waits for Job/red/a, AppWrapper/red/b and a gang of another namespace to stop"


async def test_an_appwrapper_gets_the_room_of_a_job_that_ended(roomy: Cluster) -> None:
    (made,) = await make(roomy, job("first", 12))
    await roomy.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    await roomy.create(kinds.APP_WRAPPER, wrapper("second", "8"))
    await roomy.until(kinds.APP_WRAPPER, "second", waits)
    await complete(roomy, "first", 12)
    await roomy.until(kinds.APP_WRAPPER, "second", dispatched)


async def test_an_appwrapper_with_a_queue_waits_for_that_queue(roomy: Cluster) -> None:
    """v1beta2: its own controller holds and starts its objects, the queue says when."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "inside"},
        "spec": {"containers": [{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "200"}}}]},
    }
    body = {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": "wrapped", "namespace": "default", "labels": {"kueue.x-k8s.io/queue-name": "user-queue"}},
        "spec": {"suspend": True, "components": [{"template": pod}]},
    }
    made = await roomy.create(kinds.APP_WRAPPER_V1BETA2, body)
    name = name_of(made, "AppWrapper", "workload.codeflare.dev")
    refused = await roomy.until(kinds.WORKLOAD, name, lambda one: bool(condition(one, "QuotaReserved")))
    assert said(refused, "QuotaReserved")[1] == "ExceedsMaxQuota"
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}
    body["metadata"] = {**body["metadata"], "name": "small"}
    made = await roomy.create(kinds.APP_WRAPPER_V1BETA2, body)
    admitted = await roomy.until(
        kinds.WORKLOAD, name_of(made, "AppWrapper", "workload.codeflare.dev"), true("Admitted")
    )
    assert admitted["status"]["admission"]["podSetAssignments"][0]["name"] == "small-0"
    started = await roomy.until(kinds.POD, "inside", lambda one: True)
    assert started["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "small-0"
    running = await roomy.get(kinds.APP_WRAPPER_V1BETA2, "small")
    assert running["spec"]["suspend"] is False
    await roomy.client.patch(kinds.WORKLOAD, admitted["metadata"]["name"], "default", {"spec": {"active": False}})
    await roomy.until_gone(kinds.POD, "inside")
    off = await roomy.until(
        kinds.WORKLOAD, admitted["metadata"]["name"], lambda one: said(one, "QuotaReserved")[0] == "False"
    )
    assert said(off, "Evicted")[1] == "Deactivated"


def in_its_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "is_queued_here", lambda wrapper: True)
    monkeypatch.setattr(reconciler, "is_queued_here", lambda wrapper: True)


@proven(without=in_its_own_line)
async def test_f750_an_appwrapper_of_mcad_with_a_queue_starts_when_its_queue_says_so(roomy: Cluster) -> None:
    """F750: a v1beta1 AppWrapper names a queue, and its own line has room. Holds: it starts with the queue's quota and
    flavor, stops with its eviction, and its creator stays the user that answers for what it wraps."""
    made = await roomy.create(kinds.APP_WRAPPER, old_wrapper("large", "200"))
    name = name_of(made, "AppWrapper", "workload.codeflare.dev")
    refused = await roomy.until(kinds.WORKLOAD, name, lambda one: bool(condition(one, "QuotaReserved")))
    assert said(refused, "QuotaReserved")[1] == "ExceedsMaxQuota"
    made = await roomy.create(kinds.APP_WRAPPER, old_wrapper("small", "2"))
    name = name_of(made, "AppWrapper", "workload.codeflare.dev")
    await roomy.until(kinds.WORKLOAD, name, true("Admitted"))
    started = await roomy.until(kinds.POD, "small", lambda one: True)
    assert started["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "small-0"
    running = await roomy.until(kinds.APP_WRAPPER, "small", dispatched)
    assert running["spec"]["suspend"] is False
    assert wraps_the_same(running, made)  # else the controller would answer for it
    await roomy.client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": False}})
    await roomy.until_gone(kinds.POD, "small")
    off = await roomy.until(kinds.WORKLOAD, name, lambda one: said(one, "QuotaReserved")[0] == "False")
    assert said(off, "Evicted")[1] == "Deactivated"
    await roomy.client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": True}})
    await roomy.until(kinds.POD, "small", lambda one: True)
    assert "status" not in (await roomy.get(kinds.APP_WRAPPER, "large"))


def old_wrapper(name: str, cpu: str) -> Json:
    """Of MCAD's dialect, around one pod, with a queue."""
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}
    body = app_wrapper(name, pod)
    body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "user-queue"}
    body["spec"]["suspend"] = True  # as admission makes it
    return body


def counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueController, "keeps", lambda self, request: False)


@proven(without=counted_twice)
async def test_f088_room_that_was_booked_is_counted_once(quiet: Cluster) -> None:
    """F88: booked capacity is counted twice once its pods run. Holds: while a request holds room no other gang gets it;
    from its gang's admission on the gang holds it instead, never both."""
    decide(quiet)
    queue = cluster_queue(quota={"cpu": "100"}, checks=["nodes"])
    await make(quiet, flavor(), provisioning_check(), provisioning_config(), queue, local_queue())
    (made,) = await make(quiet, job("train", 2, cpu="4"))  # 8 of the node's 16 cores
    request = await quiet.until(kinds.PROVISIONING_REQUEST, f"{name_of(made)}-nodes-1", lambda one: True)
    booked = Booking((BookedPods({"cpu": 4000}, {"node-1": 2}),))
    where = (kinds.PROVISIONING_REQUEST, request["metadata"]["name"], "default")
    await quiet.client.patch(*where, {"metadata": {"annotations": {BOOKING: written(booked)}}})
    await quiet.settled()
    await quiet.create(kinds.APP_WRAPPER, wrapper("large", "9"))
    await quiet.until(kinds.APP_WRAPPER, "large", waits)  # the room is booked, though its gang is not admitted
    now = seconds_text(SystemClock().now())
    conditions = [
        {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": now}
        for kind in ("Accepted", "Provisioned")
    ]
    await quiet.client.patch(*where, {"status": {"conditions": conditions}}, subresource="status")
    await quiet.until(kinds.JOB, "train", lambda one: one["spec"]["suspend"] is False)
    await quiet.create(kinds.APP_WRAPPER, wrapper("small", "8"))
    await quiet.until(kinds.APP_WRAPPER, "small", dispatched)
    assert waits(await quiet.get(kinds.APP_WRAPPER, "large"))


async def test_queues_run_without_appwrappers(quiet: Cluster) -> None:
    """`--only queues`: nodes and pods are watched for their sake alone."""
    quiet.start(planned(quiet.client, AppWrapperSettings(), queues=QueueSettings(), wrappers=False).run())
    await make(quiet, flavor(), cluster_queue(), local_queue())
    (made,) = await make(quiet, job("train", 2))
    await quiet.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    await quiet.create(kinds.APP_WRAPPER, wrapper("alone", "1"))
    await quiet.settled()
    assert "status" not in await quiet.get(kinds.APP_WRAPPER, "alone")
