"""A server with stored kinds and no controllers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.cluster import Cluster, running


@pytest.fixture
async def quiet() -> AsyncIterator[Cluster]:
    async with running(with_builtin=False) as made:
        yield made
