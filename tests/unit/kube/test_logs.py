"""A log in JSON: every line is one object, and says what it is about."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from shoal.api.kind import Key
from shoal.api.kinds import RAY_JOB
from shoal.kube.errors import KubeError
from shoal.kube.logs import JsonLines, key_text, working_on
from shoal.kube.runtime import Controller
from tests.faults import proven
from tests.patience import PATIENCE


class Lines(logging.Handler):
    """Keeps what a collector would read."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    handler = Lines()
    log = logging.getLogger("shoal")
    log.addHandler(handler)
    with caplog.at_level(logging.INFO, "shoal"):
        yield handler.lines
    log.removeHandler(handler)


def test_a_line_has_its_time_level_and_message(lines: list[dict[str, Any]]) -> None:
    logging.getLogger("shoal.test").info("node %s is left out: \n%s", "a", {"x": "ü"})
    (line,) = lines
    assert line["message"] == "node a is left out: \n{'x': 'ü'}"
    assert (line["level"], line["logger"]) == ("info", "shoal.test")
    assert line["time"].endswith("Z") and "controller" not in line


@pytest.mark.parametrize(
    "key, text",
    [
        (Key("lab", "train"), "lab/train"),
        (Key("", "gpu"), "gpu"),
        ((RAY_JOB, Key("lab", "train")), "RayJob/lab/train"),
        ("AppWrapper/lab/train", "AppWrapper/lab/train"),
    ],
)
def test_keys_of_every_controller_read_alike(key: Any, text: str) -> None:
    assert key_text(key) == text


def _forgets_what_is_worked_on(patch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    patch.setattr("shoal.kube.runtime.working_on", lambda *about: nullcontext())


@proven(without=_forgets_what_is_worked_on)
async def test_f331_lines_of_workers_side_by_side_name_their_own_object(lines: list[dict[str, Any]]) -> None:
    """F331: several keys are worked on at once, and a module below writes a line that does not name one. Holds: each
    line names the controller and the object of its own pass, also when the pass fails."""
    both = asyncio.Barrier(2)
    failed = asyncio.Event()

    async def reconcile(key: Key) -> None:
        await both.wait()
        logging.getLogger("shoal.below").info("written for %s", key)
        if key.name == "b" and not failed.is_set():
            failed.set()
            raise KubeError("the server said no")

    controller: Controller[Key] = Controller("queues", reconcile, workers=2, first_retry=3600.0)
    running = asyncio.ensure_future(controller.run())
    for name in ("a", "b"):
        controller.enqueue(Key("lab", name))
    async with asyncio.timeout(PATIENCE):
        await failed.wait()
        await controller.until_idle()
    running.cancel()
    written = {line["message"]: (line.get("controller"), line.get("object")) for line in lines}
    assert written["written for lab/a"] == ("queues", "lab/a")
    assert written["written for lab/b"] == ("queues", "lab/b")
    (refused,) = (about for message, about in written.items() if "the server said no" in message)
    assert refused == ("queues", "lab/b")


def test_a_line_may_name_another_object_than_the_one_in_work(lines: list[dict[str, Any]]) -> None:
    with working_on("queues", Key("lab", "a")):
        logging.getLogger("shoal.x").info("decided", extra={"object": "Workload/lab/b", "decision": "1f"})
    (line,) = lines
    assert (line["controller"], line["object"], line["decision"]) == ("queues", "Workload/lab/b", "1f")


def test_an_error_is_one_line_with_its_trace(lines: list[dict[str, Any]]) -> None:
    try:
        raise ValueError("bad")
    except ValueError as error:
        logging.getLogger("shoal.x").error("failed", exc_info=error)
    assert "ValueError: bad" in lines[0]["error"]
