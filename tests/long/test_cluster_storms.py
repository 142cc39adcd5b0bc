"""A thousand storms over a hub of two replicas and three members, each from its seed: some forty minutes."""

from __future__ import annotations

import pytest

from tests.chaos.clusters.test_weather import reproducible as reproducible
from tests.chaos.clusters.test_weather import storm

FIRST, STORMS, AT_ONCE = 1_000, 1_000, 25


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(FIRST, FIRST + STORMS, AT_ONCE))
async def test_in_any_storm_a_gang_runs_in_one_place_at_a_time(first: int) -> None:
    broken = {seed: found for seed in range(first, first + AT_ONCE) if (found := await storm(seed))}
    assert broken == {}
