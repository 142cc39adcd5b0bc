"""Restarts and releases: a new controller knows what the last one knew, and nothing that ended still holds room."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.appwrapper.intake import Intake
from shoal.controllers.appwrapper.v1beta1 import status as statuses
from tests.chaos.walks import WALKS, end_state
from tests.cluster import Cluster
from tests.faults import proven
from tests.patience import PATIENCE
from tests.planning import Planned, planned
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, has_state, needs, waits

SAMPLES = Path(__file__).parents[3] / "samples" / "appwrapper"
TRUSTING = AppWrapperSettings(trust_unstamped=True)


def ended_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statuses, "is_terminal", lambda status: False)


@proven(without=ended_is_not_ended)
async def test_f040_a_restart_changes_nothing(quiet: Cluster) -> None:
    """F40: the controller is restarted while one gang runs, one waits and one has ended. Holds: all stay as they are;
    what has ended is not started again, and nothing is overcommitted."""
    running = quiet.start(planned(quiet.client, TRUSTING).run())
    limited = app_wrapper("ended", config_map("e"), schedulingSpec={"dispatchDuration": {"limit": 1}})
    await quiet.create(kinds.APP_WRAPPER, limited)
    await quiet.until(kinds.APP_WRAPPER, "ended", has_state("Failed"))
    for name in ("runs", "waits"):
        await quiet.create(kinds.APP_WRAPPER, app_wrapper(name, config_map(name), needs=[needs(1, cpu="3")]))
    await quiet.until(kinds.APP_WRAPPER, "runs", dispatched)
    await quiet.until(kinds.APP_WRAPPER, "waits", waits)
    async with asyncio.timeout(PATIENCE):
        await quiet.settled()
    before = await end_state(quiet)
    running.cancel()
    await asyncio.wait({running})
    quiet.start(planned(quiet.client, TRUSTING).run())
    await asyncio.sleep(0.2)
    async with asyncio.timeout(PATIENCE):
        await quiet.settled()
    assert await end_state(quiet) == before


def forgets_to_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Intake, "_mark_clean", lambda self, wrapper: None)
    original = Intake.update

    def only_admissions(self: Intake, wrapper: Any) -> None:
        if not (wrapper.status.state == "Pending" and not wrapper.status.can_run and wrapper.status.admission):
            original(self, wrapper)

    monkeypatch.setattr(Intake, "update", only_admissions)


@proven(without=forgets_to_release)
@pytest.mark.parametrize("name", ["requeue", "preempt"])
async def test_f030_who_is_taken_back_holds_nothing_any_more(quiet: Cluster, name: str) -> None:
    """F30: a gang is requeued or preempted. Holds: what is reserved, and who waits, equals what a controller finds that
    starts now."""
    lived, fresh = await books_of_both(quiet, name)
    assert lived == fresh


@pytest.mark.parametrize("name", ["dispatch", "delete", "refuse"])
async def test_the_books_equal_those_of_a_fresh_start(quiet: Cluster, name: str) -> None:
    lived, fresh = await books_of_both(quiet, name)
    assert lived == fresh


async def books_of_both(quiet: Cluster, name: str) -> tuple[Any, Any]:
    """The books of a controller that lived through a walk, and of one that starts at its end."""
    walk, settings = WALKS[name]
    lived = planned(quiet.client, settings)
    quiet.start(lived.run())
    async with asyncio.timeout(PATIENCE):
        await walk(quiet)
        await quiet.settled()
    fresh = planned(quiet.client, settings)
    quiet.start(fresh.run())
    await fresh.loop.caches.synced()
    await fresh.wrappers.synced()
    await quiet.settled()
    return _books(lived), _books(fresh)


def _books(controller: Planned) -> Any:
    engine = controller.loop.engine
    states = {
        key: (gang.state, gang.seats)
        for key in controller.wrappers.context.intake.addresses
        if (gang := engine.gang(key))
    }
    return {name: amount for name, amount in engine.reserved.items() if amount}, engine.waiting, states


def documents(path: Path) -> list[Json]:
    return list(yaml.safe_load_all(path.read_text()))


def is_decided(wrapper: Json) -> bool:
    return dispatched(wrapper) or waits(wrapper) or "phase" in wrapper.get("status", {})


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
async def test_every_sample_applies_and_is_decided(cluster: Cluster, path: Path) -> None:
    await cluster.add_node("big", cpu="64", memory="256Gi", nvidia_com_gpu="8")
    decided = 0
    for obj in documents(path):
        group, _, version = obj["apiVersion"].rpartition("/")
        kind = Kind(group, version, obj["kind"], f"{obj['kind'].lower()}s")
        obj["metadata"]["namespace"] = "default"
        await cluster.create(kind, obj)
        if obj["kind"] == "AppWrapper":
            name = obj["metadata"]["name"]
            await cluster.until(
                kind, name, lambda one: dispatched(one) or waits(one) or "phase" in one.get("status", {})
            )
            decided += 1
    assert decided or "quota" in path.stem
