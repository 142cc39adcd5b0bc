"""ARCHITECTURE.md lists the functions that one AppWrapper and one queued RayJob pass, from watch to write; this keeps
the lists true: each names a real function, none is passed twice, and a real gang passes them in this order."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from shoal.api import kinds
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.queues import QueueSettings
from tests.cluster import Cluster, running
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, dispatched, pod
from tests.unit.queues.build import cluster_queue, flavor, local_queue, make, ray_job

PAGE = Path(__file__).parents[2] / "ARCHITECTURE.md"
ROOMS = ("kube", "engine", "controllers.planning", "controllers.demand", "controllers.appwrapper", "controllers.queues")
STEP = re.compile(r"^\d+\. `([a-z_.]+)` `([A-Za-z_.]+)`", re.MULTILINE)
WALKS = ("The walk of one AppWrapper", "The walk of one RayJob with a queue label")


def steps_of(title: str) -> list[tuple[str, str]]:
    """Module, below `shoal`, and function, in the order of the page."""
    section = PAGE.read_text().split(f"### {title}\n")[1].split("\n#")[0]
    return STEP.findall(section)


def found(module: str, name: str) -> Callable[..., Any]:
    one: Any = importlib.import_module(f"shoal.{module}")
    for part in name.split("."):
        one = getattr(one, part)
    return one  # type: ignore[no-any-return]


@contextmanager
def followed(steps: list[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Every call of these functions, in order."""
    names: dict[CodeType, tuple[str, str]] = {found(*step).__code__: step for step in steps}
    calls: list[tuple[str, str]] = []

    def heard(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code in names:
            calls.append(names[frame.f_code])

    before = sys.getprofile()
    sys.setprofile(heard)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def passes(calls: list[tuple[str, str]], steps: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The steps that were not passed in this order."""
    left = iter(calls)
    return [step for step in steps if step not in left]


@pytest.mark.parametrize("title", WALKS)
def test_every_step_is_a_function_of_one_room_and_none_is_passed_twice(title: str) -> None:
    steps = steps_of(title)
    assert len(steps) >= 15 and len(set(steps)) == len(steps)
    for module, name in steps:
        assert found(module, name).__module__ == f"shoal.{module}", f"{name} is not at home in {module}"
        assert len([room for room in ROOMS if module == room or module.startswith(f"{room}.")]) == 1, module


@pytest.fixture
async def quiet() -> Any:
    async with running() as started:
        await started.add_node("node-1", cpu="16", memory="64Gi")
        yield started


async def test_one_app_wrapper_walks_as_the_page_says(quiet: Cluster) -> None:
    steps = steps_of(WALKS[0])
    quiet.start(planned(quiet.client, AppWrapperSettings()).run())
    await quiet.settled()
    with followed(steps) as calls:
        await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", pod("one", cpu="1")))
        await quiet.until(kinds.APP_WRAPPER, "gang", dispatched)
    assert passes(calls, steps) == []


async def test_one_queued_ray_job_walks_as_the_page_says(quiet: Cluster) -> None:
    steps = steps_of(WALKS[1])
    quiet.start(planned(quiet.client, AppWrapperSettings(), queues=QueueSettings()).run())
    await make(quiet, flavor(), cluster_queue(), local_queue())
    await quiet.settled()
    with followed(steps) as calls:
        await make(quiet, ray_job("train"))
        await quiet.until(kinds.RAY_JOB, "train", lambda job: job["spec"].get("suspend") is False)
    assert passes(calls, steps) == []
