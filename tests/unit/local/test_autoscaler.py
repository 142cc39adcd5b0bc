"""Node pools: grown whole for requests and for pending pods, held for the gangs they came for, shrunk when idle."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from shoal.api.booking import BOOKING, BookedPods, Booking, Place, unused
from shoal.api.kinds import CONFIG_MAP, NODE, POD, PROVISIONING_REQUEST
from shoal.api.node_pools import NAME, NAMESPACE, published
from shoal.local.autoscaler import Autoscaler, autoscaler, requests
from shoal.local.nodes.runtime.simulated import RUN_SECONDS
from shoal.local.scheduler import bookings
from shoal.local.settings import LocalSettings, Pool
from tests.faults import proven
from tests.patience import PATIENCE
from tests.unit.local.parts import ATOMIC, CHECK, CONSUME, GPU, QUEUED, Cluster, condition, message, phase

SETTINGS = LocalSettings(pools=(GPU,), idle_seconds=0.3)


@pytest.fixture
async def scaled(cluster: Cluster) -> Cluster:
    """One node of two cores, and a pool of up to three GPU nodes at zero."""
    await cluster.nodes("2")
    await cluster.begin(cluster.agent, cluster.scheduler, Autoscaler(cluster.client, SETTINGS, "test"))
    return cluster


async def gpu_nodes(cluster: Cluster) -> list[str]:
    return [name for name in await cluster.node_names() if name.startswith("gpu-")]


# --- requests


@pytest.mark.parametrize("kind", [QUEUED, ATOMIC])
async def test_a_request_is_accepted_provisioned_and_its_pods_land_there(scaled: Cluster, kind: str) -> None:
    await scaled.ask("job", 2, kind)
    accepted = await scaled.request("job", "Accepted")
    assert condition("Failed", "False")(accepted) and not condition("Failed", "True")(accepted)
    done = await scaled.request("job", "Provisioned")
    assert done["status"]["provisioningClassDetails"] == {"NodeGroupName": "gpu", "NodesAdded": "2"}
    assert await gpu_nodes(scaled) == ["gpu-0", "gpu-1"]
    await scaled.pod("consumer", gpus=1, annotations={CONSUME: "job"})
    assert await scaled.bound("consumer") in ("gpu-0", "gpu-1")


async def test_all_three_conditions_are_written_together(scaled: Cluster) -> None:
    seen: list[dict[str, str]] = []
    watch = scaled.client.watch(PROVISIONING_REQUEST, "default", send_initial_events=True)

    async def follow() -> None:
        async for event in watch:
            if event.type in ("ADDED", "MODIFIED"):
                conditions = (msgspec.json.decode(event.object).get("status") or {}).get("conditions") or ()
                seen.append({one["type"]: one["status"] for one in conditions})
                if seen[-1].get("Provisioned") == "True":
                    return

    following = asyncio.create_task(follow())
    await scaled.ask("job", 1)
    await asyncio.wait_for(following, PATIENCE)
    first = next(one for one in seen if one)
    assert first == {"Accepted": "True", "Provisioned": "False", "Failed": "False"}


async def test_a_class_that_is_not_ours_is_left_alone(scaled: Cluster) -> None:
    await scaled.ask("theirs", 1, "someone.example")
    await scaled.ask("ours", 1)
    await scaled.request("ours", "Provisioned")
    theirs = await scaled.client.get(PROVISIONING_REQUEST, "theirs", "default")
    assert not (theirs.get("status") or {}).get("conditions")


async def test_what_a_foreign_pod_may_not_take(scaled: Cluster) -> None:
    await scaled.ask("job", 3)
    await scaled.request("job", "Provisioned")
    await scaled.pod("foreign", gpus=1)
    await scaled.waits("foreign", "Insufficient nvidia.com/gpu")
    await scaled.client.delete(PROVISIONING_REQUEST, "job", "default")
    assert (await scaled.bound("foreign")).startswith("gpu-")


async def test_a_request_that_no_pool_can_ever_hold_fails(scaled: Cluster) -> None:
    await scaled.ask("impossible", 4)
    found = await scaled.request("impossible", "Failed")
    assert "no pool can hold these pods" in message(found, "Failed")
    assert not condition("Provisioned", "True")(found) and await gpu_nodes(scaled) == []


async def test_a_request_waits_while_the_maximum_is_in_use(scaled: Cluster) -> None:
    await scaled.ask("first", 3)
    await scaled.request("first", "Provisioned")
    await scaled.ask("second", 1)
    at_most = "pool gpu would need 1 more nodes but has 3 of at most 3"
    await scaled.see(PROVISIONING_REQUEST, "second", "default", lambda found: at_most in message(found, "Provisioned"))
    await scaled.client.delete(PROVISIONING_REQUEST, "first", "default")
    await scaled.request("second", "Provisioned")


async def test_two_requests_never_count_on_the_same_node(scaled: Cluster) -> None:
    await asyncio.gather(scaled.ask("a", 2), scaled.ask("b", 1))
    await asyncio.gather(scaled.request("a", "Provisioned"), scaled.request("b", "Provisioned"))
    assert len(await gpu_nodes(scaled)) == 3


async def test_capacity_that_is_only_checked_is_held_too(scaled: Cluster) -> None:
    await scaled.node("own", capacity={"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"})
    await scaled.ask("look", 1, CHECK)
    found = await scaled.request("look", "Provisioned")
    assert message(found, "Provisioned") == "Capacity is found in the cluster."
    await scaled.ask("again", 1, CHECK, noRetry="true")
    await scaled.request("again", "Failed")
    await scaled.pod("foreign", gpus=1)
    assert (await scaled.bound("foreign")).startswith("gpu-")


async def test_a_restart_goes_on_with_what_was_booked(cluster: Cluster) -> None:
    """The booking is written before a node is asked for: the next autoscaler brings the same nodes, no others."""
    await cluster.nodes("2")
    slow = msgspec.structs.replace(GPU, delay=3600.0)
    await cluster.begin(cluster.scheduler, Autoscaler(cluster.client, LocalSettings(pools=(slow,)), "test"))
    await cluster.ask("job", 2)
    await cluster.see(PROVISIONING_REQUEST, "job", "default", lambda found: "0 of 2" in message(found, "Provisioned"))
    await cluster.end(cluster.tasks.pop())
    await cluster.begin(Autoscaler(cluster.client, SETTINGS, "test"))
    await cluster.request("job", "Provisioned")
    assert await gpu_nodes(cluster) == ["gpu-0", "gpu-1"]


async def test_a_node_that_vanishes_revokes_the_capacity(scaled: Cluster) -> None:
    await scaled.ask("job", 1)
    await scaled.request("job", "Provisioned")
    await scaled.client.delete(NODE, "gpu-0")
    found = await scaled.request("job", "CapacityRevoked")
    assert "gpu-0" in message(found, "CapacityRevoked")


async def test_a_node_that_vanishes_under_the_pods_revokes_the_capacity(scaled: Cluster) -> None:
    await scaled.ask("job", 1)
    await scaled.request("job", "Provisioned")
    await scaled.pod("consumer", gpus=1, annotations={CONSUME: "job"})
    await scaled.see(POD, "consumer", "default", phase("Running"))
    await scaled.client.delete(NODE, "gpu-0")
    await scaled.request("job", "CapacityRevoked")


# --- fault rows


def fails_what_it_cannot_find(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: Autoscaler, request: dict, reason: str, text: str) -> None:
        await self._fail(request, reason, text)

    monkeypatch.setattr(Autoscaler, "_wait", fail)


@proven(without=fails_what_it_cannot_find)
async def test_f086_a_request_that_comes_before_its_template_waits_for_it(scaled: Cluster) -> None:
    """F86: a request exists before its pod template. Holds: it waits, is not failed, and is served when that comes."""
    await scaled.ask("early", 1, template=False)
    await scaled.see(
        PROVISIONING_REQUEST,
        "early",
        "default",
        lambda found: "does not exist" in message(found, "Provisioned") + message(found, "Failed"),
    )
    await scaled.template("early")
    done = await scaled.request("early", "Provisioned")
    assert not condition("Failed", "True")(done)


def books_beside_its_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_of_it(booking: Booking, taken: object) -> list[Place]:
        return unused(booking, ())

    for module in (autoscaler, bookings):
        monkeypatch.setattr(module, "unused", all_of_it)


@proven(without=books_beside_its_pods)
async def test_f088_a_booking_ends_exactly_when_its_pods_are_bound(scaled: Cluster) -> None:
    """F88: booked room, then the pods that use it. Holds: what a pod takes is booked no more: no place counts twice."""
    await scaled.node("own", capacity={"cpu": "8", "memory": "8Gi", "nvidia.com/gpu": "4"})
    await scaled.ask("job", 2, CHECK)
    await scaled.request("job", "Provisioned")
    for name in "ab":
        await scaled.pod(name, gpus=1, annotations={CONSUME: "job"}, nodeSelector={"kubernetes.io/hostname": "own"})
        assert await scaled.bound(name) == "own"
    for name in "cd":
        await scaled.pod(name, gpus=1, nodeSelector={"kubernetes.io/hostname": "own"})
        assert await scaled.bound(name) == "own"
    await scaled.see(
        PROVISIONING_REQUEST, "job", "default", lambda one: BOOKING not in (one["metadata"].get("annotations") or {})
    )


def sees_no_booking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Autoscaler, "_booked", lambda self: [])


@proven(without=sees_no_booking)
async def test_f088_booked_nodes_are_not_scaled_down(scaled: Cluster) -> None:
    """F88: provisioned nodes stay empty for longer than others may. Holds: they stay until the booking ends."""
    await scaled.ask("job", 2)
    await scaled.request("job", "Provisioned")
    await asyncio.sleep(3 * SETTINGS.idle_seconds)
    assert await gpu_nodes(scaled) == ["gpu-0", "gpu-1"]
    await scaled.client.delete(PROVISIONING_REQUEST, "job", "default")
    await scaled.until(lambda: _none(scaled))


def never_ends_a_booking(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Autoscaler, request: dict, held: object) -> None:
        return None

    monkeypatch.setattr(Autoscaler, "_watch_provisioned", nothing)


@proven(without=never_ends_a_booking)
async def test_f089_room_that_no_pod_uses_is_given_back_after_a_time(cluster: Cluster) -> None:
    """F89: provisioned, and the pods never come. Holds: BookingExpired in time; others may have the room."""
    settings = msgspec.structs.replace(SETTINGS, booking_seconds=1.0, idle_seconds=60.0)
    await cluster.begin(cluster.scheduler, Autoscaler(cluster.client, settings, "test"))
    await cluster.ask("job", 3)
    await cluster.request("job", "Provisioned")
    await cluster.pod("foreign", gpus=1)
    await cluster.request("job", "BookingExpired")
    assert (await cluster.bound("foreign")).startswith("gpu-")


@proven(without=books_beside_its_pods)
async def test_f090_a_request_kept_after_the_end_blocks_no_gang(scaled: Cluster) -> None:
    """F90: pods have ended, their request is still there. Holds: it holds nothing; nodes serve others, or go."""
    await scaled.ask("job", 3)
    await scaled.request("job", "Provisioned")
    for name in "abc":
        await scaled.pod(name, gpus=1, annotations={CONSUME: "job", RUN_SECONDS: "0.1"})
    for name in "abc":
        await scaled.see(POD, name, "default", phase("Succeeded"))
    await scaled.pod("next", gpus=1, annotations={RUN_SECONDS: "0.1"})
    assert (await scaled.bound("next")).startswith("gpu-")
    await scaled.until(lambda: _none(scaled))
    found = await scaled.client.get(PROVISIONING_REQUEST, "job", "default")
    assert not condition("CapacityRevoked", "True")(found)


async def _none(cluster: Cluster) -> bool:
    return not await gpu_nodes(cluster)


# --- pending pods, idle nodes, what is published


async def test_pending_pods_make_a_pool_grow_and_idle_nodes_go(scaled: Cluster) -> None:
    await scaled.pod("large", cpu="3", annotations={RUN_SECONDS: "0.2"})
    assert (await scaled.bound("large")).startswith("gpu-")
    await scaled.see(POD, "large", "default", phase("Succeeded"))
    await scaled.until(lambda: _none(scaled))


async def test_pending_pods_get_no_more_nodes_than_they_need(scaled: Cluster) -> None:
    """Four pods of two cores each: two nodes of four cores; none of them counts on another's place."""
    for name in "abcd":
        await scaled.pod(name, cpu="2", nodeSelector={"kind": "gpu"})
    where = [await scaled.bound(name) for name in "abcd"]
    assert sorted(where) == ["gpu-0", "gpu-0", "gpu-1", "gpu-1"]
    assert await gpu_nodes(scaled) == ["gpu-0", "gpu-1"]


