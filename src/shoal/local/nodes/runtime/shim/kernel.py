"""What the shim asks of the kernel, and the processes below it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_NOATIME, MS_NODIRATIME, MS_RELATIME = 2, 4, 8, 1 << 10, 1 << 11, 1 << 21
ST_RELATIME = 4096  # the one flag that statvfs numbers otherwise than mount
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
CAP_MKNOD = 27
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}.get(os.uname().machine, 0)

libc = ctypes.CDLL(None, use_errno=True)


class StartFailed(Exception):
    """The main process could not be started; the text is what a user reads in the container's state."""


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    check(libc.unshare(flags), "unshare")


def setns(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        check(libc.setns(descriptor, 0), f"enter {path}")
    finally:
        os.close(descriptor)


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    check(
        libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind and kind.encode(),
            ctypes.c_ulong(flags),
            data and data.encode(),
        ),
        f"mount {source} on {target}",
    )


def make_readonly(target: str) -> None:
    """Flags such as nosuid must be named again: in a user namespace they may not be taken away."""
    flags = os.statvfs(target).f_flag
    kept = flags & (MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME)
    kept |= MS_RELATIME if flags & ST_RELATIME else 0
    mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def prctl(option: int, value: int) -> None:
    check(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), "prctl")


def start_time(pid: int) -> int:
    """Clock ticks since boot at which this process started: with the pid, its identity."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def micros() -> int:
    return time.time_ns() // 1000


def set_oom_score(value: int) -> None:
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(value))


def kill_descendants(first: int | None) -> None:
    """SIGKILL all that descends from this process until nothing is left.

    `first`, where given, is signalled alone: PID 1 of a namespace takes its own along, and we adopt what it leaves.
    """
    if first is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(first, signal.SIGKILL)
        return
    while left := descendants(os.getpid()):  # again and again: some may have forked between the listing and the signal
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.002)


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found
