"""The operator on an in-memory API server, with time, pods and dashboards in the test's hand.

Every test is judged at its end: what the operator did must not have violated an invariant, whatever the test was about.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from shoal.controllers.ray import RaySettings
from tests.conformance.kuberay_traces import Stage
from tests.unit.ray.judgement import violations


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage(RaySettings())
    await stage.start()
    yield stage
    await stage.stop()


@pytest.fixture(autouse=True)
def judged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every stage that the test opened."""
    opened: list[Stage] = []
    begin = Stage.__init__

    def remembered(self: Stage, *arguments: object, **more: object) -> None:
        begin(self, *arguments, **more)  # type: ignore[arg-type]
        opened.append(self)

    monkeypatch.setattr(Stage, "__init__", remembered)
    yield
    for stage in opened:
        assert violations(stage) == []
