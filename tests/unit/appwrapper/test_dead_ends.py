"""What can have no pod any more holds nothing: jobs that failed for good, pods that no controller makes again, objects
that a finalizer keeps."""

from __future__ import annotations

import asyncio

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.appwrapper.intake import Intake
from shoal.controllers.appwrapper.v1beta1 import dead_ends
from tests.cluster import Cluster
from tests.faults import proven
from tests.planning import planned
from tests.unit.appwrapper.build import (
    app_wrapper,
    config_map,
    dispatched,
    has_state,
    job,
    kept,
    needs,
    pod,
    set_pod,
    waits,
)
from tests.unit.appwrapper.test_faults_dispatch import impatient


def counts_dead_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_ends, "ended", lambda kind, status: False)
    impatient(monkeypatch)


@proven(without=counts_dead_ones)
async def test_f032_a_job_that_failed_for_good_holds_nothing(quiet: Cluster) -> None:
    """F32: the wrapped Job has failed for good, no pod of it can ever come, and no completion was asked for. Holds: the
    AppWrapper stays Running, as MCAD's does, and what it was given is free; after a restart, too."""
    running = quiet.start(planned(quiet.client, AppWrapperSettings()).run())
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("dead", job("dead", 1, cpu="3")))
    await quiet.until(kinds.APP_WRAPPER, "dead", dispatched)
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("next", config_map("n"), needs=[needs(1, cpu="3")]))
    await quiet.until(kinds.APP_WRAPPER, "next", waits)
    await quiet.until(kinds.JOB, "dead", lambda one: one.get("status", {}).get("active") == 1)
    (made,) = await quiet.names(kinds.POD)
    await quiet.client.patch(kinds.JOB, "dead", "default", {"spec": {"backoffLimit": 0}})
    await set_pod(quiet, made, "Failed")
    await quiet.until(kinds.APP_WRAPPER, "next", dispatched)
    assert has_state("Running")(await quiet.get(kinds.APP_WRAPPER, "dead"))
    running.cancel()
    await asyncio.wait({running})
    await quiet.client.delete(kinds.APP_WRAPPER, "next", "default")
    quiet.start(planned(quiet.client, AppWrapperSettings()).run())
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("last", config_map("l"), needs=[needs(1, cpu="3")]))
    await quiet.until(kinds.APP_WRAPPER, "last", dispatched)


def waits_for_lost_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Intake, "is_gone", lambda self, uid, pod: True)
    impatient(monkeypatch)


@proven(without=waits_for_lost_pods)
async def test_f032_a_pod_that_no_controller_makes_again_holds_no_room(
    quiet: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F32: of three wrapped pods one runs on, one has failed and one was removed by somebody. Holds: room is kept for
    none of the two, and again for all three once the gang has to start again; after a restart, too."""
    monkeypatch.setattr(dead_ends, "SEEN_AFTER", 0.0)
    running = quiet.start(planned(quiet.client, AppWrapperSettings()).run())
    await quiet.create(
        kinds.APP_WRAPPER, app_wrapper("torn", pod("runs", cpu="1"), pod("fails", cpu="1"), pod("lost", cpu="2"))
    )
    await quiet.until(kinds.APP_WRAPPER, "torn", dispatched)
    for name, phase in (("runs", "Running"), ("fails", "Failed"), ("lost", "Running")):
        await set_pod(quiet, name, phase)
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("next", config_map("n"), needs=[needs(1, cpu="3")]))
    await quiet.until(kinds.APP_WRAPPER, "next", waits)
    await quiet.client.delete(kinds.POD, "lost", "default", grace_seconds=0)
    await quiet.until(kinds.APP_WRAPPER, "next", dispatched)
    await quiet.client.delete(kinds.APP_WRAPPER, "next", "default")
    running.cancel()
    await asyncio.wait({running})
    quiet.start(planned(quiet.client, AppWrapperSettings()).run())
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("last", config_map("l"), needs=[needs(1, cpu="3")]))
    await quiet.until(kinds.APP_WRAPPER, "last", dispatched)


@pytest.mark.parametrize(
    "kind, status, expected",
    [
        ("Job", {"conditions": [{"type": "Complete", "status": "True"}]}, True),
        ("Job", {"conditions": [{"type": "Failed", "status": "False"}]}, False),
        ("RayJob", {"jobDeploymentStatus": "ValidationFailed"}, True),
        ("RayJob", {"jobDeploymentStatus": "Complete", "jobStatus": "RUNNING"}, False),
        ("RayJob", {"jobDeploymentStatus": "Running", "jobStatus": "FAILED"}, False),
        ("JobSet", {"conditions": [{"type": "Failed", "status": "True"}]}, True),
        ("Deployment", {"conditions": [{"type": "Failed", "status": "True"}]}, False),
        ("RayCluster", {"state": "failed"}, False),
    ],
)
def test_what_can_have_no_pod_any_more(kind: str, status: Json, expected: bool) -> None:
    assert dead_ends.ended(kind, status) is expected


def waits_for_finalizers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Intake, "_mark_idle", lambda self, wrapper, idle: None)
    monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)


@proven(without=waits_for_finalizers)
async def test_f032_what_a_finalizer_keeps_after_the_last_pod_holds_no_room(quiet: Cluster, hurried: None) -> None:
    """F32: a gang that is preempted wraps an object with a finalizer that no controller removes. Holds: once its pods
    are gone the gang it makes way for starts."""
    quiet.start(planned(quiet.client, AppWrapperSettings(preemption=True)).run())
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("low", kept(config_map("stuck")), pod("low", cpu="4")))
    await quiet.until(kinds.APP_WRAPPER, "low", dispatched)
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("high", pod("high", cpu="4"), priority=5))
    await quiet.until(kinds.APP_WRAPPER, "high", dispatched)
    assert (await quiet.get(kinds.CONFIG_MAP, "stuck"))["metadata"]["deletionTimestamp"]
    assert await quiet.names(kinds.POD) == ["high"]


@proven(without=waits_for_finalizers)
async def test_f032_an_app_wrapper_that_cannot_go_holds_no_room(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F32: an AppWrapper is deleted in the foreground, and an object of it cannot go. Holds: its room is free when its
    pods are gone, and no grace is waited for."""
    monkeypatch.setattr("shoal.controllers.appwrapper.intake.LEFT_BEHIND", 1000.0)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("old", kept(config_map("stuck")), pod("old", cpu="4")))
    await cluster.until(kinds.APP_WRAPPER, "old", dispatched)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("next", pod("next", cpu="4")))
    await cluster.until(kinds.APP_WRAPPER, "next", waits)
    await cluster.client.delete(kinds.APP_WRAPPER, "old", "default", propagation="Foreground")
    await cluster.until(kinds.APP_WRAPPER, "next", dispatched)
    assert (await cluster.get(kinds.APP_WRAPPER, "old"))["metadata"]["deletionTimestamp"]
