"""Memory limits by control groups, where this machine lets us.

Version 2 where the memory controller is delegated to us, else version 1's memory hierarchy when writable (root on
hybrid machines). Without either, limits are bookkeeping only and `shoal doctor` says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Protocol

CGROUP = Path("/sys/fs/cgroup")


class Limits(Protocol):
    name: str

    def open(self, group: str, memory: int) -> list[str]:
        """A group that may hold `memory` bytes; the files into which a process writes its pid to join."""
        ...

    def killed_for_memory(self, group: str) -> bool:
        """Whether the kernel killed something in the group for want of memory."""
        ...

    def close(self, group: str) -> None: ...

    def release(self) -> None:
        """Remove what is left of the cluster's groups; those with processes stay."""
        ...


class NoLimits:
    """Nothing is enforced."""

    name = "none"

    def open(self, group: str, memory: int) -> list[str]:
        return []

    def killed_for_memory(self, group: str) -> bool:
        return False

    def close(self, group: str) -> None:
        return None

    def release(self) -> None:
        return None


class CgroupLimits:
    """Groups below `root`, of either version."""

    def __init__(self, root: Path, version: int) -> None:
        self.root = root
        self.version = version
        self.name = f"cgroup v{version}"

    def open(self, group: str, memory: int) -> list[str]:
        directory = self.root / group
        try:
            directory.mkdir(parents=True, exist_ok=True)
            limit, value = ("memory.max", memory) if self.version == 2 else ("memory.limit_in_bytes", memory)
            (directory / limit).write_text(str(value))
            if self.version == 2 and (directory / "memory.swap.max").exists():
                (directory / "memory.swap.max").write_text("0")
        except OSError:
            return []  # the container runs without its limit rather than not at all
        return [str(directory / "cgroup.procs")]

    def killed_for_memory(self, group: str) -> bool:
        file = "memory.events" if self.version == 2 else "memory.oom_control"
        try:
            text = (self.root / group / file).read_text()
        except OSError:
            return False
        return any(line.startswith("oom_kill ") and int(line.split()[1]) > 0 for line in text.splitlines())

    def close(self, group: str) -> None:
        with contextlib.suppress(OSError):
            (self.root / group).rmdir()

    def release(self) -> None:
        with contextlib.suppress(OSError):
            for group in [entry for entry in self.root.iterdir() if entry.is_dir()]:
                self.close(group.name)
            self.root.rmdir()


def find_limits(cluster: str) -> Limits:
    """The best that this machine allows."""
    cluster = hashlib.sha256(cluster.encode()).hexdigest()[:12]
    unified = CGROUP / "cgroup.controllers"
    with contextlib.suppress(OSError):
        if unified.exists() and "memory" in unified.read_text().split():
            root = CGROUP / "shoal" / cluster
            root.mkdir(parents=True, exist_ok=True)
            for level in (CGROUP, CGROUP / "shoal", root):
                (level / "cgroup.subtree_control").write_text("+memory")
            return CgroupLimits(root, 2)
    with contextlib.suppress(OSError):
        if os.access(CGROUP / "memory" / "memory.limit_in_bytes", os.F_OK):
            root = CGROUP / "memory" / "shoal" / cluster
            root.mkdir(parents=True, exist_ok=True)
            return CgroupLimits(root, 1)
    return NoLimits()
