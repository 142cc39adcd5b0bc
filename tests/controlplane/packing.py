"""Copies programs and the files that benchmarks read of Go's modules to a folder, for a machine without Go.

Called by `--pack` of bench/jobs.py and bench/kueue_runner.py. On the other machine XDG_CACHE_HOME names that folder,
and `build` finds everything there, as in the user's cache.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.controlplane import build


def pack(
    folder: Path, binaries: Iterable[Path], programs: Iterable[Path], modules: Mapping[tuple[str, str], Iterable[Path]]
) -> None:
    """`modules`: by the folder that pins a module and the module's path, files of it."""
    target = folder / "shoal" / "controlplane"
    for path in binaries:
        _copy(path, target / build.cache_folder().name / path.name)
    for path in programs:
        _copy(path, target / "programs" / path.name)
    for (pinned, module), paths in modules.items():
        root = build.module_folder(pinned, module)
        for path in paths:
            _copy(path, target / "modules" / module / path.relative_to(root))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    target.chmod(target.stat().st_mode | 0o200)
