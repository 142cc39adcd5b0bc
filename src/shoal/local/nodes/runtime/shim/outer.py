"""The outer half: output, input, status, stopping."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import time

from .attached import CHUNK, Attached, open_streams
from .inner import be_inner
from .kernel import (
    CLONE_NEWPID,
    PR_SET_CHILD_SUBREAPER,
    check,
    kill_descendants,
    libc,
    micros,
    prctl,
    set_oom_score,
    start_time,
    unshare,
)
from .output import Log

TYPE_CHECKING = False  # as `typing` has it, whose import would cost every container's start
if TYPE_CHECKING:
    from typing import Any

KEEPERS_PATIENCE = 10.0


def write_json(directory: str, name: str, value: dict[str, Any]) -> None:
    """Whole or not at all: written beside and renamed."""
    partial = os.path.join(directory, f".{name}.partial")
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(partial, os.path.join(directory, name))


def run(directory: str, notify: int) -> None:
    os.chdir(directory)
    write_json(directory, "shim.json", {"pid": os.getpid(), "start": start_time(os.getpid())})
    with open("plan.json", encoding="utf-8") as file:
        plan = json.load(file)
    with open("reserve", "wb") as reserve:
        reserve.write(bytes(8192))
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    for path in plan.get("cgroups", ()):
        with contextlib.suppress(OSError), open(path, "w") as file:
            file.write(str(os.getpid()))
    set_oom_score(-900)  # when memory runs out, the container's own processes go first
    Outer(directory, notify, plan).run()


class Outer:
    """One container from here on, until nothing of it is left."""

    def __init__(self, directory: str, notify: int, plan: dict[str, Any]) -> None:
        self.directory, self.notify, self.plan = directory, notify, plan
        self.stop_wanted = False
        self.wake = self._hear_signals()
        self.streams = open_streams(plan)
        report, report_write = os.pipe()
        os.set_blocking(report, False)
        self.inner = self._fork(report, report_write)
        self.streams.close_theirs()
        os.close(report_write)
        self.sources = {**self.streams.read, report: "report"}
        self.log = Log(os.path.join(directory, "log"), plan.get("log_cap", 10 << 20))
        self.attached = Attached(self.streams, plan.get("stdin_once", False))
        self.identity = {"pid": os.getpid(), "start": start_time(os.getpid())}
        self.identity |= {"inner": self.inner, "innerStart": start_time(self.inner)}
        self.unparsed = b""
        self.result: dict[str, Any] = {}

    def _hear_signals(self) -> int:
        read, write = os.pipe()
        for descriptor in (read, write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        return read

    def _on_stop(self, *_: object) -> None:
        self.stop_wanted = True

    def _fork(self, report: int, report_write: int) -> int:
        if self.plan.get("pid_of"):
            enter_pid_namespace(self.plan["pid_of"])
        elif self.plan.get("pid_namespace"):
            unshare(CLONE_NEWPID)
        parent = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # kept until `main_code` hands it on
        inner = os.fork()
        if inner == 0:
            self.streams.close_ours()
            for descriptor in (report, self.wake):
                os.close(descriptor)
            os.close(signal.set_wakeup_fd(-1))
            be_inner(self.plan, parent, self.streams, report_write)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return inner

    def run(self) -> None:
        deadline: float | None = None
        ended: int | None = None
        stopping = False
        while ended is None or self.sources:
            if not self._wait(deadline, ended is not None):
                break
            if self.stop_wanted:  # again, perhaps: then with less time
                self.stop_wanted = False
                latest = time.monotonic() + read_grace(self.directory, self.plan)
                deadline = latest if deadline is None else min(deadline, latest)
                if not stopping:
                    stopping = True
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self.inner, signal.SIGTERM)
            if deadline is not None and time.monotonic() >= deadline and ended is None:
                # PID 1 of a namespace takes its own along; a guest in another's is not that
                kill_descendants(None if self.plan.get("pid_of") else self.inner)
                deadline = None
            if ended is None and (ended := reap(self.inner)) is not None:
                kill_descendants(
                    None
                )  # before the rest of the output: a process that floods the pipe must not keep us here
        self.log.close()
        self.attached.finish()
        if "exitCode" not in self.result and "error" not in self.result:
            self.result.update(exitCode=137, signal=9)
        await_commands(self.directory)
        self.result["finished"] = micros()
        write_last(self.directory, self.result)
        notify_agent(self.notify, "exited")

    def _wait(self, deadline: float | None, ended: bool) -> bool:
        """Until something happened, and do it; False when all is said."""
        held_up = self.attached.held_up()
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        if held_up:
            timeout = min(timeout or 1.0, 1.0)
        if ended:
            timeout = 0.5  # what is left in the pipes, and no longer: a stranger may hold the other end
        heard = [one for one, kind in self.sources.items() if kind == "report" or not held_up or ended]
        sources: list[int | socket.socket] = [self.wake, *heard, *self.attached.readable()]
        reads, writes, _ = select.select(sources, self.attached.writable(), [], timeout)
        for source in reads:
            if not isinstance(source, int):
                self.attached.take(source, self.log.rest["stdout"])
            elif source == self.wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wake, 512)
            elif source in self.sources:
                self._read(source)
        for target in writes:
            self.attached.give(target)
        return not ended or any(source in heard for source in reads)

    def _read(self, source: int) -> None:
        try:
            data = os.read(source, CHUNK)
        except BlockingIOError:
            return
        except OSError:  # the other end of the terminal is closed
            data = b""
        if not data:
            del self.sources[source]
            if source != self.streams.typed:
                os.close(source)
        elif self.sources[source] == "report":
            self._believe(data)
        else:
            self.log.take(self.sources[source], data)
            self.attached.show(self.sources[source], data)

    def _believe(self, data: bytes) -> None:
        """What the inner half reports, line by line."""
        *whole, self.unparsed = (self.unparsed + data).split(b"\n")
        for line in whole:
            fact = json.loads(line)
            self.result.update(fact)
            if "started" in fact:
                self.identity["started"] = fact["started"]
                write_json(self.directory, "state.json", self.identity)
                notify_agent(self.notify, "started")


def enter_pid_namespace(target: tuple[int, int]) -> None:
    """Children of this process are born where a container's processes live, and end with them."""
    pid, start = target
    held = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if start_time(pid) != start:
            raise OSError("the target container has ended")
        check(libc.setns(held, 0), "enter the target container")
    finally:
        os.close(held)


