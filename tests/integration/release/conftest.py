"""A control plane whose pods the tests play, and one release of the chart on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane import build
from tests.controlplane.plane import ControlPlane
from tests.integration.conftest import judged
from tests.integration.release.release import Release, released


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One node with room for one sample beside the controller; a pod of a Job ends when the test ends it."""
    folder = tmp_path_factory.mktemp("plane") / "state"
    made = ControlPlane(folder, controllers=True, scheduler=True, kwok=True, audit=True, jobs_go_on=True)
    yield from judged(made)


@pytest.fixture
def release(plane: ControlPlane, tmp_path: Path) -> Iterator[Release]:
    with released(build.program("helm", build.HELM), plane, tmp_path) as one:
        yield one
