"""The logs that are kept: one row per container that has ended, packed, bounded each and together.

Lies in the database of the history. Used by `log_keeper` and by the answer to a question, from the history's own
thread. What is too long keeps its end; where all together are too much, the oldest go.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import msgspec

from shoal.controllers.planning.history.store import DAY, HistoryStore

LONGEST = 256 << 10
"""Bytes of one container's log that are kept: its end."""
MOST_BYTES = 64 << 20
"""Of all logs together, as they are packed."""
MOST_LOGS = 20_000
KEPT_DAYS = 30
_FIELDS = "kind, namespace, name, gang_uid, role, pod, pod_uid, container, ended_at, cut"


class KeptLog(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` and `name` are those of the gang; `cut`: bytes before `text` that were not kept."""

    kind: str
    namespace: str
    name: str
    gang_uid: str
    role: str
    """head, worker, submitter, or empty for a pod of any other kind of job."""
    pod: str
    pod_uid: str
    container: str
    ended_at: int
    cut: int = 0
    text: bytes = b""


class LogQuery(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    kind: str = ""
    gang_uid: str = ""
    """Empty: the gang of this name that ended last."""


class LogStore:
    def __init__(
        self, store: HistoryStore, *, most_bytes: int = MOST_BYTES, most_logs: int = MOST_LOGS, days: int = KEPT_DAYS
    ) -> None:
        self._store = store
        self._most_bytes = most_bytes
        self._most_logs = most_logs
        self._days = days

    def write(self, log: KeptLog) -> None:
        packed = zlib.compress(log.text)
        texts = (log.kind, log.namespace, log.name, log.gang_uid, log.role, log.pod, log.pod_uid, log.container)
        values = [text.replace("\x00", "")[:512] for text in texts]
        with self._store.using() as cursor:
            self._store.execute(
                cursor, "DELETE FROM shoal_logs WHERE pod_uid = ? AND container = ?", (log.pod_uid, log.container)
            )
            self._store.execute(
                cursor,
                f"INSERT INTO shoal_logs ({_FIELDS}, packed_bytes, packed) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*values, log.ended_at, log.cut, len(packed), packed),
            )

    def known(self) -> set[tuple[str, str]]:
        """Pods and containers whose log is kept already."""
        with self._store.using() as cursor:
            self._store.execute(cursor, "SELECT pod_uid, container FROM shoal_logs")
            return {(str(pod), str(container)) for pod, container in cursor.fetchall()}

    def read(self, query: LogQuery) -> list[KeptLog]:
        """Of one gang, oldest first."""
        where, values = "namespace = ? AND name = ?", [query.namespace, query.name]
        for field in ("kind", "gang_uid"):
            if value := getattr(query, field):
                where, values = f"{where} AND {field} = ?", [*values, value]
        with self._store.using() as cursor:
            self._store.execute(
                cursor, f"SELECT gang_uid FROM shoal_logs WHERE {where} ORDER BY ended_at DESC LIMIT 1", tuple(values)
            )
            newest = cursor.fetchone()
            if newest is None:
                return []
            chosen = f"SELECT {_FIELDS}, packed FROM shoal_logs WHERE {where} AND gang_uid = ? ORDER BY ended_at, pod"
            self._store.execute(cursor, chosen, (*values, str(newest[0])))
            return [_kept(row) for row in cursor.fetchall()]

    def prune(self, now: int) -> int:
        """Forget what is too old or too much; returns how many went."""
        with self._store.using() as cursor:
            self._store.execute(cursor, "DELETE FROM shoal_logs WHERE ended_at < ?", (now - self._days * DAY,))
            removed = int(cursor.rowcount)
            self._store.execute(
                cursor, "SELECT pod_uid, container, packed_bytes FROM shoal_logs ORDER BY ended_at DESC"
            )
            total, over = 0, []
            for place, (pod, container, size) in enumerate(cursor.fetchall()):
                total += int(size)
                if total > self._most_bytes or place >= self._most_logs:
                    over.append((pod, container))
            for one in over:
                self._store.execute(cursor, "DELETE FROM shoal_logs WHERE pod_uid = ? AND container = ?", one)
        return removed + len(over)


def _kept(row: Iterable[object]) -> KeptLog:
    kind, namespace, name, gang, role, pod, pod_uid, container, ended_at, cut, packed = row
    unpacked = zlib.decompressobj().decompress(bytes(packed), LONGEST)  # type: ignore[call-overload]
    return KeptLog(
        kind=str(kind), namespace=str(namespace), name=str(name), gang_uid=str(gang), role=str(role), pod=str(pod),
        pod_uid=str(pod_uid), container=str(container), ended_at=int(ended_at), cut=int(cut), text=unpacked,  # type: ignore[call-overload]
    )  # fmt: skip
