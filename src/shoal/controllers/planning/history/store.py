"""Where history is kept: one database in SQLite or PostgreSQL, bounded in rows and days.

Used by `recorder` (rounds) and `log_store` (logs) from one thread of their own; nothing here is asynchronous. Both
databases understand the same statements. A database that fails raises HistoryTrouble, and the connection is made again
at the next call.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import msgspec

from shoal.controllers.planning.history.records import RunRecord, Sighting, advanced
from shoal.errors import BadInput, ShoalError

MOST_ROWS = 100_000
KEPT_DAYS = 90
DAY = 86_400 * 1_000_000
MEMORY = "memory"
NONE = "none"
COLUMNS = tuple(RunRecord.__struct_fields__)
_TEXTS = ("uid", "kind", "namespace", "name", "user", "queue", "cluster_queue", "outcome")
_NAMES = {"user": "by_user", "round": "round_number"}  # words that SQL keeps for itself
_LOG_FIELDS = (
    "kind", "namespace", "name", "gang_uid", "role", "pod", "pod_uid", "container", "ended_at", "cut", "packed_bytes",
)  # fmt: skip
_LOG_NUMBERS = ("ended_at", "cut", "packed_bytes")
_FIELDS = tuple(_NAMES.get(one, one) for one in COLUMNS)
_CHOSEN = f"SELECT {', '.join(_FIELDS)} FROM shoal_runs"
_CHANGES = ", ".join(f"{one} = excluded.{one}" for one in _FIELDS if one not in ("uid", "round_number"))
_STORE = (
    f"INSERT INTO shoal_runs ({', '.join(_FIELDS)}) VALUES ({', '.join('?' for _ in _FIELDS)}) "
    f"ON CONFLICT (uid, round_number) DO UPDATE SET {_CHANGES}"
)
ASKED_AT_ONCE = 500
"""Gangs in one statement."""


class HistoryTrouble(ShoalError):
    """The database does not answer, or refuses."""


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Rounds that overlap the window. Empty fields choose everything."""

    since: int = 0
    until: int = 0
    namespace: str = ""
    user: str = ""
    queue: str = ""
    name: str = ""
    limit: int = 1000


class HistoryTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Of one user in one queue of one namespace, for one kind of gang. Seconds within the window."""

    kind: str
    namespace: str
    user: str
    queue: str
    gangs: int
    runs: int
    requeues: int
    waited: float
    longest_wait: float
    ran: float
    gpu_seconds: float
    failed: int


class Database(Protocol):
    def cursor(self) -> Any: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class HistoryStore:
    """`url`: `memory`, `sqlite:///PATH`, or `postgresql://USER:PASSWORD@HOST/DATABASE` with libpq's options."""

    def __init__(
        self, url: str = MEMORY, *, most_rows: int = MOST_ROWS, kept_days: int = KEPT_DAYS, keep_logs: bool = True
    ) -> None:
        """`keep_logs`: whether the end of gangs' logs is kept here, too."""
        self.keep_logs = keep_logs
        self._url = check_url(url)
        self._postgres = url.startswith(("postgresql://", "postgres://"))
        self._most_rows = most_rows
        self._kept_days = kept_days
        self._connection: Database | None = None
        self._going_on: dict[str, RunRecord] = {}
        """By UID: the round that goes on, as this object stored it last, so that it need not be read again; nothing
        where it is in memory anyway."""

    def close(self) -> None:
        """The next call opens it again; what is only in memory stays as long as this object."""
        if self._connection is not None and self._url != MEMORY:
            self._connection.close()
            self._connection = None

    def write(self, seen: Iterable[Sighting]) -> list[RunRecord]:
        """All of it or nothing; returns the rows that changed."""
        looks, changed = list(seen), list[RunRecord]()
        with self.using() as cursor:
            last = self._last(cursor, dict.fromkeys(one.uid for one in looks))
            for one in looks:
                for row in advanced(last.get(one.uid), one):
                    last[one.uid] = row
                    changed.append(row)
            self._put(cursor, {(row.uid, row.round): row for row in changed}.values())
        for row in changed if self._url != MEMORY else ():
            if row.ended_at:
                self._going_on.pop(row.uid, None)
            else:
                self._going_on[row.uid] = row
        return changed

    def close_missing(self, there: Iterable[str], at: int) -> int:
        """Rounds that go on in the store and whose gangs are not there any more have ended while nothing looked."""
        known = set(there)
        self._going_on.clear()  # another controller may have written since
        with self.using() as cursor:
            self.execute(cursor, "SELECT DISTINCT uid FROM shoal_runs WHERE ended_at = 0")
            missing = [uid for (uid,) in cursor.fetchall() if uid not in known]
            last = self._last(cursor, missing)
            ended = [advanced(last.get(uid), Sighting(uid=uid, stage="ended", at=at)) for uid in missing]
            self._put(cursor, [row for rows in ended for row in rows])
        return len(missing)

    def prune(self, now: int) -> int:
        """Forget what is too old or too much; what goes on is kept."""
        with self.using() as cursor:
            self.execute(
                cursor, "DELETE FROM shoal_runs WHERE ended_at > 0 AND ended_at < ?", (now - self._kept_days * DAY,)
            )
            removed = int(cursor.rowcount)
            self.execute(cursor, "SELECT COUNT(*) FROM shoal_runs")
            over = int(cursor.fetchone()[0]) - self._most_rows
            if over > 0:
                oldest = "SELECT uid, round_number FROM shoal_runs WHERE ended_at > 0 ORDER BY ended_at LIMIT ?"
                self.execute(cursor, f"DELETE FROM shoal_runs WHERE (uid, round_number) IN ({oldest})", (over,))
                removed += int(cursor.rowcount)
        return removed

    def runs(self, query: HistoryQuery) -> list[RunRecord]:
        """Newest first."""
        where, values = _where(query)
        order = (
            "ORDER BY CASE WHEN started_at > 0 THEN started_at ELSE queued_at END DESC, uid, round_number DESC LIMIT ?"
        )
        with self.using() as cursor:
            self.execute(cursor, f"{_CHOSEN}{where} {order}", (*values, query.limit))
            return [_record(row) for row in cursor.fetchall()]

    def totals(self, query: HistoryQuery, now: int) -> list[HistoryTotal]:
        """Sums by kind, namespace, user and queue; what goes on counts up to now."""
        where, values = _where(query)
        until = min(query.until or now, now)
        # From the start of the window, or of the round, to the end of whichever ends first.
        waits = "(CASE WHEN started_at > 0 THEN started_at WHEN ended_at > 0 THEN ended_at ELSE ? END)"
        ended = "(CASE WHEN ended_at > 0 AND ended_at < ? THEN ended_at ELSE ? END)"
        began = "(CASE WHEN started_at > ? THEN started_at ELSE ? END)"
        waited = f"({waits} - queued_at)"
        ran = f"(CASE WHEN started_at = 0 OR {began} > {ended} THEN 0 ELSE {ended} - {began} END)"
        since = query.since
        of_ran = (since, since, until, until, until, until, since, since)
        statement = (
            "SELECT kind, namespace, by_user, queue, COUNT(DISTINCT uid),"
            " SUM(CASE WHEN started_at > 0 THEN 1 ELSE 0 END),"
            " SUM(CASE WHEN outcome IN ('Requeued', 'Preempted') THEN 1 ELSE 0 END),"
            f" SUM({waited}), MAX({waited}), SUM({ran}), SUM({ran} * gpus),"
            " SUM(CASE WHEN outcome = 'Failed' THEN 1 ELSE 0 END)"
            f" FROM shoal_runs{where} GROUP BY kind, namespace, by_user, queue"
        )
        with self.using() as cursor:
            self.execute(cursor, statement, (now, now, *of_ran, *of_ran, *values))
            return [_total(row) for row in cursor.fetchall()]

    def durations(self, namespace: str, user: str, queue: str, limit: int = 50) -> list[float]:
        """Seconds of the last whole runs of this user in this queue, newest first."""
        with self.using() as cursor:
            self.execute(
                cursor,
                "SELECT ended_at - started_at FROM shoal_runs WHERE namespace = ? AND by_user = ? AND queue = ? AND "
                "started_at > 0 AND ended_at > 0 AND outcome IN ('Succeeded', 'Failed') ORDER BY ended_at DESC LIMIT ?",
                (namespace, user, queue, limit),
            )
            return [float(value) / 1_000_000 for (value,) in cursor.fetchall()]

    # --- the database

    def using(self) -> _Using:
        return _Using(self)

    def connect(self) -> Database:
        if self._connection is None:
            made = self._postgresql() if self._postgres else self._sqlite()
            try:
                self._prepare(made)
            except BaseException:
                made.close()
                raise
            self._connection = made
        return self._connection

    def trouble(self, error: BaseException) -> HistoryTrouble:
        """The first line of what went wrong, without the password of the address."""
        said = (str(error) or type(error).__name__).splitlines()[0]
        return HistoryTrouble(f"the history cannot be kept: {_without_secrets(said, self._url)[:300]}")

    def drop(self) -> None:
        """The connection may be of no use any more. What is in memory is kept: it cannot break."""
        self._going_on.clear()
        connection = self._connection
        if connection is None:
            return
        try:
            connection.rollback()
        except Exception:  # whatever a driver says of a connection that is gone
            pass
        if self._url != MEMORY:
            self._connection = None
            try:
                connection.close()
            except Exception:  # the same
                pass

    def _sqlite(self) -> Database:
        if self._url == MEMORY:
            return sqlite3.connect(":memory:", check_same_thread=False)
        path = Path(self._url.removeprefix("sqlite:///"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
        os.chmod(path, 0o600)
        made = sqlite3.connect(path, check_same_thread=False, timeout=10.0)
        made.execute("PRAGMA journal_mode = WAL")
        made.execute("PRAGMA synchronous = NORMAL")
        return made

    def _postgresql(self) -> Database:
        try:
            import psycopg
        except ImportError:
            raise HistoryTrouble("PostgreSQL needs the psycopg package: pip install shoal-ray[controller]") from None
        made: Database = psycopg.connect(self._url, connect_timeout=10, application_name="shoal")
        return made

    def _prepare(self, connection: Database) -> None:
        columns = ", ".join(
            f"{_NAMES.get(one, one)} {'TEXT' if one in _TEXTS else 'BIGINT'} NOT NULL" for one in COLUMNS
        )
        cursor = connection.cursor()
        cursor.execute(f"CREATE TABLE IF NOT EXISTS shoal_runs ({columns}, PRIMARY KEY (uid, round_number))")
        cursor.execute("CREATE INDEX IF NOT EXISTS shoal_runs_ended ON shoal_runs (ended_at)")
        cursor.execute("CREATE INDEX IF NOT EXISTS shoal_runs_of ON shoal_runs (namespace, queue, by_user)")
        kept = ", ".join(f"{one} {'BIGINT' if one in _LOG_NUMBERS else 'TEXT'} NOT NULL" for one in _LOG_FIELDS)
        packed = "BYTEA" if self._postgres else "BLOB"
        kept += f", packed {packed} NOT NULL, PRIMARY KEY (pod_uid, container)"
        cursor.execute(f"CREATE TABLE IF NOT EXISTS shoal_logs ({kept})")
        cursor.execute("CREATE INDEX IF NOT EXISTS shoal_logs_of ON shoal_logs (namespace, name)")
        connection.commit()

    def execute(self, cursor: Any, statement: str, values: Sequence[Any] = ()) -> None:
        cursor.execute(statement.replace("?", "%s") if self._postgres else statement, tuple(values))

    def _last(self, cursor: Any, uids: Iterable[str]) -> dict[str, RunRecord]:
        """The last round of each, where there is one."""
        found = {uid: known for uid in uids if (known := self._going_on.get(uid)) is not None}
        unknown = [uid for uid in uids if uid not in found]
        for start in range(0, len(unknown), ASKED_AT_ONCE):
            some = unknown[start : start + ASKED_AT_ONCE]
            marks = ", ".join("?" for _ in some)
            self.execute(cursor, f"{_CHOSEN} WHERE uid IN ({marks}) ORDER BY round_number", some)
            found.update((record.uid, record) for record in map(_record, cursor.fetchall()))
        return found

    def _put(self, cursor: Any, records: Iterable[RunRecord]) -> None:
        rows = [[_plain(value) for value in msgspec.structs.astuple(one)] for one in records]
        if rows:
            cursor.executemany(_STORE.replace("?", "%s") if self._postgres else _STORE, rows)


class _Using:
    """One transaction, on a connection that is made where there is none."""

    def __init__(self, store: HistoryStore) -> None:
        self._store = store

    def __enter__(self) -> Any:
        try:
            self._connection = self._store.connect()
            return self._connection.cursor()
        except HistoryTrouble:
            raise
        except Exception as error:  # sqlite3, psycopg and the file system have no error in common
            self._store.drop()
            raise self._store.trouble(error) from None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            try:
                self._connection.commit()
                return
            except Exception as failed:
                self._store.drop()
                raise self._store.trouble(failed) from None
        self._store.drop()
        if isinstance(error, Exception) and not isinstance(error, HistoryTrouble):
            raise self._store.trouble(error) from None


def check_url(url: str) -> str:
    """Raises BadInput, without the address: it may hold a password."""
    if url == MEMORY or url.startswith(("sqlite:///", "postgresql://", "postgres://")):
        return url
    raise BadInput("the address of the history is none of memory, sqlite:///PATH and postgresql://HOST/DATABASE")


def _without_secrets(text: str, url: str) -> str:
    """What a driver says may quote the address, whole or in part."""
    for secret in sorted({url, *_passwords(url)}, key=len, reverse=True):
        text = text.replace(secret, "…")
    return text


def _passwords(url: str) -> list[str]:
    """As it is written and as it is meant, in the address or among its options."""
    user = url.partition("://")[2].partition("/")[0].rpartition("@")[0]
    found = [user.partition(":")[2], *re.findall(r"[?&](?:password|sslpassword)=([^&]*)", url)]
    return [secret for one in found if one for secret in dict.fromkeys((one, unquote(one)))]


def _plain(value: Any) -> Any:
    """What both databases take: no text with NUL, no number beyond 64 bits."""
    if isinstance(value, str):
        return value.replace("\x00", "")[:512]
    return max(-(2**63), min(int(value), 2**63 - 1))


def _where(query: HistoryQuery) -> tuple[str, tuple[Any, ...]]:
    parts: list[str] = []
    values: list[Any] = []
    if query.since:
        parts.append("(ended_at = 0 OR ended_at >= ?)")
        values.append(query.since)
    if query.until:
        parts.append("queued_at < ?")
        values.append(query.until)
    for field in ("namespace", "user", "queue", "name"):
        if value := getattr(query, field):
            parts.append(f"{_NAMES.get(field, field)} = ?")
            values.append(value)
    return (f" WHERE {' AND '.join(parts)}" if parts else ""), tuple(values)


def _record(row: Sequence[Any]) -> RunRecord:
    return RunRecord(**dict(zip(COLUMNS, row, strict=True)))


def _total(row: Sequence[Any]) -> HistoryTotal:
    kind, namespace, user, queue, gangs, runs, requeues, waited, longest, ran, gpu, failed = row
    return HistoryTotal(
        kind=kind, namespace=namespace, user=user, queue=queue, gangs=int(gangs), runs=int(runs or 0),
        requeues=int(requeues or 0), waited=float(waited or 0) / 1e6, longest_wait=float(longest or 0) / 1e6,
        ran=float(ran or 0) / 1e6, gpu_seconds=float(gpu or 0) / 1e6, failed=int(failed or 0),
    )  # fmt: skip
