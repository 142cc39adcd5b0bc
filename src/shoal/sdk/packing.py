"""A working directory as one archive that travels with its job: bounded, the same bytes for the same files.

The archive is stored in the cluster (`submitting`), so that it needs no shared file system and survives the client.
What ignore files name stays at home, and so does whatever a link leads to outside the directory.
"""

from __future__ import annotations

import io
import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

from shoal.errors import BadInput
from shoal.sdk import ignoring

MOST_BYTES = 10_000_000
"""Of the archive."""
MOST_READ = 200_000_000
"""Of the files before they are compressed."""
MOST_FILES = 10_000
_BEGINNING = (1980, 1, 1, 0, 0, 0)


def pack(directory: Path) -> bytes:
    """A zip of the directory's files. Raises BadInput where there are none, or too many, naming the largest."""
    if not directory.is_dir():
        raise BadInput(f"--working-dir {directory} is no folder")
    found = sorted(_files(directory))
    if not found:
        raise BadInput(f"--working-dir {directory} has no files, or ignore files exclude all of them")
    if len(found) > MOST_FILES:
        raise BadInput(
            f"{directory} has more than {MOST_FILES} files; name what to leave out in {directory}/.rayignore"
        )
    sizes = {name: path.stat().st_size for name, path in found}
    if sum(sizes.values()) > MOST_READ:
        raise _too_large(directory, sum(sizes.values()), MOST_READ, sizes)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for name, path in found:
            entry = zipfile.ZipInfo(name, _BEGINNING)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (stat.S_IMODE(path.stat().st_mode) | stat.S_IFREG) << 16
            out.writestr(entry, path.read_bytes())
    packed = archive.getvalue()
    if len(packed) > MOST_BYTES:
        raise _too_large(directory, len(packed), MOST_BYTES, sizes)
    return packed


def _files(directory: Path) -> Iterator[tuple[str, Path]]:
    """Regular files that stay inside, by their path in the archive."""
    inside = directory.resolve()
    rules: dict[str, list[ignoring.IgnoreRule]] = {}
    for folder, folders, names in os.walk(directory):
        below = Path(folder).relative_to(directory).as_posix()
        base = "" if below == "." else f"{below}/"
        above = rules.get(base.rstrip("/").rpartition("/")[0] if base else "", []) if base else _always()
        own = [rule for name in ignoring.FILES for rule in _read(Path(folder) / name, base)]
        rules[base.rstrip("/")] = here = [*above, *own]
        folders[:] = sorted(one for one in folders if not ignoring.is_ignored(base + one, folder=True, rules=here))
        for name in names:
            path = Path(folder) / name
            if ignoring.is_ignored(base + name, folder=False, rules=here) or not path.is_file():
                continue
            if path.is_symlink() and not path.resolve().is_relative_to(inside):
                continue
            yield base + name, path


def _always() -> list[ignoring.IgnoreRule]:
    return ignoring.read("\n".join(ignoring.ALWAYS))


def _read(path: Path, base: str) -> list[ignoring.IgnoreRule]:
    try:
        return ignoring.read(path.read_text(encoding="utf-8", errors="replace"), base)
    except OSError:
        return []


def _too_large(directory: Path, size: int, most: int, sizes: dict[str, int]) -> BadInput:
    largest = sorted(sizes.items(), key=lambda one: -one[1])[:3]
    named = ", ".join(f"{name} ({_megabytes(bytes_)})" for name, bytes_ in largest)
    return BadInput(
        f"{directory} has {_megabytes(size)}, the limit is {_megabytes(most)}; largest: {named}. Name what to leave "
        f"out in {directory}/.rayignore, or put it into the image or an object store (--working-dir s3://…)"
    )


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:.1f} MB"
