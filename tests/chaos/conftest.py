"""Chaos tests: wherever controllers that decide were at work, what they left is judged at rest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.resting import judged_or_marked


@pytest.fixture(autouse=True)
def _at_rest(request: pytest.FixtureRequest) -> Iterator[None]:
    yield from judged_or_marked(request)
