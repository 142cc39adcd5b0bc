"""The scheduler of scheduler-plugins, built and run: two gangs that each fit half never hold half."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controlplane import build
from tests.integration.scheduling.test_upstream import PLUGINS, assert_no_half_is_held, configuration

pytestmark = pytest.mark.timeout(2400)  # where the programs must be built first


def test_pod_groups_of_scheduler_plugins_start_whole_or_not_at_all(tmp_path: Path) -> None:
    program = build.program("scheduler_plugins", build.SCHEDULER_PLUGINS)
    assert_no_half_is_held(
        tmp_path, PLUGINS, scheduler_program=program, scheduler_configuration=configuration("coscheduling.yaml")
    )
