"""The directories of a container's runs: one per run, numbered; the newest two are kept."""

from __future__ import annotations

import shutil
from pathlib import Path


def newest_run(directory: Path) -> int:
    """Number of the latest run of a container; -1 when it never ran."""
    if not directory.exists():
        return -1
    return max((int(entry.name) for entry in directory.iterdir() if entry.name.isdigit()), default=-1)


def forget_old_runs(directory: Path, newest: int) -> None:
    for number in range(newest - 2, -1, -1):
        old = directory / str(number)
        if not old.exists():
            break
        shutil.rmtree(old, ignore_errors=True)


def drop_files(run: Path) -> None:
    """What the container wrote outside its volumes goes with the run; log and verdict stay."""
    for part in ("upper", "scratch", "root", "tmp"):
        shutil.rmtree(run / part, ignore_errors=True)
