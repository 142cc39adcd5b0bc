"""The container's view of the file system."""

from __future__ import annotations

import contextlib
import os
import stat

from .kernel import (
    MNT_DETACH,
    MS_BIND,
    MS_PRIVATE,
    MS_REC,
    SYS_PIVOT_ROOT,
    StartFailed,
    check,
    libc,
    make_readonly,
    mount,
)
from .private import cover

TYPE_CHECKING = False  # as `typing` has it, whose import would cost every container's start
if TYPE_CHECKING:
    from typing import Any


def build_root(work: str, mounts: list[dict[str, Any]], plan: dict[str, Any]) -> None:
    """The machine's own root, every write kept apart, with the pod's volumes at their paths.

    Each top-level directory is an overlay whose upper half lies in the container's directory; where that cannot be (the
    state itself lies below it) it is bound read-only, and missing mount points are made by mirroring their parents.
    """
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    root = os.path.join(work, "root")
    os.makedirs(root, exist_ok=True)
    sources = [open_beneath(item["source"], item.get("subPath", "")) for item in mounts]
    mount("tmpfs", root, "tmpfs", 0, "mode=755,size=64m")
    targets = [os.path.realpath(item["target"]) for item in mounts]
    nested = mount_points()
    for entry in os.scandir("/"):
        inside = os.path.join(root, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), inside)
        elif not entry.is_dir():
            bind_file(entry.path, inside)
        elif entry.name == "dev":
            os.mkdir(inside)
            bind_devices(inside, plan.get("gpu_nodes") or [])
        elif entry.name == "sys":
            os.mkdir(inside)
            mount(entry.path, inside, None, MS_BIND | MS_REC)
            if plan.get("capabilities") is not None:
                close_system(root, [point for point in nested if point.startswith("/sys/")])
        elif entry.name in ("proc", "tmp", "run", "lost+found"):
            os.mkdir(inside, 0o1777 if entry.name == "tmp" else 0o755)
        else:
            lay_over(work, entry.path, inside, nested, targets)
    cover(root, plan.get("hidden") or [], [])
    for item, source, target in zip(mounts, sources, targets, strict=True):
        place(source, root, target, item.get("readonly", False))
        os.close(source)
    mount("proc", os.path.join(root, "proc"), "proc")
    if plan.get("capabilities") is not None:
        close_processes(os.path.join(root, "proc"))
    if plan.get("read_only_root"):
        os.close(reach(root, plan.get("cwd") or "/", True))
        for name in [*os.listdir(root), ""]:
            path = os.path.join(root, name)
            kept = name in ("dev", "sys", "proc", "tmp", "run") or f"/{name}" in targets
            if not kept and os.path.ismount(path) and os.path.isdir(path):
                make_readonly(path)
    os.chdir(root)
    check(libc.syscall(SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    check(libc.umount2(b".", MNT_DETACH), "leave the old root")
    os.chdir("/")


def close_system(root: str, below: list[str]) -> None:
    """The machine's devices and control groups can be read, not changed."""
    for point in (*reversed(below), "/sys"):
        with contextlib.suppress(OSError):
            make_readonly(root + point)


def close_processes(proc: str) -> None:
    """Settings of the kernel can be read, its memory not at all: as container runtimes have it."""
    for name in ("sys", "irq", "bus", "fs", "sysrq-trigger"):
        path = os.path.join(proc, name)
        with contextlib.suppress(OSError):
            mount(path, path, None, MS_BIND)
            make_readonly(path)
    for name in ("kcore", "keys", "timer_list", "sched_debug"):
        with contextlib.suppress(OSError):
            mount("/dev/null", os.path.join(proc, name), None, MS_BIND)


def bind_devices(inside: str, gpu_nodes: list[str]) -> None:
    """The devices that containers may expect, their own GPUs, and the machine's shared memory.

    What a pod makes here stays here.
    """
    wanted = (
        "null",
        "zero",
        "full",
        "random",
        "urandom",
        "tty",
        "fd",
        "stdin",
        "stdout",
        "stderr",
        "ptmx",
        "pts",
        "shm",
        "mqueue",
        "dri",
        "kfd",
        "fuse",
    )
    for entry in os.scandir("/dev"):
        if entry.name not in wanted and entry.name not in gpu_nodes:
            continue
        copy = os.path.join(inside, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), copy)
        elif entry.is_dir():
            os.mkdir(copy)
            mount(entry.path, copy, None, MS_BIND | MS_REC)
        else:
            bind_file(entry.path, copy)


def lay_over(work: str, source: str, inside: str, nested: list[str], targets: list[str]) -> None:
    os.mkdir(inside)
    upper, scratch = (os.path.join(work, part, os.path.basename(source)) for part in ("upper", "scratch"))
    os.makedirs(upper, exist_ok=True)
    os.makedirs(scratch, exist_ok=True)
    with contextlib.suppress(OSError):
        os.chmod(upper, os.stat(source).st_mode & 0o7777)
    below = [point for point in nested if point.startswith(source + "/")]
    try:
        mount("overlay", inside, "overlay", 0, f"lowerdir={source},upperdir={upper},workdir={scratch}")
        for point in below:
            with contextlib.suppress(OSError):
                mount(point, inside + point[len(source) :], None, MS_BIND)
    except OSError:
        mirror(source, inside, [target for target in targets if target.startswith(source + "/")])


def mirror(source: str, inside: str, targets: list[str]) -> None:
    """Bind a directory read-only; one in which a mount point is missing is rebuilt entry by entry around it."""
    if all(os.path.exists(target) for target in targets):
        mount(source, inside, None, MS_BIND | MS_REC)
        with contextlib.suppress(OSError):
            make_readonly(inside)
        return
    for entry in os.scandir(source):
        copy = os.path.join(inside, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), copy)
        elif entry.is_dir():
            os.mkdir(copy)
            mirror(entry.path, copy, [target for target in targets if target.startswith(entry.path + "/")])
        else:
            bind_file(entry.path, copy)


