"""Reading a container's log files: whole, tail, since, with times, and following.

Serves `kubectl logs`. Opens files below the container's own directory only, by handles that follow no link.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.kube.clock import Clock

_FOLLOW_PERIOD = 0.2


CANNOT_RUN = "ContainerCannotRun"
"""Reason of a container that there never was, such as one to look into a simulated pod."""


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`kubectl logs` as options. `since` is a moment in microseconds."""

    follow: bool = False
    previous: bool = False
    tail: int | None = None
    since: int | None = None
    timestamps: bool = False
    limit_bytes: int | None = None


def why_no_log(pod: Json, container: str, previous: bool) -> str:
    """Why there is nothing to read yet of a container, in the kubelet's words; empty when there is."""
    status = pod.get("status") or {}
    found = next(
        (
            one
            for part in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
            for one in status.get(part) or ()
            if one.get("name") == container
        ),
        None,
    )
    whose = f'container "{container}" in pod "{pod["metadata"]["name"]}"'
    if found is None:
        return f"{whose} is not available"
    ran_before = bool((found.get("lastState") or {}).get("terminated"))
    if previous:
        return "" if ran_before else f"previous terminated {whose} not found"
    waiting = (found.get("state") or {}).get("waiting")
    if waiting is None or ran_before:
        ended = (found.get("state") or {}).get("terminated") or {}
        return str(ended.get("message") or "") if ended.get("reason") == CANNOT_RUN else ""
    return f"{whose} is waiting to start: {waiting.get('reason') or 'ContainerCreating'}"


async def read_log(
    directory: Path, options: LogOptions, ended: Callable[[], bool], clock: Clock
) -> AsyncIterator[bytes]:
    """The log of one run as chunks. Follows until `ended` says that nothing more can come."""
    left = options.limit_bytes
    tail = _Tail(directory)
    try:
        kept, rest = _kept(directory, tail, options)
        for chunk in _shown(kept, options):
            if left is not None:
                chunk, left = chunk[:left], left - len(chunk)
            yield chunk
            if left is not None and left <= 0:
                return
        while options.follow:
            last = ended()
            *lines, rest = (rest + tail.read()).split(b"\n")
            text = b"".join(_shown([line for line in lines if line], options))
            if left is not None:
                text, left = text[:left], left - len(text)
            if text:
                yield text
            if last or (left is not None and left <= 0):
                return
            await clock.sleep(_FOLLOW_PERIOD)
    finally:
        tail.close()


def last_lines(directory: Path, lines: int, length: int) -> str:
    """The end of a log, for a termination message."""
    options, tail = LogOptions(tail=lines), _Tail(directory)
    try:
        return b"".join(_shown(_kept(directory, tail, options)[0], options)).decode(errors="replace")[-length:]
    finally:
        tail.close()


def _kept(directory: Path, tail: _Tail, options: LogOptions) -> tuple[list[bytes], bytes]:
    """The wanted lines of what is there, and the beginning of one that is being written: `tail` goes on after that."""
    *newest, rest = tail.rest().split(b"\n")
    older = b"" if tail.is_file(directory / "log.1") else _read(directory, "log.1")  # rotated just now: read already
    lines = [line for line in [*older.split(b"\n"), *newest] if line]
    if options.since is not None:
        lines = [line for line in lines if _moment(line) >= options.since]
    if options.tail is not None:
        lines = lines[-options.tail :] if options.tail > 0 else []
    return lines, rest


def _shown(lines: list[bytes], options: LogOptions) -> list[bytes]:
    """`time stream F text` becomes what a user sees; a part of a line has no newline of its own."""
    chunks = []
    for line in lines:
        stamp, _, rest = line.partition(b" ")
        _, _, rest = rest.partition(b" ")
        mark, _, text = rest.partition(b" ")
        shown = stamp + b" " + text if options.timestamps else text
        chunks.append(shown if mark == b"P" else shown + b"\n")
    return chunks


def _moment(line: bytes) -> int:
    return parse_time(line.partition(b" ")[0].decode(errors="replace"))


def _read(directory: Path, name: str) -> bytes:
    try:
        with os.fdopen(os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            return file.read()
    except OSError:
        return b""


class _Tail:
    """The newest file from its beginning, then what is appended, through rotations: the rest of the old file is read
    before the new one."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "log"
        self._file = self._open()

    def is_file(self, path: Path) -> bool:
        """Whether the file that is being read has that name now."""
        try:
            return self._file is not None and os.fstat(self._file).st_ino == os.lstat(path).st_ino
        except OSError:
            return False

    def read(self) -> bytes:
        data = self.rest()
        try:
            replaced = self._file is None or os.fstat(self._file).st_ino != os.lstat(self._path).st_ino
        except OSError:
            replaced = False
        if replaced:
            self.close()
            self._file = self._open()
            data += self.rest()
        return data

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int | None:
        try:
            return os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return None

    def rest(self) -> bytes:
        parts = []
        while self._file is not None and (part := os.read(self._file, 1 << 20)):
            parts.append(part)
        return b"".join(parts)