def await_commands(directory: str) -> None:
    """Until the keepers of commands inside the container, who hear of its end, have ended what those left."""
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    limit = time.monotonic() + KEEPERS_PATIENCE
    while time.monotonic() < limit:
        with contextlib.suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.005)


def write_last(directory: str, result: dict[str, Any]) -> None:
    """How it ended matters more than what it said: on a full disk the reserve goes for it, then the older log."""
    for given_up in (None, "reserve", "log.1", "log"):
        with contextlib.suppress(OSError):
            if given_up:
                os.unlink(os.path.join(directory, given_up))
            write_json(directory, "exit.json", result)
            break
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(directory, "reserve"))


def notify_agent(notify: int, word: str) -> None:
    with contextlib.suppress(OSError):  # the agent may be gone; the files say the same
        os.write(notify, word.encode() + b"\n")


def read_grace(directory: str, plan: dict[str, Any]) -> float:
    try:
        with open(os.path.join(directory, "stop"), encoding="utf-8") as file:
            return float(file.read())
    except (OSError, ValueError):
        return float(plan.get("grace", 30))


def reap(inner: int) -> int | None:
    """Reap whatever is there to reap; the inner's status once it came."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found if found is not None else 0
        if pid == 0:
            return found
        if pid == inner:
            found = status
