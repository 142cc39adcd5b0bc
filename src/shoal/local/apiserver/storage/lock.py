"""One process owns a state directory.

The lock is the kernel's (gone with its holder, however it ended); the pid in the file is only for the message.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from shoal.errors import ShoalError

FILE = "apiserver.lock"
# Locks and write ordering cannot be relied on here; a database would be damaged sooner or later.
NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "glusterfs",
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.gcsfuse",
        "fuse.rclone",
        "lustre",
        "beegfs",
    }
)


class StateBusy(ShoalError):
    """Another process uses the directory, or its file system cannot be locked."""


class StateLock:
    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE
        self._fd: int | None = None

    def take(self) -> None:
        file_system = file_system_of(self.path.parent)
        if file_system in NETWORK_FILE_SYSTEMS:
            raise StateBusy(
                f"{self.path.parent} is on a network file system ({file_system}), where a database is not safe; "
                "choose a directory on a local disk"
            )
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise StateBusy(
                f"{self.path.parent} is in use by process {holder}; stop it first or choose another directory"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def file_system_of(directory: Path) -> str:
    """The type of the mounted file system that holds a directory, as the kernel names it; empty where unknown."""
    best, found = "", ""
    try:
        mounts = Path("/proc/self/mounts").read_text(errors="replace")
    except OSError:
        return ""
    where = str(directory.resolve())
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, found = point, fields[2]
    return found
