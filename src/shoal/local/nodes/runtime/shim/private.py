"""What a container must not reach: the cluster's own credentials, other pods' files, the rights of root beyond a
container's.

Called by the inner half, and for commands that enter a container. Three ways, by what the machine allows: in a root of
its own what is hidden is covered (`root.py`); on the machine's own root it is covered in a mount namespace, or kept out
of reach by Landlock.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat

from .kernel import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    PR_CAPBSET_DROP,
    PR_SET_NO_NEW_PRIVS,
    libc,
    make_readonly,
    mount,
    prctl,
    unshare,
)

TYPE_CHECKING = False  # as `typing` has it, whose import would cost every container's start
if TYPE_CHECKING:
    from typing import Any

MOUNTS, USER_MOUNTS, LANDLOCK = "mounts", "user-mounts", "landlock"
LAST_CAPABILITY = 40

SYS_CREATE, SYS_ADD, SYS_RESTRICT = 444, 445, 446  # the same on all architectures
RULE_PATH_BENEATH = 1
READ_FILE, WRITE_FILE, TRUNCATE, REFER = 1 << 2, 1 << 1, 1 << 14, 1 << 13
MAKE_DEVICES = 1 << 6 | 1 << 11
CHANGES = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 12 | REFER
"""Removing and making entries, and moving them between directories."""


def drop_capabilities(kept: list[int]) -> None:
    """Root keeps what root has in a container; what is started from now on never has more."""
    for number in range(LAST_CAPABILITY + 1):
        if number not in kept:
            with contextlib.suppress(OSError):  # a kernel that does not know it, or a user that has none
                prctl(PR_CAPBSET_DROP, number)


# --- covered


def enter_view(plan: dict[str, Any]) -> None:
    """A mount namespace in which what is hidden is covered, and what the container needs of it shows."""
    if plan["view"] == USER_MOUNTS:
        user, group = os.geteuid(), os.getegid()
        unshare(CLONE_NEWUSER | CLONE_NEWNS)
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{user} {user} 1")
        write("/proc/self/gid_map", f"{group} {group} 1")
    else:
        unshare(CLONE_NEWNS)
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    cover("", plan.get("hidden") or [], plan.get("visible") or [])
    if os.geteuid() == 0 and plan["view"] == MOUNTS and plan.get("capabilities") is not None:
        for path in block_devices():
            mount("/dev/null", path, None, MS_BIND)


def cover(root: str, hidden: list[str], visible: list[list[Any]]) -> None:
    """Empty every hidden directory and file below `root`, but for what is visible (path, and whether read-only)."""
    for path in outermost(hidden):
        target = root + path
        try:
            is_directory = stat.S_ISDIR(os.lstat(target).st_mode)
        except OSError:
            continue
        if not is_directory:
            mount("/dev/null", target, None, MS_BIND)
            continue
        shown = [
            (one, readonly, os.open(one, os.O_PATH | os.O_CLOEXEC)) for one, readonly in visible if below(one, path)
        ]
        mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=755,size=1m")
        for one, readonly, held in sorted(shown):
            show(root + one, readonly, held)
        make_readonly(target)


def show(target: str, readonly: bool, held: int) -> None:
    source = f"/proc/self/fd/{held}"
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
    mount(source, target, None, MS_BIND | MS_REC)
    os.close(held)
    if readonly:
        make_readonly(target)


def outermost(paths: list[str]) -> list[str]:
    return [one for one in sorted(set(paths)) if not any(below(one, other) for other in paths if other != one)]


def below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def block_devices() -> list[str]:
    """Disks: root could read there what is hidden in files."""
    found = []
    for where in ("/dev", "/dev/mapper"):
        with contextlib.suppress(OSError):
            found += [one.path for one in os.scandir(where) if stat.S_ISBLK(os.lstat(one.path).st_mode)]
    return found


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


# --- out of reach


def landlock_version() -> int:
    """Of the kernel's Landlock; 0 where there is none."""
    return max(0, int(libc.syscall(SYS_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1))))


def restrict(plan: dict[str, Any]) -> None:
    """From now on this process and its children open nothing that is hidden, nor look into processes outside.

    Landlock allows, it does not forbid: everything beside the way to what is hidden is allowed, entry by entry. So new
    entries cannot be made in the directories on that way itself.
    """
    every = READ_FILE | WRITE_FILE | CHANGES | (TRUNCATE if landlock_version() >= 3 else 0)
    ruleset = _ruleset(every | MAKE_DEVICES)
    hidden = [*outermost(plan.get("hidden") or []), *(block_devices() if os.geteuid() == 0 else [])]
    for path in _allowed("/", hidden):
        _allow(ruleset, path, every)
    for path, readonly in plan.get("visible") or []:
        _allow(ruleset, path, READ_FILE if readonly else every)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    _enforce(ruleset)


def keep_apart() -> None:
    """Other pods run as the same user: from now on their processes cannot look into this one's, nor it into theirs.

    A domain of Landlock that forbids device nodes alone is enough for that; moving files between directories, which
    every domain forbids otherwise, is allowed by name. Where there is none that knows of it (version 2), it is not so.
    """
    if landlock_version() >= 2:
        with contextlib.suppress(OSError):
            ruleset = _ruleset(MAKE_DEVICES | REFER)
            _allow(ruleset, "/", REFER)
            _enforce(ruleset)


def _enforce(ruleset: int) -> None:
    if libc.syscall(SYS_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint(0)) != 0:
        raise OSError(ctypes.get_errno(), "Landlock is refused")
    os.close(ruleset)


def _allowed(directory: str, hidden: list[str]) -> list[str]:
    """What lies beside the way to what is hidden: the largest directories, and files, that hold none of it."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(directory):
            if entry.path in hidden:
                continue
            if any(below(one, entry.path) for one in hidden):
                found += _allowed(entry.path, hidden)
            else:
                found.append(entry.path)
    return found


def _ruleset(handled: int) -> int:
    attributes = ctypes.c_uint64(handled)
    made = int(libc.syscall(SYS_CREATE, ctypes.byref(attributes), ctypes.c_size_t(8), ctypes.c_uint(0)))
    if made < 0:
        raise OSError(ctypes.get_errno(), "Landlock is not allowed")
    return made


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        held = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        mode = os.fstat(held).st_mode
        if stat.S_ISLNK(mode):
            return
        rule = _Beneath(access if stat.S_ISDIR(mode) else access & (READ_FILE | WRITE_FILE | TRUNCATE), held)
        libc.syscall(
            SYS_ADD, ctypes.c_int(ruleset), ctypes.c_int(RULE_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint(0)
        )
    finally:
        os.close(held)
