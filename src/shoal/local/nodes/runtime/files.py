"""Files of a volume that the agent writes: chosen from keys, kept in step with their source, never outside the volume.

Written through directory handles that follow no link: keys and paths are a user's, and so is what lies in the volume.
"""

from __future__ import annotations

import os
from pathlib import Path

from shoal.api.meta import Json
from shoal.local.nodes.runtime.sources import ConfigError

Files = dict[str, tuple[bytes, int]]
"""Path inside the volume to content and mode."""


def choose(source: Json, data: dict[str, bytes], mode: int) -> Files:
    """Keys as files; `items` choose and rename."""
    mode = int(source.get("defaultMode") or mode)
    items = source.get("items")
    if not items:
        return {key: (value, mode) for key, value in data.items()}
    chosen: Files = {}
    for item in items:
        if item["key"] in data:
            chosen[item["path"]] = (data[item["key"]], int(item.get("mode") or mode))
        elif not source.get("optional"):
            raise ConfigError(f"references non-existent config key: {item['key']}")
    return chosen


def sync(directory: Path, files: Files) -> None:
    """Make the directory hold these files and no others. Each one changes whole; what is equal is not touched."""
    for relative in files:
        _parts(relative)
    root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for relative, (value, mode) in files.items():
            write_beneath(root, relative, value, mode)
    finally:
        os.close(root)
    wanted = {directory.joinpath(*_parts(relative)) for relative in files}
    for below, _, names in os.walk(directory):
        for name in names:
            path = Path(below, name)
            if path not in wanted and not path.is_symlink():
                path.unlink(missing_ok=True)


def _parts(relative: str) -> list[str]:
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or relative.startswith("/"):
        raise ConfigError(f"{relative!r} is not a path inside the volume; keys and paths may not leave it")
    return parts


def write_beneath(root: int, relative: str, value: bytes, mode: int) -> None:
    parts = _parts(relative)
    held = os.dup(root)
    try:
        for part in parts[:-1]:
            try:
                os.mkdir(part, 0o755, dir_fd=held)
            except FileExistsError:
                pass
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=held)
            os.close(held)
            held = inner
        if _same(held, parts[-1], value, mode):
            return
        partial = f"..{parts[-1]}.partial"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode, dir_fd=held)
        with os.fdopen(descriptor, "wb") as file:
            file.write(value)
            os.fchmod(file.fileno(), mode)
        os.rename(partial, parts[-1], src_dir_fd=held, dst_dir_fd=held)
    finally:
        os.close(held)


def _same(directory: int, name: str, value: bytes, mode: int) -> bool:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        return os.fstat(file.fileno()).st_mode & 0o7777 == mode and file.read(len(value) + 1) == value
