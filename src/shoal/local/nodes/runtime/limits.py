"""Memory and CPU limits by control groups, where this machine lets us.

Version 2 where the controllers are there for us (root, or a group that was delegated to this process), else version 1
when writable (root on hybrid machines). Without either, memory is watched instead and CPU limits are bookkeeping;
`shoal doctor` says which.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Protocol

CGROUP = Path("/sys/fs/cgroup")
_PERIOD = 100_000
"""Microseconds over which a CPU limit is kept, as the kubelet sets it."""


class ContainerLimits(Protocol):
    name: str
    enforces_memory: bool

    def open(self, group: str, memory: int | None) -> list[str]:
        """A group that may hold `memory` bytes; the files into which a process writes its pid to join."""
        ...

    def hold_cpu(self, group: str, milli: int) -> None:
        """From now on the group gets no more than this."""
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
    enforces_memory = False

    def open(self, group: str, memory: int | None) -> list[str]:
        return []

    def hold_cpu(self, group: str, milli: int) -> None:
        return None

    def killed_for_memory(self, group: str) -> bool:
        return False

    def close(self, group: str) -> None:
        return None

    def release(self) -> None:
        return None


class CgroupLimits:
    """Groups below `root`, of either version. Version 1 keeps CPU in a hierarchy of its own, `cpu_root`."""

    enforces_memory = True

    def __init__(self, root: Path, version: int, cpu_root: Path | None = None) -> None:
        self.root = root
        self.version = version
        self.cpu_root = root if version == 2 else cpu_root
        self.name = f"cgroup v{version}"

    def open(self, group: str, memory: int | None) -> list[str]:
        directories = {root / group for root in (self.root, self.cpu_root) if root is not None}
        try:
            for directory in directories:
                directory.mkdir(parents=True, exist_ok=True)
            if memory:
                self._write(
                    self.root / group / ("memory.max" if self.version == 2 else "memory.limit_in_bytes"), memory
                )
            if self.version == 2:
                for file, value in (("memory.swap.max", 0), ("memory.oom.group", 1)):
                    if (self.root / group / file).exists():
                        self._write(self.root / group / file, value)
        except OSError:
            return []  # the container runs without its limit rather than not at all
        return [str(directory / "cgroup.procs") for directory in sorted(directories)]

    def hold_cpu(self, group: str, milli: int) -> None:
        if self.cpu_root is None:
            return
        quota = max(1000, milli * _PERIOD // 1000)
        with contextlib.suppress(OSError):
            if self.version == 2:
                self._write(self.root / group / "cpu.max", f"{quota} {_PERIOD}")
            else:
                self._write(self.cpu_root / group / "cpu.cfs_period_us", _PERIOD)
                self._write(self.cpu_root / group / "cpu.cfs_quota_us", quota)

    def killed_for_memory(self, group: str) -> bool:
        file = "memory.events" if self.version == 2 else "memory.oom_control"
        try:
            text = (self.root / group / file).read_text()
        except OSError:
            return False
        return any(line.startswith("oom_kill ") and int(line.split()[1]) > 0 for line in text.splitlines())

    def close(self, group: str) -> None:
        for root in {self.root, self.cpu_root} - {None}:
            assert root is not None
            with contextlib.suppress(OSError):
                (root / group).rmdir()

    def release(self) -> None:
        for root in {self.root, self.cpu_root} - {None}:
            assert root is not None
            with contextlib.suppress(OSError):
                for group in [entry for entry in root.iterdir() if entry.is_dir()]:
                    self.close(group.name)
                root.rmdir()

    @staticmethod
    def _write(file: Path, value: object) -> None:
        file.write_text(str(value))


def find_limits(cluster: str, mounted: Path = CGROUP) -> ContainerLimits:
    """The best that this machine allows."""
    cluster = hashlib.sha256(cluster.encode()).hexdigest()[:12]
    for place in (mounted, delegated(mounted)):
        if place is None:
            continue
        with contextlib.suppress(OSError):
            if "memory" in (place / "cgroup.controllers").read_text().split():
                root = place / "shoal" / cluster
                root.mkdir(parents=True, exist_ok=True)
                for level in (place, place / "shoal", root):
                    _hand_down(level)
                return CgroupLimits(root, 2)
    with contextlib.suppress(OSError):
        if os.access(mounted / "memory" / "memory.limit_in_bytes", os.F_OK):
            root = mounted / "memory" / "shoal" / cluster
            root.mkdir(parents=True, exist_ok=True)
            cpu: Path | None = mounted / "cpu" / "shoal" / cluster
            try:
                assert cpu is not None
                cpu.mkdir(parents=True, exist_ok=True)
            except OSError:
                cpu = None
            return CgroupLimits(root, 1, cpu)
    return NoLimits()


def delegated(mounted: Path = CGROUP) -> Path | None:
    """A version 2 group that was given to this process alone (`systemd-run --user --scope -p Delegate=yes`).

    Groups with processes cannot hand controllers down, so this process first moves into a leaf.
    """
    try:
        own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        place = mounted / own.strip("/")
        if place.name == "shoal-agent":  # we moved at an earlier look
            return place.parent
        if place == mounted or not os.access(place, os.W_OK):
            return None
        if set((place / "cgroup.procs").read_text().split()) != {str(os.getpid())}:
            return None
        (place / "shoal-agent").mkdir(exist_ok=True)
        (place / "shoal-agent" / "cgroup.procs").write_text(str(os.getpid()))
    except (OSError, StopIteration):
        return None
    return place


def _hand_down(level: Path) -> None:
    (level / "cgroup.subtree_control").write_text("+memory")
    with contextlib.suppress(OSError):  # CPU may be withheld where memory is not
        (level / "cgroup.subtree_control").write_text("+cpu")
