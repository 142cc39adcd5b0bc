"""Scripts that come in volumes, where nothing can be mounted: a copy of the container's own, with real paths in it.

A ConfigMap often brings the script that a container runs, and the script names mounts of that container. The loopback
sandbox maps paths in commands and environments; this does the same for the text of scripts. Files that are no scripts
stay links to the volume, which follows its source. Only volumes that the agent writes are looked at, never users' data.
"""

from __future__ import annotations

import os
from pathlib import Path

from shoal.api.meta import Json
from shoal.local.nodes.runtime.raysite.sitecustomize import mapped

MOST_BYTES = 1 << 20
Paths = list[tuple[str, str]]


def with_scripts(mounts: list[Json], paths: Paths, volumes: Path, directory: Path) -> Paths:
    """Mount paths and what is behind them, with copies for the mounts whose scripts name a mount path.

    `paths` are the mounts' own, in their order, and others after them; `directory` is the run's.
    """
    chosen = list(paths)
    for index, (mount, (target, source)) in enumerate(zip(mounts, paths, strict=False)):
        if mount.get("readonly") and Path(source).is_relative_to(volumes) and _names_a_path(Path(source), paths):
            chosen[index] = target, str(directory / "scripts" / str(index) / Path(source).name)
    for (_, source), (_, copy) in zip(paths, chosen, strict=True):
        if copy != source:
            _copy(Path(source), Path(copy), chosen)
    return chosen


def _names_a_path(source: Path, paths: Paths) -> bool:
    texts = (script_text(path) for path in _files(source))
    return any(text is not None and mapped(text, paths) != text for text in texts)


def _files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    return [Path(below, name) for below, _, names in os.walk(source) for name in names]


def script_text(path: Path) -> str | None:
    """The text of a file that a shell or another interpreter is to run; None for any other."""
    try:
        if path.is_symlink() or path.stat().st_size > MOST_BYTES:
            return None
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None
    return text if text.startswith("#!") or path.suffix == ".sh" else None


def _copy(source: Path, copy: Path, paths: Paths) -> None:
    for path in _files(source):
        place = copy / path.relative_to(source) if path != source else copy
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        text = script_text(path)
        if text is None:
            place.symlink_to(path)
        else:
            place.write_text(mapped(text, paths))
            place.chmod(path.stat().st_mode & 0o777)
