"""Save what can be read from a damaged database, when the user asks for it (`--repair`).

Every row that can be read goes into a new file; the damaged one is kept beside it, never deleted. What was lost is
counted and said.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from shoal.local.apiserver.storage import store
from shoal.local.apiserver.storage.lock import StateLock
from shoal.local.apiserver.storage.state_file import FILE

_CHUNK = 256


class Repaired(msgspec.Struct, frozen=True):
    kept: int
    unreadable: int
    aside: Path


def repair(directory: Path) -> Repaired:
    """Rebuild the database of a state directory. Refused while a server uses it."""
    lock = StateLock(directory)
    lock.take()
    try:
        return _repair(directory / FILE)
    finally:
        lock.release()


def _repair(path: Path) -> Repaired:
    rows, unreadable, revision = _salvage(path)
    fresh = path.with_name(path.name + ".repaired")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    db = sqlite3.connect(fresh, isolation_level=None)
    for statement in store.LAYOUT:
        db.execute(statement)
    db.execute("BEGIN")
    db.execute("INSERT INTO meta VALUES (?, ?, 0)", (store.SCHEMA, max([revision, *(row[4] for row in rows.values())])))
    db.executemany("INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?)", rows.values())
    db.execute("COMMIT")
    db.close()
    aside = _unused(path)
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        log = path.with_name(path.name + suffix)
        if log.exists():
            log.rename(aside.with_name(aside.name + suffix))
    fresh.rename(path)
    return Repaired(len(rows), unreadable, aside)


def _salvage(path: Path) -> tuple[dict[int, tuple[int, str, str, str, int, bytes]], int, int]:
    """Readable rows by id, the number of ids that failed, and the highest revision known."""
    rows: dict[int, tuple[int, str, str, str, int, bytes]] = {}
    unreadable, revision = 0, 1
    try:
        db = sqlite3.connect(path, isolation_level=None)
        last = int(db.execute("SELECT max(id) FROM objects").fetchone()[0] or 0)
    except sqlite3.DatabaseError:
        return rows, unreadable, revision
    try:
        revision = int(db.execute("SELECT revision FROM meta").fetchone()[0])
    except (sqlite3.DatabaseError, TypeError):
        pass
    query = "SELECT id, resource, namespace, name, revision, value FROM objects WHERE id {}"
    for start in range(1, last + 1, _CHUNK):
        try:
            found = db.execute(query.format("BETWEEN ? AND ?"), (start, start + _CHUNK - 1)).fetchall()
        except sqlite3.DatabaseError:
            found = []
            for id in range(start, min(start + _CHUNK, last + 1)):
                try:
                    found += db.execute(query.format("= ?"), (id,)).fetchall()
                except sqlite3.DatabaseError:
                    unreadable += 1
        for row in found:
            if _is_object(row):
                rows[row[0]] = row
            else:
                unreadable += 1
    db.close()
    return rows, unreadable, revision


def _is_object(row: tuple[object, ...]) -> bool:
    try:
        return type(row[5]) is bytes and type(msgspec.json.decode(row[5])) is dict
    except msgspec.MsgspecError:
        return False


def _unused(path: Path) -> Path:
    number = 1
    while (found := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return found
