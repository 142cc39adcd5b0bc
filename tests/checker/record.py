"""The checker's own view of a history: one record per request or watch event."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

Json = dict[str, Any]

WRITES = frozenset({"create", "update", "patch", "delete"})
BOOKKEEPING = ("/leases", "/events")
"""Collections whose writes decide nothing."""


@dataclass(frozen=True)
class Record:
    order: int
    began: int
    ended: int
    replica: str
    term: int
    verb: str
    path: str
    namespace: str
    name: str
    subresource: str
    uid: str
    outcome: str
    reason: str
    code: int
    query: dict[str, str] = field(repr=False)
    body: Any = field(repr=False)
    old: Json | None = field(repr=False)
    new: Json | None = field(repr=False)
    event: str = ""
    watch: int = 0
    marks: dict[str, str] = field(default_factory=dict)
    sequence: int = 0
    """Place in the history, which is the order in which requests ended."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.path, self.namespace, self.name

    @property
    def is_write(self) -> bool:
        return self.verb in WRITES and not self.query.get("dryRun")

    @property
    def is_done_write(self) -> bool:
        return self.is_write and self.outcome == "done" and self.new is not None and bool(self.revision)

    @property
    def decides(self) -> bool:
        return self.is_write and not self.path.endswith(BOOKKEEPING)

    @property
    def revision(self) -> int:
        """Of the object in the answer or event; 0 when there is none."""
        text = str(((self.new or {}).get("metadata") or {}).get("resourceVersion") or "")
        return int(text) if text.isdigit() else 0

    def __str__(self) -> str:
        who = f"{self.replica or '?'}/{self.term}" if self.term else self.replica or "?"
        name = "/".join(
            part for part in (self.path.split("/")[-1], self.namespace, self.name, self.subresource) if part
        )
        return f"#{self.order} {who} {self.event or self.verb} {name} -> {self.outcome} {self.revision or self.reason}"


@dataclass(frozen=True)
class Violation:
    invariant: str
    says: str
    records: tuple[Record, ...] = ()

    def __str__(self) -> str:
        return f"{self.invariant}: {self.says}" + "".join(f"\n    {record}" for record in self.records)


_DEFAULTS: Json = {
    "began": 0, "ended": 0, "replica": "", "term": 0, "verb": "", "path": "", "namespace": "", "name": "",
    "subresource": "", "uid": "", "outcome": "done", "reason": "", "code": 0, "event": "", "watch": 0,
    "body": None, "old": None, "new": None,
}  # fmt: skip


def normalize(entries: Iterable[Any]) -> list[Record]:
    """Records from recorded entries (structs or dictionaries)."""
    records = []
    for sequence, entry in enumerate(entries):
        plain = entry if isinstance(entry, dict) else msgspec.to_builtins(entry)
        if isinstance(entry, Record):
            records.append(entry)
            continue
        values = {name: plain.get(name, default) for name, default in _DEFAULTS.items()}
        queries, marks = dict(plain.get("query") or {}), dict(plain.get("marks") or {})
        order = int(plain.get("order") or sequence + 1)
        records.append(Record(order=order, sequence=sequence, query=queries, marks=marks, **values))
    return records


def from_audit(path: Path, *, users: tuple[str, ...] = ()) -> list[Record]:
    """Records from the audit log of a real API server (level RequestResponse). `users`: whose requests are ours."""
    return list(_audit_records(path, users))


def _audit_records(path: Path, users: tuple[str, ...]) -> Iterator[Record]:
    for sequence, line in enumerate(path.read_text().splitlines()):
        try:
            event = json.loads(line)
        except ValueError:
            continue  # cut by a kill
        target = event.get("objectRef") or {}
        user = (event.get("user") or {}).get("username", "")
        if event.get("stage") != "ResponseComplete" or not target or (users and user not in users):
            continue
        group, version = target.get("apiGroup", ""), target.get("apiVersion", "v1")
        head = f"apis/{group}/{version}" if group else f"api/{version}"
        code = int((event.get("responseStatus") or {}).get("code") or 0)
        answer = event.get("responseObject") if code < 300 else None
        metadata = (answer or {}).get("metadata") or {}
        yield Record(
            order=sequence + 1,
            sequence=sequence,
            began=_micros(event["requestReceivedTimestamp"]),
            ended=_micros(event["stageTimestamp"]),
            replica=event.get("userAgent", ""),
            term=0,
            verb=event["verb"],
            path=f"{head}/{target.get('resource', '')}",
            namespace=target.get("namespace", ""),
            name=target.get("name", "") or metadata.get("name", ""),
            subresource=target.get("subresource", ""),
            uid=metadata.get("uid", ""),
            outcome="done" if code < 300 else "refused",
            reason=(event.get("responseStatus") or {}).get("reason", ""),
            code=code,
            query={},
            body=event.get("requestObject"),
            old=None,
            new=answer,
        )


def _micros(text: str) -> int:
    from datetime import datetime

    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)
