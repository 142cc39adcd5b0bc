"""The operator on an in-memory API server, with time, pods and dashboards in the test's hand."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shoal.controllers.ray import Settings
from tests.conformance.kuberay_traces import Stage


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage(Settings())
    await stage.start()
    yield stage
    await stage.stop()
