"""Gangs that grow while they run: workers that Ray's autoscaler asks for, against quota trees and full nodes."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.api.gang import GROWTH
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings, monitor
from shoal.controllers.appwrapper.v1beta1 import follow
from shoal.engine.line.state import LineState
from tests.cluster import Cluster
from tests.faults import proven
from tests.planning import planned
from tests.unit.appwrapper.build import (
    app_wrapper,
    config_map,
    dispatched,
    has_state,
    needs,
    of_gang,
    pod,
    quota,
    ray_cluster,
    set_pod,
    waits,
)


async def grown_to_one(cluster: Cluster) -> Json:
    """A RayCluster of one pod in an AppWrapper, under a hard quota of two CPUs; it runs."""
    await cluster.create(kinds.QUOTA_SUBTREE, quota("team", "", ("root", {"cpu": "4"}, False)))
    await cluster.create(kinds.QUOTA_SUBTREE, quota("team", "root", ("green", {"cpu": "2"}, True)))
    made = app_wrapper("gang", ray_cluster("ray"))
    made["metadata"]["labels"] = {"team": "green"}
    await cluster.create(kinds.APP_WRAPPER, made)
    wrapper = await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    await cluster.create(kinds.POD, of_gang(wrapper, pod("head", cpu="1")))
    await set_pod(cluster, "head", "Running")
    return wrapper


def worker(wrapper: Json, name: str) -> Json:
    """As the Ray operator makes it for a gang that runs already."""
    made = of_gang(wrapper, pod(name, cpu="1"))
    made["metadata"]["annotations"][GROWTH] = "true"
    made["spec"]["schedulingGates"] = [{"name": GROWTH}]
    return made


def is_open(one: Json) -> bool:
    return not one["spec"].get("schedulingGates")


async def told(cluster: Cluster, reason: str) -> list[str]:
    events = await cluster.client.list(kinds.EVENT, "default")
    return [one["message"] for one in events if one["reason"] == reason]


def any_pod_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LineState, "room_to_grow", lambda self, pod: ())
    monkeypatch.setattr("tests.cluster.PATIENCE", 5.0)


@proven(without=any_pod_comes)
async def test_f085_growth_beyond_the_quota_of_an_appwrapper_waits_and_comes_when_there_is_room(
    cluster: Cluster,
) -> None:
    """F85: the autoscaler of a wrapped RayCluster asks for more than its quota tree has. Holds: what fits comes, the
    rest waits behind a gate and the AppWrapper says why; it comes when another one goes. What runs stays."""
    wrapper = await grown_to_one(cluster)
    for name in ("one", "two"):
        await cluster.create(kinds.POD, worker(wrapper, name))
        if name == "one":
            await cluster.until(kinds.POD, "one", is_open)
    await cluster.until(kinds.APP_WRAPPER, "gang", lambda found: found["status"].get("pending") == 2)
    await cluster.settled()
    assert not is_open(await cluster.get(kinds.POD, "two"))
    assert ["team/green" in message for message in await told(cluster, "GrowthWaits")] == [True]
    await set_pod(cluster, "one", "Succeeded")
    await cluster.until(kinds.POD, "two", is_open)
    assert dispatched(await cluster.get(kinds.APP_WRAPPER, "gang"))


def growth_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LineState, "charge_growth", lambda self: None)
    monkeypatch.setattr("tests.cluster.PATIENCE", 5.0)


@proven(without=growth_is_free)
async def test_f085_what_a_gang_has_grown_by_is_not_given_to_others(cluster: Cluster) -> None:
    """F85: a wrapped RayCluster has grown up to its quota. Holds: another gang of that quota waits until it shrinks."""
    wrapper = await grown_to_one(cluster)
    await cluster.create(kinds.POD, worker(wrapper, "one"))
    await cluster.until(kinds.POD, "one", is_open)
    await set_pod(cluster, "one", "Running")
    next_one = app_wrapper("next", config_map("next"), needs=[needs(1, cpu="1")])
    next_one["metadata"]["labels"] = {"team": "green"}
    await cluster.create(kinds.APP_WRAPPER, next_one)
    waiting = await cluster.until(kinds.APP_WRAPPER, "next", waits)
    assert "team/green" in waiting["status"]["message"]
    await set_pod(cluster, "one", "Succeeded")
    await cluster.until(kinds.APP_WRAPPER, "next", dispatched)


async def test_a_worker_that_takes_a_dead_ones_place_comes_whatever_the_quota(cluster: Cluster) -> None:
    wrapper = await grown_to_one(cluster)
    shrunk = quota("team", "root", ("green", {"cpu": "1"}, True))["spec"]
    await cluster.client.patch(kinds.QUOTA_SUBTREE, "team-root", "default", {"spec": shrunk})
    await set_pod(cluster, "head", "Failed")
    await cluster.create(kinds.POD, worker(wrapper, "again"))
    await cluster.until(kinds.POD, "again", is_open)


async def test_without_quota_trees_growth_comes_at_once(cluster: Cluster) -> None:
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("gang", ray_cluster("ray")))
    wrapper = await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    await cluster.create(kinds.POD, worker(wrapper, "one"))
    await cluster.until(kinds.POD, "one", is_open)


def everyone_must_be_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = monitor.judge_binding
    monkeypatch.setattr(monitor, "judge_binding", lambda *arguments: judge(*arguments[:4]))
    monkeypatch.setattr("tests.cluster.PATIENCE", 5.0)


@proven(without=everyone_must_be_bound)
async def test_f085_growth_that_finds_no_node_does_not_send_the_gang_back(
    quiet: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F85: the autoscaler asks for a worker that no node has room for, longer than a gang may take to be bound. Holds:
    what was admitted runs on, and the worker joins when there is a node for it."""
    monkeypatch.setattr(follow, "COUNTS_PAUSE", 0.5)
    controller = planned(quiet.client, AppWrapperSettings(bind_seconds=0.2))
    quiet.start(controller.run())
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", ray_cluster("ray")))
    wrapper = await quiet.until(kinds.APP_WRAPPER, "gang", dispatched)
    await quiet.create(kinds.POD, of_gang(wrapper, pod("head", cpu="1")))
    await set_pod(quiet, "head", "Running")
    await quiet.until(kinds.APP_WRAPPER, "gang", lambda found: found["status"].get("running") == 1)
    await quiet.create(kinds.POD, of_gang(wrapper, pod("more", cpu="1")))
    await quiet.until(kinds.APP_WRAPPER, "gang", lambda found: found["status"].get("pending") == 1)
    await set_pod(quiet, "more", "Running")
    grown = await quiet.until(kinds.APP_WRAPPER, "gang", lambda found: found["status"].get("running") == 2)
    assert has_state("Running")(grown)
