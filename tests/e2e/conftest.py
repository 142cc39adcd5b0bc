"""Clusters of this machine for the end-to-end tests: started by command, gone afterwards whatever happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.machine import Machine


@pytest.fixture
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Machine]]:
    """`machine("--node", …)` starts a cluster with these arguments and returns it."""
    started: list[Machine] = []

    def start(*arguments: str) -> Machine:
        made = Machine(f"t{abs(hash(request.node.name)) % 10_000}-{len(started)}", tmp_path)
        started.append(made)
        made.up(*arguments)
        return made

    yield start
    for one in started:
        one.down("--purge")
