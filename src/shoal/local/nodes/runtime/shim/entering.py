"""A command inside a running container: probes, hooks, `kubectl exec`.

Two processes: the one that is called, which may be killed at any time, and its keeper, which is never killed. The
keeper starts the command, reaps it, and ends what it left behind with the container; when the caller goes, at once. A
corpse that is not reaped would keep the container's PID namespace from ending; where there is none, what a command
started in the background would have no parent that ends it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import termios

from .inner import execute, take_identity
from .kernel import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    StartFailed,
    check,
    kill_descendants,
    libc,
    prctl,
    start_time,
)
from .private import MOUNTS, USER_MOUNTS

TYPE_CHECKING = False  # as `typing` has it, whose import would cost every container's start
if TYPE_CHECKING:
    from typing import NoReturn

NOT_STARTED = 126
CALLER_GONE = 137


def enter(directory: str, argv: list[str]) -> NoReturn:
    """Run argv where the container of DIR runs, with its environment; stdin, stdout and stderr are the caller's."""
    code_read, code_write = os.pipe()
    here_read, here_write = os.pipe()  # nothing is ever written: it ends with us
    if os.fork() == 0:
        os.close(code_read)
        os.close(here_write)
        try:
            Keeper(directory, argv, here_read, code_write).keep()
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.write(2, f"{error}\n".encode())
        finally:
            os._exit(NOT_STARTED)
    os.close(code_write)
    code = os.read(code_read, 16)
    os._exit(int(code) if code else NOT_STARTED)


class Keeper:
    """Holds DIR as long as it has anything to keep: the container's end waits for that."""

    def __init__(self, directory: str, argv: list[str], caller: int, answer: int) -> None:
        self.caller, self.answer = caller, answer
        self.told = False
        os.setsid()
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(ignored, signal.SIG_IGN)
        fcntl.flock(os.open(directory, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_SH)
        with open(os.path.join(directory, "plan.json"), encoding="utf-8") as file:
            self.plan = json.load(file)
        self.container = self._container(directory)
        self.wake = self._hear_children()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.command = self._start(argv)
        silence = os.open(os.devnull, os.O_RDWR)
        for place in (0, 1, 2):  # a reader of what the command says waits until all have closed the other end
            os.dup2(silence, place)

    def _container(self, directory: str) -> int:
        """Becomes readable when the container ends."""
        try:
            with open(os.path.join(directory, "state.json"), encoding="utf-8") as file:
                state = json.load(file)
            self.inner = state["inner"]
            held = os.pidfd_open(self.inner)
            if start_time(self.inner) == state["innerStart"]:
                return held
        except OSError:
            pass
        raise StartFailed("the container is not running")

    def _hear_children(self) -> int:
        read, write = os.pipe()
        for descriptor in (read, write):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        return read

    def _start(self, argv: list[str]) -> int:
        """Only the command moves into the container: its keeper has to see the machine's processes."""
        plan = self.plan
        wanted = (
            ("user", plan.get("view") == USER_MOUNTS),
            ("net", plan.get("net_namespace")),
            ("uts", plan.get("root")),
            ("ipc", plan.get("root")),
            ("mnt", plan.get("root") or plan.get("view") in (MOUNTS, USER_MOUNTS)),
        )
        spaces = [os.open(f"/proc/{self.inner}/ns/{space}", os.O_RDONLY) for space, on in wanted if on]
        if plan.get("pid_namespace"):
            own = os.open(f"/proc/{self.inner}/ns/pid", os.O_RDONLY)
            check(libc.setns(own, 0), "enter the container")  # holds for what is born from now on
        command = os.fork()
        if command == 0:
            self._be_command(argv, spaces)
        for descriptor in spaces:
            os.close(descriptor)
        return command

    def _be_command(self, argv: list[str], spaces: list[int]) -> NoReturn:
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            for space in spaces:
                check(libc.setns(space, 0), "enter the container")
            environment = self.plan["env"]
            if os.isatty(0):  # a session of its own, with this terminal
                os.setsid()
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
                environment = {"TERM": "xterm", **environment}
            os.chdir(self.plan.get("cwd") or "/")
            take_identity(self.plan)
            execute(argv, environment)
        except BaseException as error:
            os.write(2, (str(error) + "\n").encode())
        finally:
            os._exit(NOT_STARTED)

    def keep(self) -> NoReturn:
        """Until nothing that the command started is left."""
        while True:
            sources = [self.container, self.wake] if self.told else [self.container, self.wake, self.caller]
            ready, _, _ = select.select(sources, [], [])
            if self.wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wake, 512)
            if not self._reap():
                os._exit(0)
            if self.container in ready or (self.caller in ready and not self.told):
                kill_descendants(None)
                self._report(CALLER_GONE)
                os._exit(0)

    def _reap(self) -> bool:
        """Whether any child is left; the command's own end is told at once."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self.command:
                    code = os.waitstatus_to_exitcode(status)
                    self._report(128 - code if code < 0 else code)
        return False

    def _report(self, code: int) -> None:
        if not self.told:
            self.told = True
            with contextlib.suppress(OSError):
                os.write(self.answer, str(code).encode())
