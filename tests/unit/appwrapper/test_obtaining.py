"""Gangs that wait for nodes to come: one request each, whole or not at all. The test plays the node autoscaler."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.booking import BOOKING, BookedPods, Booking, written
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.api.node_pools import BROUGHT_FOR, NAME, NAMESPACE, PublishedPool
from shoal.api.times import seconds_text
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.planning import provisioning
from shoal.controllers.planning.provisioning import NodeProvisioning
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.errors import NotFound
from tests.chaos.mortal import MortalTransport
from tests.cluster import Cluster
from tests.faults import proven
from tests.patience import PATIENCE
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, needs, pod, waits

OBTAINING = AppWrapperSettings(trust_unstamped=True, obtain=True)
REQUEST = kinds.PROVISIONING_REQUEST


@pytest.fixture
async def pooled(quiet: Cluster) -> Cluster:
    """One node of 4 cores; a pool that can add four nodes of 8."""
    await publish(quiet, 4)
    quiet.start(planned(quiet.client, OBTAINING).run())
    return quiet


async def publish(cluster: Cluster, obtainable: int) -> None:
    pool = PublishedPool({"cpu": "8", "memory": "32Gi", "pods": "110"}, {"pool": "big"}, (), obtainable)
    data = {"big": msgspec.json.encode(pool).decode()}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": data}
    try:
        await cluster.client.get(kinds.CONFIG_MAP, NAME, NAMESPACE)
        await cluster.client.patch(kinds.CONFIG_MAP, NAME, NAMESPACE, {"data": data})
    except NotFound:
        await cluster.client.create(kinds.CONFIG_MAP, body, NAMESPACE)


def asks(name: str, pods: int, cpu: str = "8") -> Json:
    return app_wrapper(name, config_map(name), needs=[needs(pods, cpu=cpu)])


async def requests(cluster: Cluster, count: int) -> list[Json]:
    async with asyncio.timeout(PATIENCE):
        while len(found := await cluster.client.list(REQUEST, "default")) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return sorted(found, key=lambda one: one["metadata"]["name"])


async def bring(cluster: Cluster, wrapper: Json, *names: str) -> None:
    """Nodes come, marked with the gang that they came for."""
    for name in names:
        await cluster.client.create(
            kinds.NODE,
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "annotations": {BROUGHT_FOR: wrapper["metadata"]["uid"]}},
            },
        )
        sizes = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        status = {"capacity": sizes, "allocatable": sizes, "conditions": [{"type": "Ready", "status": "True"}]}
        await cluster.client.patch(kinds.NODE, name, None, {"status": status}, subresource="status")


async def conclude(cluster: Cluster, request: Json, kind: str) -> None:
    now = seconds_text(SystemClock().now())
    condition = {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": now}
    await cluster.client.patch(
        REQUEST, request["metadata"]["name"], "default", {"status": {"conditions": [condition]}}, subresource="status"
    )


async def test_a_gang_asks_once_waits_saying_so_and_starts_when_all_nodes_are_there(pooled: Cluster) -> None:
    wrapper = await pooled.create(kinds.APP_WRAPPER, asks("train", 2))
    (request,) = await requests(pooled, 1)
    uid = wrapper["metadata"]["uid"]
    assert request["metadata"]["name"] == f"shoal-{uid}-1"
    assert request["metadata"]["ownerReferences"][0]["uid"] == uid
    assert [one["count"] for one in request["spec"]["podSets"]] == [2]
    waiting = await pooled.until(
        kinds.APP_WRAPPER, "train", lambda one: "to come" in (one.get("status") or {}).get("message", "")
    )
    assert waits(waiting) and "waits for 2 node(s) of pool big to come" in waiting["status"]["message"]
    await bring(pooled, wrapper, "big-0")
    await pooled.settled()
    assert not dispatched(await pooled.get(kinds.APP_WRAPPER, "train"))
    await bring(pooled, wrapper, "big-1")
    await pooled.until(kinds.APP_WRAPPER, "train", dispatched)
    await requests(pooled, 0)


async def test_two_gangs_never_both_count_on_the_same_nodes(pooled: Cluster) -> None:
    await pooled.create(kinds.APP_WRAPPER, asks("first", 3))
    await requests(pooled, 1)
    await pooled.create(kinds.APP_WRAPPER, asks("second", 2))
    await pooled.until(kinds.APP_WRAPPER, "second", waits)
    await pooled.settled()
    (request,) = await requests(pooled, 1)
    assert request["metadata"]["ownerReferences"][0]["name"] == "first"


async def test_nodes_that_came_for_one_gang_are_for_no_other(pooled: Cluster) -> None:
    wrapper = await pooled.create(kinds.APP_WRAPPER, asks("train", 4))
    await requests(pooled, 1)
    await bring(pooled, wrapper, "big-0", "big-1")
    await pooled.create(kinds.APP_WRAPPER, asks("other", 1))
    await pooled.until(kinds.APP_WRAPPER, "other", waits)
    await bring(pooled, wrapper, "big-2", "big-3")
    await pooled.until(kinds.APP_WRAPPER, "train", dispatched)
    assert not dispatched(await pooled.get(kinds.APP_WRAPPER, "other"))


async def test_without_pools_nothing_is_asked_for(quiet: Cluster) -> None:
    quiet.start(planned(quiet.client, OBTAINING).run())
    await quiet.create(kinds.APP_WRAPPER, asks("train", 2))
    await quiet.until(kinds.APP_WRAPPER, "train", waits)
    await requests(quiet, 0)


async def test_where_requests_are_not_installed_gangs_start_as_ever(quiet: Cluster) -> None:
    await quiet.client.delete(kinds.CRD, "provisioningrequests.autoscaling.x-k8s.io")
    quiet.start(planned(quiet.client, OBTAINING).run())
    await quiet.create(kinds.APP_WRAPPER, asks("small", 1, cpu="1"))
    await quiet.until(kinds.APP_WRAPPER, "small", dispatched)


async def test_an_edited_gang_asks_again(pooled: Cluster) -> None:
    await pooled.create(kinds.APP_WRAPPER, asks("train", 2))
    (first,) = await requests(pooled, 1)
    items = asks("train", 3)["spec"]["resources"]
    await pooled.client.patch(kinds.APP_WRAPPER, "train", "default", {"spec": {"resources": items}})
    async with asyncio.timeout(PATIENCE):
        while (found := await requests(pooled, 1))[0]["metadata"]["uid"] == first["metadata"]["uid"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert [one["count"] for one in found[0]["spec"]["podSets"]] == [3]


async def test_a_restart_goes_on_with_the_request_that_is_there(quiet: Cluster) -> None:
    await publish(quiet, 4)
    first = quiet.start(planned(quiet.client, OBTAINING).run())
    wrapper = await quiet.create(kinds.APP_WRAPPER, asks("train", 2))
    (request,) = await requests(quiet, 1)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    quiet.start(planned(quiet.client, OBTAINING).run())
    await quiet.settled()
    assert [one["metadata"]["uid"] for one in await requests(quiet, 1)] == [request["metadata"]["uid"]]
    await bring(quiet, wrapper, "big-0", "big-1")
    await quiet.until(kinds.APP_WRAPPER, "train", dispatched)


async def test_room_booked_for_a_request_of_others_is_not_free_until_their_pods_took_it(pooled: Cluster) -> None:
    """node-1 has 4 cores: 3 are booked, a pod of that request takes them, and ends."""
    await publish(pooled, 0)
    text = written(Booking((BookedPods({"cpu": 3000}, {"node-1": 1}),)))
    spec = {"provisioningClassName": "x.example", "podSets": [{"podTemplateRef": {"name": "t"}, "count": 1}]}
    metadata = {"name": "theirs", "annotations": {BOOKING: text}}
    await pooled.create(
        REQUEST, {"apiVersion": REQUEST.api_version, "kind": REQUEST.kind, "metadata": metadata, "spec": spec}
    )
    await pooled.create(kinds.APP_WRAPPER, asks("wants-two", 1, cpu="2"))
    await pooled.until(kinds.APP_WRAPPER, "wants-two", waits)
    theirs = pod("theirs", cpu="3")
    theirs["metadata"]["annotations"] = {"autoscaling.x-k8s.io/consume-provisioning-request": "theirs"}
    theirs["spec"]["nodeName"] = "node-1"
    await pooled.create(kinds.POD, theirs)
    await pooled.create(kinds.APP_WRAPPER, asks("wants-one", 1, cpu="1"))  # 3 are taken once, not twice
    await pooled.until(kinds.APP_WRAPPER, "wants-one", dispatched)


async def test_a_strangers_object_of_that_name_is_left_alone(quiet: Cluster) -> None:
    """Somebody made a template under the very name: it is not used, and the gang waits for room as others do."""
    await publish(quiet, 4)
    wrapper = await quiet.create(kinds.APP_WRAPPER, asks("train", 2))
    name = f"shoal-{wrapper['metadata']['uid']}-1-0"
    theirs = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}}
    await quiet.create(kinds.POD_TEMPLATE, {**theirs, "template": {"spec": pod("x")["spec"]}})
    quiet.start(planned(quiet.client, OBTAINING).run())
    waiting = await quiet.until(
        kinds.APP_WRAPPER, "train", lambda one: "cpu needed" in (one.get("status") or {}).get("message", "")
    )
    assert waits(waiting)
    await requests(quiet, 0)


# --- fault rows


def names_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    make = NodeProvisioning._make

    async def without_templates(self: NodeProvisioning, kind: Kind, body: Json, namespace: str, owner: Json) -> Json:
        return body if kind == kinds.POD_TEMPLATE else await make(self, kind, body, namespace, owner)

    monkeypatch.setattr(NodeProvisioning, "_make", without_templates)


@proven(without=names_what_is_not_there)
@pytest.mark.parametrize("at", [1, 2, 3, 4])
async def test_f086_a_request_never_names_a_template_that_does_not_exist(quiet: Cluster, at: int) -> None:
    """F86: killed after any write of asking for nodes. Holds: templates come first; the next start asks once."""
    await publish(quiet, 4)
    mortal = MortalTransport(quiet.server.transport(), at)
    dying = asyncio.create_task(planned(Client(mortal), OBTAINING).run())
    await quiet.create(kinds.APP_WRAPPER, asks("train", 2))
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait([asyncio.create_task(mortal.died.wait())], timeout=5)
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    quiet.start(planned(quiet.client, OBTAINING).run())
    (request,) = await requests(quiet, 1)
    for one in request["spec"]["podSets"]:
        template = await quiet.get(kinds.POD_TEMPLATE, one["podTemplateRef"]["name"])
        assert template["metadata"]["creationTimestamp"] <= request["metadata"]["creationTimestamp"]


def forgets_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provisioning, "_attempt", lambda request: 0)
    monkeypatch.setattr(
        NodeProvisioning, "_attempts", property(lambda self: {}, lambda self, value: None), raising=False
    )


@proven(without=forgets_attempts)
async def test_f087_the_attempt_is_read_from_the_name_at_any_length(
    pooled: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F87: an AppWrapper of the longest name; its first attempt failed. Holds: the next is number 2, not lost."""
    monkeypatch.setattr(provisioning, "FIRST_PAUSE", 0.2)
    name = "n" * 63
    wrapper = app_wrapper(name, config_map("c"), needs=[needs(2, cpu="8")])
    uid = (await pooled.create(kinds.APP_WRAPPER, wrapper))["metadata"]["uid"]
    (first,) = await requests(pooled, 1)
    await conclude(pooled, first, "Failed")
    await pooled.until(REQUEST, f"shoal-{uid}-2", lambda found: True)
    await pooled.until_gone(REQUEST, first["metadata"]["name"])
    assert await pooled.names(REQUEST) == [f"shoal-{uid}-2"]


