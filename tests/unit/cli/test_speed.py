"""What the commands cost beside the server: bounds on CPU, so that a loaded machine changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.cli.get import print_gangs
from shoal.kube.errors import NotFound
from shoal.sdk import rows

GANGS = 3000


def cpu_of(*words: str) -> float:
    """Seconds of a process and all that it starts."""
    before = os.times()
    subprocess.run(words, check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_help_costs_less_than_a_moment() -> None:
    words = (sys.executable, "-c", HELP)
    cpu_of(*words)  # compiled modules are there from now on
    assert min(cpu_of(*words) for _ in range(5)) < 0.15


HELP = "import sys; from shoal.cli.main import main; main(['--help'])"


class StoredGangs:
    """A client whose server has answered already."""

    def __init__(self, found: dict[Kind, list[Json]]) -> None:
        self._found = found

    async def list(self, kind: Kind, namespace: str | None = None, **selectors: Any) -> list[Json]:
        if kind not in self._found:
            raise NotFound(404, "NotFound", "not served")
        return self._found[kind]


async def test_three_thousand_gangs_are_listed_in_a_moment(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [
        {
            "metadata": {"name": f"job-{number}", "namespace": "default", "uid": str(number),
                         "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"kueue.x-k8s.io/queue-name": "main"}},
            "spec": {"suspend": True},
            "status": {"jobDeploymentStatus": "Suspended"},
        }
        for number in range(GANGS)
    ]  # fmt: skip
    client: Any = StoredGangs({kinds.RAY_JOB: jobs, kinds.WORKLOAD: [], kinds.POD: []})
    took = []
    for _ in range(3):
        began = time.process_time()
        listed = await rows.listing(client, "default")
        print_gangs(listed.rows, "table", no_headers=False)
        took.append(time.process_time() - began)
    assert capsys.readouterr().out.count("job-") == 3 * GANGS
    assert min(took) < 0.15, took
