"""One run of one container: its directory, its shim, and how it ended.

The pod's lifecycle starts one of these per container and restart; a restarted agent attaches to those that still live.
The directory is the truth: plan.json (what to run), state.json (who runs), exit.json (how it ended), log.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from shoal.local.nodes.runtime.identity import ProcessIdentity, hold, signal_exactly
from shoal.local.nodes.runtime.raysite.sitecustomize import mapped
from shoal.local.nodes.runtime.shim import attached, kernel

SHIM = Path(kernel.__file__).parent
LOG_CAP = 10 << 20
"""Bytes of log kept per run, and as much again in the file rotated away."""


class RunPlan(msgspec.Struct, kw_only=True):
    """What the shim is told. Paths are the machine's; `mounts` become the container's."""

    argv: list[str]
    env: dict[str, str]
    cwd: str = ""
    grace: float = 30.0
    log_cap: int = LOG_CAP
    hostname: str = "localhost"
    root: str = ""
    pid_namespace: bool = False
    net_namespace: str = ""
    mounts: list[dict[str, Any]] = []
    cgroups: list[str] = []
    paths: list[tuple[str, str]] = []
    """Mount paths and what is behind them, where they could not be mounted; commands run later need them too."""
    user: int | None = None
    group: int | None = None
    groups: list[int] = []
    no_new_privileges: bool = False
    read_only_root: bool = False
    hidden: list[str] = []
    """Directories and files of the machine that the container must not see: credentials, other pods."""
    visible: list[tuple[str, bool]] = []
    """What it needs of them all the same, and whether to read only. Where it has a root of its own, they are mounts."""
    view: str = ""
    """How `hidden` is hidden where it has no root of its own; empty: not at all."""
    capabilities: list[int] | None = None
    """Those that root keeps; None: all."""
    gpu_nodes: list[str] = []
    """NVIDIA's device nodes below /dev that the container may open."""
    stdin: bool = False
    stdin_once: bool = False
    """Whether what the container reads ends with the first client that typed."""
    tty: bool = False
    pid_of: tuple[int, int] | None = None
    """Whose PID namespace it shares: pid and start time of that container's first process."""


class Ended(msgspec.Struct, frozen=True):
    """How a run ended. `error` is set when the main process never started."""

    exit_code: int
    signal: int
    started: int | None
    finished: int
    error: str = ""


class ContainerProcess:
    """A supervised run in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.identity: ProcessIdentity | None = None
        self._popen: subprocess.Popen[bytes] | None = None

    async def start(self, plan: RunPlan) -> bool:
        """Start the shim and wait until the main process runs (True) or could not be started (False)."""
        read, write = os.pipe()
        try:
            self._spawn(plan, write)
        finally:
            os.close(write)
        return (await _first_line(read)).startswith(b"started\n")  # what ended at once has said that too

    def _spawn(self, plan: RunPlan, notify: int) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "plan.json").write_bytes(msgspec.json.encode(plan))
        os.chmod(self.directory / "plan.json", 0o600)  # holds the container's environment, secrets included
        with (self.directory / "shim.err").open("wb") as errors:
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SHIM), "run", str(self.directory), str(notify)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(notify,),
                start_new_session=True,
                cwd="/",
                env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            )
        # The shim writes the same into shim.json before it does anything else.
        self.identity = ProcessIdentity(self._popen.pid, kernel.start_time(self._popen.pid))

    def attach(self) -> bool:
        """Find the shim of an earlier agent by pid and start time; False when it is gone."""
        identity = recorded_identity(self.directory)
        descriptor = hold(identity) if identity is not None else None
        if descriptor is None:
            return False
        os.close(descriptor)
        self.identity = identity
        return True

    async def connect(self) -> socket.socket:
        """The socket at which its output is shown and its input taken. Raises OSError."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.setblocking(False)
        held = os.open(self.directory, os.O_PATH | os.O_DIRECTORY)
        try:  # by the directory's number: its path may be too long for a socket
            await asyncio.get_running_loop().sock_connect(made, f"/proc/self/fd/{held}/{attached.NAME}")
        except BaseException:
            made.close()
            raise
        finally:
            os.close(held)
        return made

    @property
    def first(self) -> tuple[int, int] | None:
        """Pid and start time of the process that its PID namespace begins with."""
        try:
            found = json.loads((self.directory / "state.json").read_bytes())
            return int(found["inner"]), int(found["innerStart"])
        except (OSError, ValueError, KeyError):
            return None

    @property
    def started_at(self) -> int | None:
        try:
            return int(json.loads((self.directory / "state.json").read_bytes())["started"])
        except (OSError, ValueError, KeyError):
            return None

    async def wait(self) -> Ended:
        """Until the shim is gone, which is when everything below it is gone."""
        if self.identity is not None:
            await _gone(self.identity)
            if self._popen is not None:
                self._popen.wait()
        return self.ended()

    def ended(self) -> Ended:
        try:
            found = json.loads((self.directory / "exit.json").read_bytes())
        except (OSError, ValueError):
            # the shim itself was killed, or the disk was full when it wrote
            return Ended(137, 9, self.started_at, kernel.micros())
        return Ended(
            found.get("exitCode", 128),
            found.get("signal", 0),
            found.get("started"),
            found["finished"],
            found.get("error", ""),
        )

    def stop(self, grace: float) -> None:
        """SIGTERM to the main process now, SIGKILL to all that is left after `grace` seconds."""
        try:
            (self.directory / "stop").write_text(str(max(0.0, grace)))
        except OSError:
            pass  # a full disk: the plan's own grace holds
        if self.identity is not None:
            signal_exactly(self.identity, signal.SIGTERM)

    async def enter(self, argv: list[str], timeout: float | None = None) -> tuple[int, bytes]:
        """Run a command inside the container; its exit code and the end of its output. A timeout kills it: code -1."""
        process = await asyncio.create_subprocess_exec(
            *self.entry(argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"PATH": os.defpath},
            cwd="/",
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), timeout)
        except TimeoutError:
            process.kill()  # and not awaited: a stranger may hold the other end of what it says
            return -1, b""
        except asyncio.CancelledError:
            process.kill()
            raise
        return process.returncode or 0, output[-10240:]

    def entry(self, argv: list[str]) -> list[str]:
        """The command line that runs `argv` inside the container."""
        words = [mapped(word, self._mapped_paths()) for word in argv]
        return [sys.executable, "-I", "-S", str(SHIM), "enter", str(self.directory), *words]

    def _mapped_paths(self) -> list[tuple[str, str]]:
        try:
            return [(target, source) for target, source in self._plan().get("paths") or ()]
        except (OSError, ValueError):
            return []

    def _plan(self) -> dict[str, Any]:
        return dict(json.loads((self.directory / "plan.json").read_bytes()))


def recorded_identity(directory: Path) -> ProcessIdentity | None:
    """Who the shim of this run was, alive or not; None when it never wrote that down."""
    try:
        recorded = json.loads((directory / "shim.json").read_bytes())
        return ProcessIdentity(int(recorded["pid"]), int(recorded["start"]))
    except (OSError, ValueError, KeyError):
        return None


async def _first_line(descriptor: int) -> bytes:
    """The shim's first word, read without a thread."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    os.set_blocking(descriptor, False)
    loop.add_reader(descriptor, _settle, ready)
    try:
        await ready
        return os.read(descriptor, 64)
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _gone(identity: ProcessIdentity) -> None:
    descriptor = hold(identity)
    if descriptor is None:
        return
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, _settle, ended)
    try:
        await ended
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