async def test_a_pending_gang_grows_a_pool_whole_or_not_at_all(scaled: Cluster) -> None:
    for index in range(4):
        await scaled.pod(f"big-{index}", gpus=1, gang=("big", 4))
    await scaled.waits("big-0", "start together or not at all")
    for index in range(2):
        await scaled.pod(f"small-{index}", gpus=1, gang=("small", 2))
    assert sorted([await scaled.bound(f"small-{index}") for index in range(2)]) == ["gpu-0", "gpu-1"]
    assert await gpu_nodes(scaled) == ["gpu-0", "gpu-1"]


async def test_devices_are_not_spent_on_pods_that_do_not_ask_for_them(cluster: Cluster) -> None:
    plain = Pool(name="plain", capacity={"cpu": "2", "memory": "8Gi"}, most=5, delay=0.01, runtime="simulated")
    settings = LocalSettings(pools=(GPU, plain))
    await cluster.begin(cluster.scheduler, Autoscaler(cluster.client, settings, "test"))
    await cluster.pod("a", cpu="2")
    assert await cluster.bound("a") == "plain-0"


async def test_a_pool_keeps_its_least(cluster: Cluster) -> None:
    settings = LocalSettings(pools=(msgspec.structs.replace(GPU, least=2),), idle_seconds=0.1)
    await cluster.begin(Autoscaler(cluster.client, settings, "test"))

    async def both() -> bool:
        return await gpu_nodes(cluster) == ["gpu-0", "gpu-1"]

    await cluster.until(both)
    await asyncio.sleep(0.4)
    assert await both()