def tries_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provisioning, "FIRST_PAUSE", -1.0)


@proven(without=tries_again_at_once)
@pytest.mark.parametrize("kind", ["Failed", "BookingExpired", "CapacityRevoked"])
async def test_f089_after_a_request_that_came_to_nothing_others_have_their_turn(pooled: Cluster, kind: str) -> None:
    """F89: the request of a gang fails, expires or loses its nodes. Holds: it pauses; the nodes are for others."""
    await pooled.create(kinds.APP_WRAPPER, asks("unlucky", 4))
    (first,) = await requests(pooled, 1)
    await conclude(pooled, first, kind)
    await pooled.settled()
    await pooled.create(kinds.APP_WRAPPER, asks("next", 3))
    found = await requests(pooled, 2)
    assert {one["metadata"]["ownerReferences"][0]["name"] for one in found} == {"unlucky", "next"}
    assert sum(one["metadata"]["name"].endswith("-2") for one in found) == 0


async def test_a_request_that_comes_to_nothing_at_once_is_not_made_again_at_once(
    pooled: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends before the controller that made it has looked again."""
    make = NodeProvisioning._make

    async def ends_at_once(self: NodeProvisioning, kind: Kind, body: Json, namespace: str, owner: Json) -> Json:
        made = await make(self, kind, body, namespace, owner)
        if kind == REQUEST and owner["name"] == "unlucky":
            await conclude(pooled, made, "Failed")
            await pooled.settled()  # and this has been heard
        return made

    monkeypatch.setattr(NodeProvisioning, "_make", ends_at_once)
    await pooled.create(kinds.APP_WRAPPER, asks("unlucky", 4))
    await requests(pooled, 1)
    await pooled.settled()
    await pooled.create(kinds.APP_WRAPPER, asks("next", 3))
    found = await requests(pooled, 2)
    assert sum(one["metadata"]["name"].endswith("-1") for one in found) == 2


def leaves_requests_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: NodeProvisioning, requests: list[Json]) -> None:
        return None

    monkeypatch.setattr(NodeProvisioning, "_drop", nothing)


@proven(without=leaves_requests_behind)
async def test_f090_no_request_is_left_once_the_gang_started_by_other_room(pooled: Cluster) -> None:
    """F90: room appears elsewhere before the nodes come. Holds: the gang starts, its request goes, others may ask."""
    await pooled.create(kinds.APP_WRAPPER, asks("train", 4))
    await requests(pooled, 1)
    for index in range(4):
        await pooled.add_node(f"gift-{index}", cpu="8", memory="32Gi")
    await pooled.until(kinds.APP_WRAPPER, "train", dispatched)
    await requests(pooled, 0)
