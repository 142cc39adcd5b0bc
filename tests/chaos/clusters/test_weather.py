"""A hundred storms over several clusters, each from its seed: two replicas of a hub, three members, one virtual clock.

`SHOAL_SEEDS=from:to` runs other seeds; a failure names its seed. `make test-long PART=cluster_storms` runs a thousand.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from shoal.controllers.multicluster import ClusterSettings
from shoal.controllers.multicluster.wrappers import AppWrapperPlaces
from tests.chaos.clusters.test_killed_moving import starts_at_once
from tests.chaos.clusters.weather import MOVING, SETTINGS, Weather
from tests.faults import proven
from tests.unit.clusters.test_app_wrapper_faults import sweeps_nothing

UNREST = 25
"""Virtual seconds."""
LONG_UNREST = 60
"""The same, where members are to be silent until their gangs start elsewhere."""
A_LATE_CREATE = 1
"""The seed of a storm in which a create arrives after its gang is gone from the hub."""


A_CREATE_WHILE_READING = 65
"""The seed of a storm in which a create arrives while a new leader still reads what is stored."""
A_LONG_SILENCE = 5
"""The seed of a storm in which a member is silent until its gangs start elsewhere."""


def seeds(otherwise: str = "0:100") -> range:
    first, _, last = os.environ.get("SHOAL_SEEDS", otherwise).partition(":")
    return range(int(first), int(last))


def moving_seeds() -> range:
    return seeds("0:6")


@pytest.fixture(autouse=True)
def reproducible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-off jitter comes from the seed, too."""
    for module in ("backoff", "cache", "feed", "lease", "runtime", "writes"):
        monkeypatch.setattr(f"shoal.kube.{module}.Random", lambda *seed: Random(*(seed or (1,))), raising=True)


async def storm(seed: int, settings: ClusterSettings = SETTINGS, unrest: int = UNREST) -> list[str]:
    """What was broken on the way, or is not as it must be in the calm."""
    weather = Weather(seed, settings)
    try:
        await weather.begin()
        await weather.unrest(unrest)
        await weather.calm()
        return weather.differences()
    finally:
        await weather.end()


@pytest.mark.not_at_rest("judged by the merged history, and by what is in which cluster in the end")
@pytest.mark.parametrize("seed", seeds())
async def test_in_any_storm_a_gang_runs_in_one_place_at_a_time(seed: int) -> None:
    assert await storm(seed) == []


@pytest.mark.not_at_rest("judged by the merged history, and by what is in which cluster in the end")
@proven(without=sweeps_nothing)
async def test_f604_in_a_storm_with_late_creates_a_gang_runs_in_one_place_at_a_time() -> None:
    """F604: wires to three members are cut, swallow packets, lose answers and deliver creates late, while replicas of
    the hub and members' controllers die. Holds: in the merged history every gang runs in one place at a time (I40), and
    in the calm it is whole where the hub says, or nowhere (I41)."""
    assert await storm(A_LATE_CREATE) == []


@pytest.mark.not_at_rest("judged by the merged history, and by what is in which cluster in the end")
@pytest.mark.parametrize("seed", moving_seeds())
async def test_in_any_storm_what_moves_from_a_silent_member_runs_in_one_place_at_a_time(seed: int) -> None:
    assert await storm(seed, MOVING, LONG_UNREST) == []


@pytest.mark.not_at_rest("judged by the merged history, and by what is in which cluster in the end")
@proven(without=starts_at_once)
async def test_f728_in_a_storm_what_moves_from_a_silent_member_runs_in_one_place_at_a_time() -> None:
    """F728: the same storms, and every gang goes on elsewhere when its member is silent for too long. Holds: members
    whose clocks are an hour apart, and whose controllers die, stop what they have before it starts elsewhere."""
    assert await storm(A_LONG_SILENCE, MOVING, LONG_UNREST) == []


def judges_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppWrapperPlaces, "everything_is_read", lambda self: None)


@pytest.mark.not_at_rest("judged by the merged history, and by what is in which cluster in the end")
@proven(without=judges_once)
async def test_f734_a_late_copy_that_a_new_leader_saw_before_it_had_read_everything_goes() -> None:
    """F734: a create reaches a member after its gang is gone, in the moment in which another replica begins to lead and
    has not read yet what is stored. Holds: the copy is looked at again once everything is read, and goes."""
    assert await storm(A_CREATE_WHILE_READING) == []
