"""The database file of a state directory: where it lies, who may read it, and whether it can be trusted.

`store.py` asks before it opens the file; `repair.py` mends what is damaged.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from shoal.errors import ShoalError

FILE = "objects.db"


class StateDamaged(ShoalError):
    """The database cannot be trusted. The message says how to go on."""


def make_private(directory: Path) -> None:
    """The state directory is its owner's alone: created so, and closed again if it is ours and was opened."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    ours = (directory / FILE).exists() or not any(directory.iterdir())
    if ours and directory.stat().st_mode & 0o077:
        directory.chmod(0o700)


def quick_check(db: sqlite3.Connection, path: Path) -> None:
    """Raises StateDamaged when SQLite finds the file inconsistent."""
    found = [str(row[0]) for row in db.execute("PRAGMA quick_check(3)")]
    if found != ["ok"]:
        raise damaged(path, " ".join("; ".join(found).split()))


def damaged(path: Path, why: str) -> StateDamaged:
    return StateDamaged(
        f"{path} is damaged ({why}); start with --repair to keep what can be read and set the rest aside, "
        "or restore a copy"
    )
