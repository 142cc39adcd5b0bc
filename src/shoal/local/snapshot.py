"""A cluster of this machine in one file, and back: its objects, its certificates and keys, what `shoal up` remembers.

`shoal snapshot` calls it. A snapshot of a running cluster is what a power loss at that moment would leave, which the
store is made for. Nothing is replaced before the whole snapshot was read and its database was checked.
"""

from __future__ import annotations

import io
import os
import shutil
import sqlite3
import tarfile
import tempfile
from pathlib import Path

import msgspec

from shoal.errors import ShoalError
from shoal.local.apiserver.storage.lock import StateLock
from shoal.local.apiserver.storage.state_file import FILE, quick_check
from shoal.local.apiserver.storage.store import SCHEMA
from shoal.local.home import Home
from shoal.version import __version__

FORMAT = 1
"""Of the file. A newer one is refused; every older one stays readable."""
MANIFEST = "manifest.json"
CLAIMS = "run/claims"
ATTEMPTS = 50
_SALTS = slice(16, 24)
"""Where a write-ahead log says which one it is; SQLite changes it whenever the log begins again."""


class SnapshotManifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    shoal: str
    cluster: str
    created: str
    layout: int
    """Of the database."""
    objects: int
    volumes: bool


def save(home: Home, target: Path, *, created: str, volumes: bool = False) -> SnapshotManifest:
    """Write the snapshot; `volumes` also takes the contents of PersistentVolumeClaims. Only its owner can read it."""
    if not (home.api / FILE).exists():
        raise ShoalError(f"there is no cluster {home.name} on this machine")
    with tempfile.TemporaryDirectory(dir=target.absolute().parent, prefix=".snapshot-") as folder:
        database = Path(folder) / FILE
        _copy_database(home.api / FILE, database)
        layout, objects = _checked(database)
        manifest = SnapshotManifest(
            format=FORMAT,
            shoal=__version__,
            cluster=home.name,
            created=created,
            layout=layout,
            objects=objects,
            volumes=volumes,
        )
        partial = Path(folder) / "partial"
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz") as archive:
                _add_bytes(archive, MANIFEST, msgspec.json.encode(manifest))
                archive.add(database, f"api/{FILE}")
                archive.add(home.api / "pki", "api/pki")
                if (home.directory / "remembered.json").exists():
                    archive.add(home.directory / "remembered.json", "remembered.json")
                if volumes and (home.directory / CLAIMS).is_dir():
                    archive.add(home.directory / CLAIMS, CLAIMS)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    return manifest


def read_manifest(source: Path) -> SnapshotManifest:
    """What a snapshot says of itself; refused where this release cannot read it."""
    try:
        with tarfile.open(source, "r:gz") as archive:
            found = archive.extractfile(MANIFEST)
            manifest = msgspec.json.decode(found.read() if found is not None else b"", type=SnapshotManifest)
    except (OSError, KeyError, tarfile.TarError, msgspec.MsgspecError, EOFError) as error:
        raise ShoalError(f"{source} is no snapshot of a cluster: {error}") from None
    if manifest.format > FORMAT or manifest.layout > SCHEMA:
        raise ShoalError(
            f"{source} was written by Shoal {manifest.shoal} in a format that {__version__} cannot read; "
            "restore it with that release"
        )
    return manifest


def restore(source: Path, home: Home, *, replace: bool = False) -> SnapshotManifest:
    """Make the cluster what the snapshot holds. It must be down; `replace` lets the state that it has go."""
    manifest = read_manifest(source)
    if home.running() is not None:
        raise ShoalError(f"cluster {home.name} is running; stop it first: shoal down --name {home.name}")
    if home.exists() and not replace:
        raise ShoalError(f"cluster {home.name} has state in {home.directory}; --replace replaces it")
    home.directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.directory.parent, prefix=".restore-") as folder:
        fresh = Path(folder) / "state"
        fresh.mkdir(mode=0o700)
        try:
            with tarfile.open(source, "r:gz") as archive:
                archive.extractall(fresh, filter="data")
        except (OSError, tarfile.TarError, EOFError) as error:
            raise ShoalError(f"{source} cannot be read to its end: {error}") from None
        (fresh / MANIFEST).unlink(missing_ok=True)
        _make_private(fresh)
        _checked(fresh / "api" / FILE)
        lock = StateLock(home.api) if home.api.is_dir() else None
        if lock is not None:
            lock.take()  # a cluster that starts at this moment keeps its state
        try:
            _continue_after(fresh / "api" / FILE, home.api / FILE)
            if home.directory.exists():
                home.directory.rename(Path(folder) / "replaced")
            fresh.rename(home.directory)
        finally:
            if lock is not None:
                lock.release()
    return manifest


def _copy_database(source: Path, target: Path) -> None:
    """The file and then its log. Pages that a checkpoint moves meanwhile are in the log as well, so the two together
    are whole unless the log began again in between."""
    log = Path(f"{source}-wal")
    for _ in range(ATTEMPTS):
        before = _log_identity(log)
        shutil.copyfile(source, target)
        Path(f"{target}-wal").unlink(missing_ok=True)
        if log.exists():
            shutil.copyfile(log, f"{target}-wal")
        if _log_identity(log) == before:
            return
    raise ShoalError(f"{source} is written too fast to be copied; try again, or stop the cluster first")


def _log_identity(log: Path) -> bytes:
    try:
        with log.open("rb") as file:
            return file.read(32)[_SALTS]
    except FileNotFoundError:
        return b""


def _checked(database: Path) -> tuple[int, int]:
    """Layout and number of objects of a database that is whole, its log folded in."""
    try:
        db = sqlite3.connect(database, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode = DELETE").fetchall()
            quick_check(db, database)
            (layout,) = db.execute("SELECT schema FROM meta").fetchone()
            (objects,) = db.execute("SELECT count(*) FROM objects").fetchone()
        finally:
            db.close()
    except (sqlite3.Error, TypeError) as error:
        raise ShoalError(f"the database of the snapshot cannot be read: {error}") from None
    return int(layout), int(objects)


def _continue_after(restored: Path, replaced: Path) -> None:
    """Revisions never go back: clients hold those of the state that is replaced."""
    newest = 0
    if replaced.exists():
        try:
            db = sqlite3.connect(replaced, isolation_level=None)
            try:
                newest = int(db.execute("SELECT revision FROM meta").fetchone()[0])
            finally:
                db.close()
        except (sqlite3.Error, TypeError):
            newest = 0  # a damaged one is replaced as well
    db = sqlite3.connect(restored, isolation_level=None)
    try:
        db.execute("UPDATE meta SET revision = max(revision, ?), clean = 0", (newest,))
    finally:
        db.close()


def _make_private(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink() and CLAIMS not in str(path.relative_to(folder)):
            path.chmod(0o700 if path.is_dir() else 0o600)


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size, about.mode = len(content), 0o600
    archive.addfile(about, io.BytesIO(content))
