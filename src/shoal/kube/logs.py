"""How a controller writes its log: lines for people, or one JSON object a line for a collector.

An entry point chooses the format once. Every line that is written while a key is worked on names the controller and the
object, whichever module wrote it; a line about a decision carries the id of that decision.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import IO, Literal

import msgspec

from shoal.api.kind import Kind
from shoal.api.times import micro_text
from shoal.kube import tracing

LogFormat = Literal["text", "json"]
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FIELDS = ("controller", "object", "uid", "decision")
"""What a line may say beside its message; `extra` of a call names them."""
_work: ContextVar[tuple[str, Hashable] | None] = ContextVar("work", default=None)


@contextmanager
def working_on(controller: str, key: Hashable) -> Iterator[None]:
    """Lines written meanwhile are about this key, unless they name another."""
    token = _work.set((controller, key))
    try:
        yield
    finally:
        _work.reset(token)


def key_text(key: Hashable) -> str:
    """A key of a work queue as people write it: `namespace/name`, with the kind before it where the key has one."""
    if isinstance(key, tuple):
        return "/".join(key_text(part) for part in key)
    return key.kind if isinstance(key, Kind) else str(key)


class TextLines(logging.Formatter):
    """As `logging` writes them; the text of a second is made once for all of its lines."""

    def __init__(self) -> None:
        super().__init__(TEXT)
        self._second, self._text = -1, ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        if (second := int(record.created)) != self._second:
            self._second, self._text = second, super().formatTime(record, "%Y-%m-%d %H:%M:%S")
        return f"{self._text},{int(record.msecs):03d}"


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and what the line is about."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, str] = {
            "time": micro_text(int(record.created * 1_000_000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        work = _work.get()
        if work is not None:
            line["controller"], line["object"] = work[0], key_text(work[1])
        line |= {name: str(found) for name in FIELDS if (found := getattr(record, name, None)) is not None}
        if trace := tracing.trace_id():
            line["trace"] = trace
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def configure(chosen: LogFormat, *, verbose: bool = False, stream: IO[str] | None = None) -> None:
    """For the process, from now on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if chosen == "json" else TextLines())
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # no format tells any of these, and they are half of what a line costs
    logging.basicConfig(handlers=[handler], level=logging.DEBUG if verbose else logging.INFO)