async def test_what_could_still_come_is_published(scaled: Cluster) -> None:
    def left(wanted: int):  # type: ignore[no-untyped-def]
        return lambda found: published(found)["gpu"].obtainable == wanted

    found = await scaled.see(CONFIG_MAP, NAME, NAMESPACE, left(3))
    assert published(found)["gpu"].labels["kind"] == "gpu"
    await scaled.ask("job", 2)
    await scaled.see(CONFIG_MAP, NAME, NAMESPACE, left(1))


def test_a_pod_takes_the_place_that_was_meant_for_it() -> None:
    small, large = {"cpu": 1000}, {"cpu": 4000}
    booking = Booking((BookedPods(small, {"a": 1, "b": 1}), BookedPods(large, {"a": 1})))
    assert unused(booking, [("a", large)]) == [Place("a", small, 1), Place("b", small, 1)]
    assert unused(booking, [("c", small)]) == [Place("b", small, 1), Place("a", large, 1)]
    assert unused(booking, [("a", small), ("b", small), ("a", large), ("a", large)]) == []


def test_conditions_keep_their_times_until_their_status_changes() -> None:
    request = {"metadata": {"generation": 1}, "status": {}}
    first = requests.with_conditions(request, 1_000_000, Provisioned=(False, "Pending", "soon"))
    request["status"] = {"conditions": first}
    second = requests.with_conditions(request, 9_000_000, Provisioned=(False, "Pending", "later"))
    assert second[0]["lastTransitionTime"] == first[0]["lastTransitionTime"] and second[0]["message"] == "later"
    third = requests.with_conditions(request, 9_000_000, Provisioned=(True, "Done", ""))
    assert third[0]["lastTransitionTime"] != first[0]["lastTransitionTime"]


