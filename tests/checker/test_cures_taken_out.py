"""The judge at rest finds faults in the running system: each known one is lived through with its cure taken out.

The fault's own test is run with the switch that its proof uses; it fails, and what it leaves behind must be found.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers import appwrapper
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.queues import QueueSettings
from shoal.controllers.queues.reconciler import QueueReconciler
from shoal.controllers.queues.stored import StoredWorkload
from shoal.kube.clock import SystemClock
from tests.cluster import Cluster, running
from tests.resting import look, objects_of, rules_of
from tests.unit.appwrapper import test_faults_leaving
from tests.unit.queues import test_overtaken, test_recovery, test_refused_changes, test_unsuspended, test_wake_ups
from tests.unit.queues.build import complete, job, make, name_of, true
from tests.unit.queues.conftest import quiet  # noqa: F401 - a fixture
from tests.unit.queues.test_leaving import HIGH
from tests.unit.queues.test_refused_changes import crowded  # noqa: F401 - a fixture
from tests.unit.queues.test_unsuspended import small  # noqa: F401 - a fixture

IN_VAIN = 3.0
"""Seconds that a fault's own test waits for what does not come."""
WRAPPERS = AppWrapperSettings()


async def found_without(
    switch: Callable[[pytest.MonkeyPatch], None],
    lived: Awaitable[None],
    world: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> list[str]:
    """What the judge says of the world that a fault's test leaves behind without the cure."""
    monkeypatch.setattr("tests.cluster.PATIENCE", IN_VAIN)
    switch(monkeypatch)
    with pytest.raises((AssertionError, TimeoutError)):
        await lived
    await world.settled()
    assert world.rules is not None
    verdict = look(objects_of(world.server), world.rules)
    world.rules = None  # it has been judged
    return verdict.found


async def test_a_plan_that_reserves_and_evicts_one_gang(quiet: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    lived = test_overtaken.test_f144_what_a_plan_reserves_and_evicts_it_never_reserved(quiet)
    found = await found_without(test_overtaken.decides_without_taking_back, lived, quiet, monkeypatch)
    assert any(one.startswith("I18: Job") and "although its quota is free" in one for one in found), found


async def test_a_preemptor_that_is_overtaken(quiet: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    lived = test_overtaken.test_f146_a_preemptor_that_is_overtaken_starts_in_the_end(quiet, "Job", "6")
    found = await found_without(test_overtaken.decides_without_taking_back, lived, quiet, monkeypatch)
    assert any(one.startswith("I18: Job x waits") and "although its quota is free" in one for one in found), found


def fails_at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that the server refuses ends the look, each time."""

    async def change(self: QueueReconciler, workload: StoredWorkload, job: Json, wanted: Json, what: str) -> bool:
        await self._patch(workload, wanted)
        return True

    test_refused_changes.follows_any_class(monkeypatch)
    monkeypatch.setattr(QueueReconciler, "_change_workload", change)


async def too_late(crowded: Cluster) -> None:  # noqa: F811
    """As F150, without the gang behind: that one is kept waiting, too."""
    (made,) = await make(crowded, job("second", 4))
    await test_refused_changes.waits_for_room(crowded, made)
    await crowded.client.patch(kinds.JOB, "second", "default", {"metadata": {"labels": HIGH}})
    await crowded.settled()
    await complete(crowded, "first", 16)
    await crowded.until(kinds.JOB, "second", lambda one: one["spec"]["suspend"] is False)


async def test_a_priority_that_comes_too_late(crowded: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    lived = too_late(crowded)
    found = await found_without(fails_at_every_look, lived, crowded, monkeypatch)
    assert any(one.startswith("I18: Job second has quota, checks and room") for one in found), found


@pytest.fixture
async def wrappers() -> AsyncIterator[Cluster]:
    """4 cores, and the controller of AppWrappers."""
    async with running() as started:
        await started.add_node("node-1", cpu="4", memory="8Gi")
        started.start(appwrapper.run(started.client, WRAPPERS))
        started.rules = rules_of(WRAPPERS)
        yield started


async def test_pods_that_are_ending_counted_twice(wrappers: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    lived = test_faults_leaving.test_f156_a_deleted_gang_whose_pods_are_ending_is_counted_once(wrappers)
    found = await found_without(test_faults_leaving.counts_those_who_end_twice, lived, wrappers, monkeypatch)
    assert any(one.startswith("I18: AppWrapper default/next waits although it fits") for one in found), found


@pytest.mark.parametrize("leaves", ["deleted", "changed"])
async def test_what_is_not_in_use_and_cannot_go(
    quiet: Cluster,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    leaves: str,
) -> None:
    lived = test_wake_ups.test_f152_what_was_deleted_while_in_use_goes_with_its_last_queue(
        quiet, kinds.RESOURCE_FLAVOR, "default-flavor", leaves
    )
    found = await found_without(test_wake_ups.wakes_nothing_it_names, lived, quiet, monkeypatch)
    assert any(one.startswith("I37: ResourceFlavor default-flavor is deleted") for one in found), found


async def test_a_cluster_that_is_started_past_its_queue(small: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    small.rules = rules_of(AppWrapperSettings(), QueueSettings(), ray=True)
    made = test_unsuspended.ray_cluster("train", 4)
    lived = test_unsuspended.waits_without_a_pod(small, made)
    found = await found_without(test_unsuspended.believes_its_status, lived, small, monkeypatch)
    assert any(one.startswith("I5: RayCluster train has no quota and") for one in found), found


async def test_two_gangs_that_each_have_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have one second, and are judged as if a minute had passed."""
    async with running() as world:
        monkeypatch.setattr(test_recovery.recovery, "GRACE", 0.1)
        test_recovery.no_gang_goes_back(monkeypatch)
        test_recovery.start(world, 1.0)
        for one in await test_recovery.two_with_a_part(world):
            await world.until(kinds.WORKLOAD, name_of(one), true("shoal.dev/PodsMissing"))
        await world.settled()
        queues = QueueSettings(recovery_seconds=1.0)
        rules = rules_of(AppWrapperSettings(trust_unstamped=True), queues)
        found = look(objects_of(world.server), replace(rules, now=SystemClock().now() + 60_000_000)).found
        expected = "I4: Job first and Job second each run in part and keep each other from being whole"
        assert expected in found, found
