"""Faults that only a real API server shows in full: its own garbage collector, admission, access rules."""

from __future__ import annotations

import asyncio
import json

from shoal.api import kinds
from tests.cluster import RemoteCluster
from tests.controlplane.plane import ControlPlane
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, has_state, job, needs, pod, trail, waits


async def test_several_kinds_are_created_and_collected(remote: RemoteCluster) -> None:
    await remote.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("settings"), job("train", 2, cpu="100m")))
    await remote.until(kinds.APP_WRAPPER, "gang", dispatched)
    await remote.client.delete(kinds.APP_WRAPPER, "gang", "default")
    await remote.until_gone(kinds.JOB, "train")
    await remote.until_gone(kinds.CONFIG_MAP, "settings")


async def test_a_refused_object_takes_the_others_with_it(remote: RemoteCluster) -> None:
    bad = pod("bad", cpu="1")
    bad["spec"]["restartPolicy"] = "Sometimes"
    await remote.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("a"), bad))
    failed = await remote.until(kinds.APP_WRAPPER, "gang", has_state("Failed"))
    assert trail(failed)[-1][:2] == ("Failed", "ItemCreationFailure.")
    assert "restartPolicy" in failed["status"]["message"]
    await remote.until_gone(kinds.CONFIG_MAP, "a")


async def test_a_stranger_of_the_same_name_is_left_alone(remote: RemoteCluster) -> None:
    theirs = await remote.create(kinds.CONFIG_MAP, config_map("shared", owner="them"))
    await remote.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("own"), config_map("shared")))
    await remote.until(kinds.APP_WRAPPER, "gang", has_state("Failed"))
    await remote.until_gone(kinds.CONFIG_MAP, "own")
    assert (await remote.get(kinds.CONFIG_MAP, "shared"))["metadata"]["uid"] == theirs["metadata"]["uid"]
    await remote.client.delete(kinds.CONFIG_MAP, "shared", "default")


async def test_a_namespace_quota_of_kubernetes_is_waited_for_and_does_not_fail_the_gang(
    remote: RemoteCluster, plane: ControlPlane
) -> None:
    tight = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "tight"},
        "spec": {"hard": {"pods": "0"}},
    }
    await asyncio.to_thread(plane.kubectl, "create", "-f", "-", stdin=json.dumps(tight))
    await remote.until(kinds.RESOURCE_QUOTA, "tight", lambda one: "hard" in one.get("status", {}))
    await remote.create(kinds.APP_WRAPPER, app_wrapper("gang", pod("x", cpu="100m")))
    admitted = await remote.until(kinds.APP_WRAPPER, "gang", lambda one: one.get("status", {}).get("canrun", False))
    assert admitted["status"]["state"] == "Pending"
    await remote.client.delete(kinds.RESOURCE_QUOTA, "tight", "default")
    await remote.until(kinds.APP_WRAPPER, "gang", dispatched)


async def test_big_ones_wait_whole_and_small_ones_pass(remote: RemoteCluster) -> None:
    await remote.create(kinds.APP_WRAPPER, app_wrapper("big", config_map("big"), needs=[needs(9, cpu="1")]))
    waiting = await remote.until(kinds.APP_WRAPPER, "big", waits)
    assert "cpu" in waiting["status"]["message"]
    await remote.create(kinds.APP_WRAPPER, app_wrapper("small", pod("small", cpu="1")))
    await remote.until(kinds.APP_WRAPPER, "small", dispatched)
    assert "big" not in await remote.names(kinds.CONFIG_MAP)