def bind_file(source: str, target: str) -> None:
    with contextlib.suppress(OSError):
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        mount(source, target, None, MS_BIND)


def place(source: int, root: str, target: str, readonly: bool) -> None:
    """Bind what the descriptor `source` holds at `target`, creating the mount point inside the new root."""
    held = f"/proc/self/fd/{source}"
    point = reach(root, target, os.path.isdir(held))
    try:
        mount(held, f"/proc/self/fd/{point}", None, MS_BIND | MS_REC)
    finally:
        os.close(point)
    if readonly:
        make_readonly(root + target)


def reach(root: str, target: str, directory: bool) -> int:
    """Open a mount point below the new root, making what is missing, without following a single link.

    What is mounted already may be a container's own volume, and a link in it would lead root out onto the machine.
    """
    held = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    parts = [part for part in target.split("/") if part and part != "."]
    for place, part in enumerate(parts):
        try:
            inner = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
        except FileNotFoundError:
            if directory or place < len(parts) - 1:
                os.mkdir(part, 0o755, dir_fd=held)
            else:
                os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o644, dir_fd=held))
            inner = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
        os.close(held)
        held = inner
        if stat.S_ISLNK(os.fstat(held).st_mode):
            os.close(held)
            raise StartFailed(f"mount path {target}: {part!r} is a link; links inside a volume are not followed")
    return held


def open_beneath(source: str, sub_path: str) -> int:
    """Open `sub_path` below a volume without following a single link, so that a swap in between leads nowhere."""
    held = os.open(source, os.O_PATH | os.O_CLOEXEC)
    for part in [part for part in sub_path.split("/") if part and part != "."]:
        if part == "..":
            raise StartFailed(f"subPath {sub_path!r} leaves its volume")
        try:
            inner = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
        except FileNotFoundError:
            os.mkdir(part, 0o755, dir_fd=held)
            inner = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
        if stat.S_ISLNK(os.fstat(inner).st_mode):
            raise StartFailed(f"subPath {sub_path!r} is a link; links inside a volume are not followed")
        os.close(held)
        held = inner
    return held


def mount_points() -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return [line.split()[4].replace("\\040", " ") for line in file]
