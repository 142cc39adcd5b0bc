"""Storms over a hub of two replicas and three members, a thousand and a hundred that move gangs: some fifty minutes."""

from __future__ import annotations

import pytest

from tests.chaos.clusters.test_weather import LONG_UNREST, storm
from tests.chaos.clusters.test_weather import reproducible as reproducible
from tests.chaos.clusters.weather import MOVING

FIRST, STORMS, AT_ONCE = 1_000, 1_000, 25
MOVING_STORMS = 100


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(FIRST, FIRST + STORMS, AT_ONCE))
async def test_in_any_storm_a_gang_runs_in_one_place_at_a_time(first: int) -> None:
    broken = {seed: found for seed in range(first, first + AT_ONCE) if (found := await storm(seed))}
    assert broken == {}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(FIRST, FIRST + MOVING_STORMS, AT_ONCE))
async def test_in_any_storm_what_moves_from_a_silent_member_runs_in_one_place_at_a_time(first: int) -> None:
    seeds = range(first, first + AT_ONCE)
    broken = {seed: found for seed in seeds if (found := await storm(seed, MOVING, LONG_UNREST))}
    assert broken == {}
