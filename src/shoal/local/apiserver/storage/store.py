"""Where objects live: SQLite underneath, memory above, one writer.

A write is given its revision at once, becomes durable together with all that wait with it (group commit), and only then
becomes visible and is acknowledged. Where the disk answers within a blink the commit is made right on the loop, since
the way to a thread and back would take longer; a slower disk gets a thread of its own, so that it delays only
writes. If the disk refuses, everything not yet durable is refused too, and nothing of it was ever seen.
In-memory mode is the same without a disk.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from bisect import bisect_right
from pathlib import Path
from typing import Literal

from shoal.errors import ShoalError
from shoal.local.apiserver.storage.collection import Collection, Follower, StoredObject
from shoal.local.apiserver.storage.lock import StateLock
from shoal.local.apiserver.storage.state_file import FILE, StateDamaged, damaged, make_private, quick_check

log = logging.getLogger(__name__)

Durability = Literal["full", "normal"]

SCHEMA = 1
# After an unclean stop the disk may have lost the newest revisions; none of them may ever be given out again.
UNCLEAN_STEP = 1_000_000
WAL_LIMIT = 64 << 20
PAGE = 8192
CHECKPOINT_BYTES = 8 << 20  # of log, about; then it is moved into the file, by the thread
INLINE_SECONDS = 0.002  # commits that take less, lately, are made on the loop
INLINE_WRITES = 3  # when more come at once there is other work to do while the disk writes
STOPPING = "the server is stopping: the write was not made"
LAYOUT = (
    "CREATE TABLE IF NOT EXISTS meta (schema INTEGER NOT NULL, revision INTEGER NOT NULL, clean INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS objects (id INTEGER PRIMARY KEY, resource TEXT NOT NULL, namespace TEXT NOT NULL,"
    " name TEXT NOT NULL, revision INTEGER NOT NULL, value BLOB NOT NULL)",
)


class WriteFailed(ShoalError):
    """A write was not made. `full` when the disk has no room."""

    def __init__(self, message: str, *, full: bool) -> None:
        super().__init__(message)
        self.full = full


class Write:
    """One change on its way to the disk."""

    __slots__ = ("collection", "done", "record")

    def __init__(self, collection: Collection, record: StoredObject, done: asyncio.Future[None]) -> None:
        self.collection = collection
        self.record = record
        self.done = done


class Storage:
    """All collections and the one revision counter. `directory` None keeps everything in memory."""

    def __init__(self, directory: Path | None = None, durability: Durability = "full") -> None:
        self.directory = directory
        self.durability = durability
        self.collections: dict[str, Collection] = {}
        self.followers: list[Follower] = []
        self.revision = 1  # last given out
        self.committed = 1  # last visible
        self.floor = 1
        self.compacted = 0  # lists as of revisions before this one are no longer given
        self.broken = ""  # why writes are refused until a restart
        self._next_id = 1
        self._outbox: list[Write] = []
        self._last: asyncio.Future[None] | None = None  # of the write that was begun last
        self._busy = False
        self._closing = False
        self._commit_seconds = 1.0  # a moving average; unknown yet, so the first commits are the thread's
        self._log_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._batches: queue.SimpleQueue[list[Write] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock: StateLock | None = None
        self._db: sqlite3.Connection | None = None

    @property
    def busy(self) -> bool:
        """Whether writes are on their way to the disk."""
        return not self._idle.is_set()

    def forget(self, revision: int) -> None:
        """Changes up to this one; a watch that has seen the last of its own resource goes on all the same."""
        for collection in self.collections.values():
            collection.compact(bisect_right(collection.events, revision, key=lambda event: event.record.revision))

    # --- life

    def open(self) -> None:
        """Take the lock, check, load. Raises StateDamaged or StateBusy with what to do."""
        self._loop = asyncio.get_running_loop()
        if self.directory is None:
            return
        make_private(self.directory)
        self._lock = StateLock(self.directory)
        self._lock.take()
        try:
            self._db = self._connect(self.directory / FILE)
            self._load(self._db)
        except sqlite3.DatabaseError as error:
            self._abandon()
            raise damaged(self.directory / FILE, str(error)) from error
        except BaseException:
            self._abandon()
            raise
        self._thread = threading.Thread(target=self._write_batches, name="shoal-storage", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Wait for what is on its way, mark the stop as clean, let the lock go."""
        self._closing = True  # a write that comes later is refused; one that waits is served
        if self._thread is not None:
            await self._idle.wait()
            self._batches.put(None)
            await asyncio.to_thread(self._thread.join)
            self._thread = None
        if self._db is not None:
            try:
                if not self.broken:
                    self._db.execute("UPDATE meta SET clean = 1")
                    self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:
                log.warning("the stop is recorded as unclean: %s", error)
        self._abandon()

    def _abandon(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _connect(self, path: Path) -> sqlite3.Connection:
        fresh = not path.exists()
        if fresh:
            path.touch(mode=0o600)
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=16)
        db.execute("PRAGMA locking_mode = EXCLUSIVE")  # one owner; keeps the WAL index in memory, off shared mappings
        if fresh:
            db.execute(f"PRAGMA page_size = {PAGE}")
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {'FULL' if self.durability == 'full' else 'NORMAL'}")
        db.execute("PRAGMA wal_autocheckpoint = 0")  # it would come in the middle of a commit
        db.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT}")
        db.execute("PRAGMA cache_size = -4096")
        return db

    def _load(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        for statement in LAYOUT:
            db.execute(statement)
        row = db.execute("SELECT schema, revision, clean FROM meta").fetchone()
        if row is None:
            row = (SCHEMA, self.revision, 1)
            db.execute("INSERT INTO meta VALUES (?, ?, 1)", row[:2])
        schema, revision, clean = row
        if schema != SCHEMA:
            db.execute("ROLLBACK")
            raise StateDamaged(
                f"{self.directory} was written by another release of Shoal (layout {schema}, this one reads"
                f" {SCHEMA}); use that release or another directory"
            )
        if not clean:
            quick_check(db, Path(str(self.directory)) / FILE)
            revision += UNCLEAN_STEP
        db.execute("UPDATE meta SET revision = ?, clean = 0", (revision,))
        db.execute("COMMIT")
        # That we run is in the file itself, so that losing the whole log, too, is seen as an unclean stop.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self.revision = self.committed = self.floor = revision
        newest: dict[tuple[str, str, str], int] = {}
        for id, resource, namespace, name, at, value in db.execute(
            "SELECT id, resource, namespace, name, revision, value FROM objects"
        ):
            self._next_id = max(self._next_id, id + 1)
            key = (resource, namespace, name)
            if newest.get(key, -1) < at:
                newest[key] = at
                self.collection(resource).load(StoredObject(id, namespace, name, at, value))

    def collection(self, name: str) -> Collection:
        found = self.collections.get(name)
        if found is None:
            found = self.collections[name] = Collection(name, self.floor, self.followers)
        return found

    # --- writing

    def next_revision(self) -> int:
        """The revision of the write that follows at once, with nothing awaited between."""
        if self.broken:
            raise WriteFailed(self.broken, full=False)
        self.revision += 1
        return self.revision

    async def put(self, collection: Collection, namespace: str, name: str, revision: int, raw: bytes) -> StoredObject:
        """Store an object; returns when it is durable and visible."""
        old = collection.head(namespace, name)
        if old is None:
            id, self._next_id = self._next_id, self._next_id + 1
        else:
            id = old.id
        record = StoredObject(id, namespace, name, revision, raw)
        if (done := self._begin(collection, record)) is not None:
            await done
        return record

    async def remove(
        self, collection: Collection, old: StoredObject, revision: int, raw: bytes, *, marked: bytes | None = None
    ) -> StoredObject:
        """Remove an object; `raw` is its last state with the revision of the removal, for watchers.

        With `marked` they first see it change to that, in the revision before.
        """
        if marked is not None:
            self._begin(collection, StoredObject(old.id, old.namespace, old.name, revision - 1, marked))
        record = StoredObject(old.id, old.namespace, old.name, revision, raw, removed=True)
        if (done := self._begin(collection, record)) is not None:
            await done
        return record

    def _begin(self, collection: Collection, record: StoredObject) -> asyncio.Future[None] | None:
        """Hand a write over in the order of revisions; None when it is done already, in memory."""
        if self._db is None:
            if self.directory is not None:
                raise WriteFailed(STOPPING, full=False)
            collection.apply(record)
            self.committed = record.revision
            collection.wake()
            return None
        assert self._loop is not None
        if self._closing:
            raise WriteFailed(STOPPING, full=False)
        done: asyncio.Future[None] = self._loop.create_future()
        collection.pending[(record.namespace, record.name)] = record
        self._outbox.append(Write(collection, record, done))
        self._last = done
        if not self._busy:
            self._busy = True
            self._idle.clear()
            self._loop.call_soon(self._flush)  # after the other requests of this turn: they share the commit
        return done

    async def settled(self) -> None:
        """Wait for the writes begun so far: a client judged by one is answered only when it can be read.

        Raises WriteFailed when one of them was not made, since then the judgement was wrong.
        """
        if self._last is not None and not self._last.done():
            await asyncio.shield(self._last)

    def _flush(self) -> None:
        batch, self._outbox = self._outbox, []
        quick = self._commit_seconds < INLINE_SECONDS and self._log_bytes < CHECKPOINT_BYTES
        if quick and len(batch) <= INLINE_WRITES:
            self._settle(batch, self._commit(batch))
        else:
            self._batches.put(batch)

    def _settle(self, batch: list[Write], error: WriteFailed | None) -> None:
        """Back on the loop: make a batch visible and answer it, or refuse all that is not durable."""
        if error is not None:
            self._refuse(batch, error)
        else:
            touched = set()
            for write in batch:
                write.collection.apply(write.record)
                touched.add(write.collection)
            if batch:
                self.committed = batch[-1].record.revision
            for write in batch:
                if not write.done.done():
                    write.done.set_result(None)
            for collection in touched:
                collection.wake()
        if self._outbox:
            self._flush()
        else:
            self._busy = False
            self._idle.set()

    def _refuse(self, batch: list[Write], error: WriteFailed) -> None:
        # Later writes were built on the refused ones: none of them may be kept.
        refused, self._outbox = batch + self._outbox, []
        for write in refused:
            write.collection.pending.pop((write.record.namespace, write.record.name), None)
            if not write.done.done():
                write.done.set_exception(error)
                write.done.exception()  # no request waits for a pod's last change
        if not error.full:
            self.broken = str(error)

    async def shrink(self) -> None:
        """Give free pages back to the file system, when nothing is being written and there are many."""
        if self._db is None or self._busy or self.broken:
            return
        self._busy = True
        self._idle.clear()
        self._batches.put([])

    # --- the writer thread

    def _write_batches(self) -> None:
        assert self._loop is not None
        while True:
            batch = self._batches.get()
            if batch is None:
                return
            error = self._commit(batch)
            if error is None and self._log_bytes >= CHECKPOINT_BYTES:
                self._checkpoint()
            try:
                self._loop.call_soon_threadsafe(self._settle, batch, error)
            except RuntimeError:  # the loop is gone: so are the tasks that waited
                return

    def _commit(self, batch: list[Write]) -> WriteFailed | None:
        db = self._db
        assert db is not None
        try:
            if not batch:
                self._give_back(db)
                return None
            begin = time.perf_counter()
            db.execute("BEGIN IMMEDIATE")
            for write in batch:
                record = write.record
                self._log_bytes += (len(record.raw) // PAGE + 3) * PAGE
                if record.removed:
                    db.execute("DELETE FROM objects WHERE id = ?", (record.id,))
                else:
                    db.execute(
                        "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?)",
                        (record.id, write.collection.name, record.namespace, record.name, record.revision, record.raw),
                    )
            db.execute("UPDATE meta SET revision = ?", (batch[-1].record.revision,))
            self._make_durable(db)
            self._commit_seconds += (time.perf_counter() - begin - self._commit_seconds) / 4
        except sqlite3.Error as error:
            return self._failed(db, error)
        return None

    def _checkpoint(self) -> None:
        """Move the log into the file. One that fails is reported, and tried again with the next batch."""
        assert self._db is not None
        try:
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._log_bytes = 0
        except sqlite3.Error as error:
            log.warning("the log of %s could not be moved into its file, next try soon: %s", self.directory, error)

    def _give_back(self, db: sqlite3.Connection) -> None:
        free, pages = (int(db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("freelist_count", "page_count"))
        if free > 256 and free > pages // 4:
            db.execute("PRAGMA incremental_vacuum(4096)").fetchall()

    def _make_durable(self, db: sqlite3.Connection) -> None:
        db.execute("COMMIT")

    def _failed(self, db: sqlite3.Connection, error: sqlite3.Error) -> WriteFailed:
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")
        except sqlite3.Error as second:
            log.error("rollback failed: %s", second)
        where = self.directory
        if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
            return WriteFailed(
                f"no space left for {where}: the write was not made; free some space and try again", full=True
            )
        log.error("the database in %s cannot be written: %s", where, error)
        return WriteFailed(
            f"the database in {where} cannot be written ({error}): the write was not made; "
            "look at the disk and restart",
            full=False,
        )