async def test_a_node_that_is_about_to_go_takes_no_new_pod_and_stays_for_one_that_came_before(cluster: Cluster) -> None:
    """The taint goes on first. A pod that was bound at that very moment keeps its node, and the taint comes off."""
    settings = LocalSettings(pools=(GPU,), idle_seconds=0.2)
    await cluster.node("gpu-0", capacity=GPU.capacity, labels={"shoal.dev/pool": "gpu"})
    taints = {"spec": {"taints": [autoscaler.LEAVING]}}
    await cluster.client.patch(NODE, "gpu-0", None, taints)
    await cluster.pod("late", nodeName="gpu-0")
    await cluster.begin(cluster.agent, Autoscaler(cluster.client, settings, "test"))
    await cluster.see(NODE, "gpu-0", None, lambda node: not node["spec"].get("taints"))
    await cluster.client.delete(POD, "late", "default", grace_seconds=0)
    await cluster.until(lambda: _none(cluster))


async def test_pods_of_daemon_sets_keep_no_node(cluster: Cluster) -> None:
    settings = LocalSettings(pools=(GPU,), idle_seconds=0.2)
    await cluster.node("gpu-0", capacity=GPU.capacity, labels={"shoal.dev/pool": "gpu"})
    made = await cluster.pod("log-collector", nodeName="gpu-0")
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "logs", "uid": "some-uid", "controller": True}
    await cluster.client.patch(POD, made["metadata"]["name"], "default", {"metadata": {"ownerReferences": [owner]}})
    await cluster.begin(Autoscaler(cluster.client, settings, "test"))
    await cluster.until(lambda: _none(cluster))
