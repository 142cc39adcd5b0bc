"""The graces of v1beta2 AppWrappers: pods that are late, pods that fail and recover, what is kept after the end."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapperStatus
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.appwrapper.v1beta2 import status as component_status
from shoal.controllers.appwrapper.v1beta2.limits import Patience, duration_text
from tests.cluster import Cluster
from tests.planning import planned
from tests.unit.appwrapper.build import config_map, job, of_gang, ray_cluster, set_pod
from tests.unit.appwrapper.test_components import AW, brief_pod, conditions, phase, wrapper

SECOND = 1_000_000
PREFIX = "workload.codeflare.dev.appwrapper/"


def start(cluster: Cluster, **patience: Any) -> None:
    settings = AppWrapperSettings(patience=Patience(retry_pause=0.05, **patience))
    cluster.start(planned(cluster.client, settings).run())


def told(obj: Json, type: str) -> str:
    return next(one.get("message", "") for one in obj["status"]["conditions"] if one["type"] == type)


async def test_pods_that_never_exist_and_pods_that_are_slow_have_graces_of_their_own(quiet: Cluster) -> None:
    start(quiet, admission=0.2, warm_up=600, retry_limit=0)
    await quiet.create(AW, wrapper("slow", brief_pod("one")))
    await quiet.create(AW, wrapper("missing", ray_cluster("nobody-makes-its-pods")))
    failed = await quiet.until(AW, "missing", phase("Failed"))
    assert conditions(failed)["Unhealthy"] == ("True", "InsufficientPodsReady")
    assert told(failed, "Unhealthy") == "0 pods pending; 0 pods running; 0 pods succeeded"
    assert phase("Running")(await quiet.get(AW, "slow")), "its pod is there and has the longer grace"


async def test_pods_that_are_too_slow_are_tried_again(quiet: Cluster) -> None:
    start(quiet, admission=0.1, warm_up=0.3, retry_limit=1)
    await quiet.create(AW, wrapper("gang", brief_pod("one")))
    again = await quiet.until(
        AW, "gang", lambda one: phase("Running")(one) and one["status"].get("resettingCount") == 1
    )
    assert (conditions(again)["ResourcesDeployed"], told(again, "ResourcesDeployed")) == (
        ("True", "Resuming"),
        "Reset complete; resuming",
    )
    failed = await quiet.until(AW, "gang", phase("Failed"))
    assert told(failed, "Unhealthy") == "1 pods pending; 0 pods running; 0 pods succeeded"


async def test_a_failed_pod_that_is_replaced_in_time_is_no_failure(quiet: Cluster) -> None:
    start(quiet, failure=600)
    await quiet.create(AW, wrapper("gang", ray_cluster("ray")))
    running = await quiet.until(AW, "gang", phase("Running"))
    await quiet.create(kinds.POD, of_gang(running, brief_pod("first")))
    await set_pod(quiet, "first", "Failed")
    unwell = await quiet.until(AW, "gang", lambda one: conditions(one).get("Unhealthy", ("",))[0] == "True")
    assert (conditions(unwell)["Unhealthy"][1], told(unwell, "Unhealthy")) == ("FoundFailedPods", "")
    await quiet.client.delete(kinds.POD, "first", "default")
    await quiet.create(kinds.POD, of_gang(running, brief_pod("second")))
    await set_pod(quiet, "second", "Running")
    well = await quiet.until(AW, "gang", lambda one: conditions(one)["PodsReady"][0] == "True")
    assert conditions(well)["Unhealthy"] == ("False", "FoundNoFailedPods")
    assert told(well, "PodsReady") == "1 pods running; 0 pods succeeded"
    assert "resettingCount" not in well["status"]


async def test_a_component_that_says_it_failed_is_believed_without_a_grace(quiet: Cluster) -> None:
    start(quiet, failure=600, retry_limit=0)
    await quiet.create(AW, wrapper("gang", job("train", cpu="1")))
    await quiet.until(AW, "gang", phase("Running"))
    condition = {"type": "Failed", "status": "True"}
    await quiet.client.patch(
        kinds.JOB, "train", "default", {"status": {"conditions": [condition]}}, subresource="status"
    )
    failed = await quiet.until(AW, "gang", phase("Failed"))
    assert (conditions(failed)["Unhealthy"][1], told(failed, "Unhealthy")) == (
        "FailedComponent",
        "Found 1 failed components",
    )


async def test_what_failed_may_be_kept_for_a_look_until_it_is_suspended(quiet: Cluster) -> None:
    start(quiet)
    notes = {PREFIX + "deletionOnFailureGracePeriodDuration": "1h"}
    await quiet.create(AW, wrapper("gang", config_map("lost"), brief_pod("one"), notes=notes))
    await quiet.until(AW, "gang", phase("Running"))
    await quiet.client.delete(kinds.CONFIG_MAP, "lost", "default")
    await set_pod(quiet, "one", "Running")
    kept = await quiet.until(AW, "gang", lambda one: "DeletingResources" in conditions(one))
    assert conditions(kept)["DeletingResources"] == ("False", "DeletionPaused")
    assert (kept["status"]["phase"], await quiet.names(kinds.POD)) == ("Failed", ["one"])
    await quiet.client.patch(AW, "gang", "default", {"spec": {"suspend": True}})
    gone = await quiet.until(AW, "gang", lambda one: conditions(one)["ResourcesDeployed"] == ("False", "Failed"))
    assert told(gone, "ResourcesDeployed") == "Kueue forced resource deletion by suspending AppWrapper"
    assert (told(gone, "QuotaReserved"), await quiet.names(kinds.POD)) == ("No resources deployed", [])


async def test_what_succeeded_is_kept_for_its_time_and_then_removed(quiet: Cluster) -> None:
    start(quiet)
    for name, time in (("brief", "300ms"), ("long", "9999h")):
        await quiet.create(AW, wrapper(name, brief_pod(name), notes={PREFIX + "successTTLDuration": time}))
        await quiet.until(AW, name, phase("Running"))
        await set_pod(quiet, name, "Succeeded")
        await quiet.until(AW, name, phase("Succeeded"))
    gone = await quiet.until(AW, "brief", lambda one: conditions(one)["ResourcesDeployed"][0] == "False")
    assert told(gone, "ResourcesDeployed") == "Time to live after success of 300ms expired"
    assert (gone["status"]["phase"], await quiet.names(kinds.POD)) == ("Succeeded", ["long"])


async def test_one_that_waits_says_so_in_the_words_that_scalers_look_for(quiet: Cluster) -> None:
    start(quiet)
    await quiet.create(AW, wrapper("big", brief_pod("one", cpu="99")))
    held = await quiet.until(AW, "big", lambda one: "QuotaReserved" in conditions(one) if "status" in one else False)
    assert conditions(held)["QuotaReserved"] == ("False", "Waiting")
    assert told(held, "QuotaReserved") == "Insufficient resources to dispatch AppWrapper."
    assert held["status"]["message"].startswith("99 cpu needed, 4 free")


def test_a_condition_keeps_its_time_until_its_value_changes() -> None:
    """Graces count from there: a new reason or message does not restart them."""
    status = component_status.unhealthy(AppWrapperStatus(), "FoundFailedPods", "", 10 * SECOND)
    status = component_status.unhealthy(status, "InsufficientPodsReady", "2 pods pending", 70 * SECOND)
    assert component_status.since(status, "Unhealthy") == 10 * SECOND
    assert [(one.reason, one.message) for one in status.conditions or ()] == [
        ("InsufficientPodsReady", "2 pods pending")
    ]
    status = component_status.with_condition(status, "Unhealthy", False, "FoundNoFailedPods", "", 80 * SECOND)
    assert component_status.since(status, "Unhealthy") == 80 * SECOND


@pytest.mark.parametrize(
    "seconds, text",
    [
        (168 * 3600.0, "168h0m0s"),
        (90.0, "1m30s"),
        (3600.0, "1h0m0s"),
        (60.0, "1m0s"),
        (1.5, "1.5s"),
        (0.3, "300ms"),
        (0.0, "0s"),
    ],
)
def test_a_duration_reads_as_go_writes_it(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
