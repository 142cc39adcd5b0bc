"""A container's output on disk: lines stamped as container runtimes do."""

from __future__ import annotations

import contextlib
import os
import time


class Log:
    """One container's output in lines stamped as container runtimes do; capped, and never a reason to stop reading."""

    def __init__(self, path: str, cap: int) -> None:
        self.path, self.cap = path, cap
        self.rest = {"stdout": b"", "stderr": b""}
        self.file = open(path, "ab", buffering=0)  # noqa: SIM115 - stays open
        self.size = self.file.tell()

    def take(self, stream: str, data: bytes) -> None:
        lines = (self.rest[stream] + data).split(b"\n")
        self.rest[stream] = lines.pop()
        self.write(stream, b"F", lines)
        if len(self.rest[stream]) > 16384:  # a line without an end is written in parts
            self.write(stream, b"P", [self.rest[stream]])
            self.rest[stream] = b""

    def write(self, stream: str, mark: bytes, lines: list[bytes]) -> None:
        if not lines:
            return
        now = time.time_ns()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9)) + f".{now % 10**9:09d}Z"
        prefix = f"{stamp} {stream} ".encode() + mark + b" "
        text = b"".join(prefix + line + b"\n" for line in lines)
        with contextlib.suppress(OSError):  # a full disk loses output, never blocks the container
            if self.size + len(text) > self.cap:
                os.replace(self.path, self.path + ".1")
                self.file.close()
                self.file = open(self.path, "ab", buffering=0)  # noqa: SIM115
                self.size = 0
            self.size += self.file.write(text)

    def close(self) -> None:
        for stream, rest in self.rest.items():
            if rest:
                self.write(stream, b"F", [rest])
