"""Decisions that would go in circles end soon, also where a protection was taken away to prove a fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shoal.engine.kueue.cycle import planner


@pytest.fixture(scope="session", autouse=True)
def few_cycles() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "MOST_CYCLES", 2_000)
        yield
