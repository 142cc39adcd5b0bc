"""Directories in places that everyone may write to: made, and taken only when they are ours."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path

from shoal.errors import ShoalError

SHARED_MEMORY = Path("/dev/shm")


def claim(directory: Path) -> None:
    """A directory that is ours alone: anyone may have made it before us."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ShoalError(f"{directory} belongs to another user; remove it, or run as that user")
    os.chmod(directory, 0o700)


def memory_directory(cluster: str) -> Path:
    """Where volumes of this cluster lie that are to be kept in memory. The same from inside a user namespace."""
    return SHARED_MEMORY / f"shoal-{hashlib.sha256(cluster.encode()).hexdigest()[:12]}"
