"""An in-memory cluster with one node; the AppWrapper controller runs with the settings that a test asks for.

Whatever a test does, the whole history of its cluster is judged afterwards; so is what was logged meanwhile, at every
level, and whether anybody was called over a network.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from shoal.controllers import appwrapper
from shoal.controllers.appwrapper import AppWrapperSettings
from tests.checker.gang_rules import judge
from tests.checker.gang_story import changes_of
from tests.checker.safety import leaks, only_calling
from tests.cluster import Cluster, running
from tests.resting import rules_of


class Heard(logging.Handler):
    """Keeps every line that our own code logs."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def heard() -> Iterator[Heard]:
    ours, handler = logging.getLogger("shoal"), Heard()
    level = ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG)
    yield handler
    ours.setLevel(level)
    ours.removeHandler(handler)


@pytest.fixture
async def quiet(heard: Heard) -> AsyncIterator[Cluster]:
    """The cluster alone: 4 cpu, 8Gi, no controller that decides."""
    with only_calling(lambda address: False):
        async with running() as started:
            await started.add_node("node-1", cpu="4", memory="8Gi")
            yield started
            changes = changes_of(started.server)
            found = judge(changes) + leaks(changes, heard.lines)
            assert found == [], found


@pytest.fixture
async def cluster(quiet: Cluster) -> Cluster:
    quiet.start(appwrapper.run(quiet.client))
    quiet.rules = rules_of(AppWrapperSettings())
    return quiet


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot go holds no room after a moment instead of five seconds."""
    monkeypatch.setattr("shoal.controllers.appwrapper.intake.LEFT_BEHIND", 0.2)
