"""What leaving survives: room is held until the last pod is gone, by whatever way a gang goes."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.cli import why
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.appwrapper import dispatch as dispatching
from shoal.kube.transport import Request, Response
from shoal.sdk import gangs
from tests.cluster import Cluster, running
from tests.faults import proven
from tests.unit.appwrapper.build import (
    app_wrapper,
    config_map,
    dispatched,
    has_state,
    needs,
    of_gang,
    pod,
    set_pod,
    trail,
    waits,
)
from tests.unit.appwrapper.meddler import Meddler, refusal
from tests.unit.appwrapper.test_faults_dispatch import impatient, start


def starts_while_pods_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.controllers.planning.pods import GangPod

    monkeypatch.setattr(GangPod, "is_live", property(lambda self: False))
    impatient(monkeypatch)


@proven(without=starts_while_pods_end)
async def test_f031_a_gang_taken_back_waits_until_its_pods_are_gone(quiet: Cluster) -> None:
    """F31: a preempted gang's pod takes its time to end. Holds: its room is not given away and it is not queued again
    before the pod is gone."""
    start(quiet, settings=AppWrapperSettings(trust_unstamped=True, preemption=True))
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("low", config_map("low"), needs=[needs(1, cpu="3")]))
    low = await quiet.until(kinds.APP_WRAPPER, "low", dispatched)
    await quiet.create(kinds.POD, of_gang(low, pod("slow", cpu="3")))
    await set_pod(quiet, "slow", "Running")
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("high", pod("high", cpu="3"), priority=5))
    await quiet.until_gone(kinds.CONFIG_MAP, "low")
    await quiet.settled()
    assert (await quiet.get(kinds.APP_WRAPPER, "low"))["status"]["state"] == "Running"
    assert await quiet.names(kinds.POD) == ["slow"]
    await quiet.client.delete(kinds.POD, "slow", "default", grace_seconds=0)
    await quiet.until(kinds.APP_WRAPPER, "high", dispatched)
    low = await quiet.until(kinds.APP_WRAPPER, "low", has_state("Pending"))
    assert ("PreemptCandidate", "Preempted") in [one[:2] for one in trail(low)]


async def test_a_deleted_gang_goes_at_once_even_where_no_controller_collects_garbage() -> None:
    async with running(with_builtin=False) as bare:
        await bare.add_node("node-1", cpu="4")
        start(bare)
        await bare.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("a"), pod("b", cpu="3")))
        await bare.until(kinds.APP_WRAPPER, "gang", dispatched)
        await bare.client.delete(kinds.APP_WRAPPER, "gang", "default")
        await bare.until_gone(kinds.POD, "b")
        await bare.until_gone(kinds.CONFIG_MAP, "a")


def removes_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatching, "is_ours", lambda obj, wrapper: True)


@proven(without=removes_by_name)
async def test_f010_what_was_orphaned_on_purpose_stays_and_holds_its_room(cluster: Cluster) -> None:
    """F10: the AppWrapper is deleted with `--cascade=orphan`. Holds: its pod stays, and its room is taken until that
    pod is gone."""
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("gang", pod("left", cpu="3")))
    await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    await set_pod(cluster, "left", "Running")
    await cluster.client.delete(kinds.APP_WRAPPER, "gang", "default", propagation="Orphan")
    await cluster.until_gone(kinds.APP_WRAPPER, "gang")
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("next", config_map("n"), needs=[needs(1, cpu="3")]))
    await cluster.until(kinds.APP_WRAPPER, "next", waits)
    await cluster.settled()
    left = await cluster.get(kinds.POD, "left")
    assert not left["metadata"].get("ownerReferences") and "deletionTimestamp" not in left["metadata"]
    await cluster.client.delete(kinds.POD, "left", "default", grace_seconds=0)
    await cluster.until(kinds.APP_WRAPPER, "next", dispatched)


@proven(without=starts_while_pods_end)
async def test_f031_a_deleted_gang_keeps_its_room_until_its_pods_are_gone() -> None:
    """F31: an AppWrapper is deleted and its pod, which never got a node, is not deleted for a while. Holds: the room is
    given to the next only when that pod is gone."""
    async with running(with_builtin=False) as bare:

        async def before(request: Request) -> Response | None:
            is_pod = request.path.endswith("/pods/lingers")
            return refusal(403, "Forbidden", "not now") if request.method == "DELETE" and is_pod else None

        await bare.add_node("node-1", cpu="4")
        start(bare, Meddler(bare.server.transport(), before))
        await bare.create(kinds.APP_WRAPPER, app_wrapper("gang", pod("lingers", cpu="3")))
        await bare.until(kinds.APP_WRAPPER, "gang", dispatched)
        await bare.settled()
        await bare.client.delete(kinds.APP_WRAPPER, "gang", "default")
        await bare.create(kinds.APP_WRAPPER, app_wrapper("next", config_map("n"), needs=[needs(1, cpu="3")]))
        await bare.until(kinds.APP_WRAPPER, "next", waits)
        told = await why.explain_to(bare.client, gangs.KINDS, "next", "default")
        assert told["holders"] == ["AppWrapper/default/gang (deleted, its pods are ending)"]
        await bare.client.delete(kinds.POD, "lingers", "default", grace_seconds=0)
        await bare.until(kinds.APP_WRAPPER, "next", dispatched)


def counts_those_who_end_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.engine.nodes import to_come

    monkeypatch.setattr(to_come, "fulfils", lambda gang, pod: not pod.is_terminal and not pod.deleting)


@proven(without=counts_those_who_end_twice)
async def test_f156_a_deleted_gang_whose_pods_are_ending_is_counted_once(cluster: Cluster) -> None:
    """F156: an AppWrapper with half of a node is deleted and its pod takes its time to end. Holds: the pod is counted
    once, and the other half goes to the next at once."""
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("gang", pod("slow", cpu="2")))
    await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    await set_pod(cluster, "slow", "Running")
    await cluster.client.delete(kinds.APP_WRAPPER, "gang", "default")
    await cluster.until_gone(kinds.APP_WRAPPER, "gang")
    await cluster.until(kinds.POD, "slow", lambda one: "deletionTimestamp" in one["metadata"])
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("next", pod("next", cpu="2")))
    await cluster.until(kinds.APP_WRAPPER, "next", dispatched)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("third", pod("third", cpu="1")))
    found = await cluster.until(kinds.APP_WRAPPER, "third", waits)
    assert "1 cpu needed, 0 free" in found["status"]["message"]
    await cluster.client.delete(kinds.POD, "slow", "default", grace_seconds=0)
    await cluster.until(kinds.APP_WRAPPER, "third", dispatched)


@proven(without=counts_those_who_end_twice)
async def test_f156_a_gang_that_is_taken_back_is_counted_once_while_its_pods_end(quiet: Cluster) -> None:
    """F156: a preempted gang's pod is ending. Holds: what it does not hold goes to others meanwhile."""
    start(quiet, settings=AppWrapperSettings(trust_unstamped=True, preemption=True))
    await quiet.add_node("node-2", cpu="4", memory="8Gi", labels={"second": "yes"})
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("low", pod("low", cpu="3")))
    await quiet.until(kinds.APP_WRAPPER, "low", dispatched)
    await set_pod(quiet, "low", "Running", "node-2")
    high = pod("high", cpu="4")
    high["spec"]["nodeSelector"] = {"second": "yes"}
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("high", high, priority=5))
    await quiet.until(kinds.POD, "low", lambda one: "deletionTimestamp" in one["metadata"])
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("other", pod("other", cpu="4")))
    await quiet.until(kinds.APP_WRAPPER, "other", dispatched)
    await quiet.client.delete(kinds.POD, "low", "default", grace_seconds=0)
    await quiet.until(kinds.APP_WRAPPER, "high", dispatched)
