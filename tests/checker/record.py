"""The checker's own view of a history: one record per request or watch event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

Json = dict[str, Any]

WRITES = frozenset({"create", "update", "patch", "delete"})
BOOKKEEPING = ("/leases", "/events")
"""Collections whose writes decide nothing."""
ANSWERED = ("ResponseComplete", "ResponseStarted")
"""Stages of an audit log. A watch counts from its beginning, for then it shows what there is."""


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
    start: int = 0
    finish: int = 0
    """Beginning and end by one count for all; 0 where only clocks tell."""

    @cached_property
    def collection(self) -> str:
        """The path without its version: an object is the same one in each."""
        head, _, plural = self.path.rpartition("/")
        return f"{head.rpartition('/')[0]}/{plural}"

    @cached_property
    def key(self) -> tuple[str, str, str]:
        return self.collection, self.namespace, self.name

    def precedes(self, other: Record) -> bool:
        """It had certainly ended before the other began: whatever else is concurrent, in either order."""
        if self.finish and other.start:
            return self.finish < other.start
        return self.ended < other.began <= other.ended  # one that ends before it begins saw the clock step back

    @property
    def may_have_acted(self) -> bool:
        """A server that answers that it failed, or not at all, may have done what it was asked."""
        return self.outcome in ("done", "unknown") or self.code >= 500

    @cached_property
    def sent(self) -> frozenset[str] | None:
        """Every name and text that the writer sent; None where the request itself was not kept."""
        return None if self.body is None else frozenset(_texts(self.body))

    def says(self, text: str) -> bool:
        """Did its writer send this, or does the answer show what somebody else wrote?"""
        return self.sent is None or text in self.sent

    @property
    def is_write(self) -> bool:
        return self.verb in WRITES and not self.query.get("dryRun")

    @property
    def is_done_write(self) -> bool:
        return self.is_write and self.outcome == "done" and self.new is not None and bool(self.revision)

    @property
    def is_foreign(self) -> bool:
        """Someone else's, whose manners are not ours to judge."""
        return "foreign" in self.marks

    @property
    def decides(self) -> bool:
        return self.is_write and not self.path.endswith(BOOKKEEPING)

    @cached_property
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
        if isinstance(entry, Record):
            records.append(entry)
            continue
        plain = entry if isinstance(entry, dict) else msgspec.to_builtins(entry)
        values = {name: plain.get(name, default) for name, default in _DEFAULTS.items()}
        queries, marks = dict(plain.get("query") or {}), dict(plain.get("marks") or {})
        order, finish = int(plain.get("order") or sequence + 1), int(plain.get("finished") or 0)
        start = order if finish else 0
        records.append(
            Record(order=order, sequence=sequence, start=start, finish=finish, query=queries, marks=marks, **values)
        )
    return records


def from_audit(path: Path, *, users: tuple[str, ...] = (), agents: tuple[str, ...] = ()) -> list[Record]:
    """Records from an audit log (level RequestResponse), a real API server's or the embedded one's.

    `users` keeps only their requests. With `agents`, requests of programs whose name begins otherwise are kept, for
    they change what others see, but marked as foreign: their own manners are not judged. A write that was received and
    never answered, because the server was killed, has an unknown outcome.
    """
    return list(_audit_records(path, users, agents))


def _audit_records(path: Path, users: tuple[str, ...], agents: tuple[str, ...]) -> Iterator[Record]:
    known: dict[tuple[str, str, str], Json] = {}
    events = list(_events(path, users))
    answered = {event.get("auditID") for event in events if event["stage"] in ANSWERED}
    came: dict[str, int] = {}
    sequence = 0
    for line, event in enumerate(events, start=1):
        number = str(event.get("auditID"))
        if event["stage"] == "RequestReceived":
            came[number] = line
            cut_off = number not in answered and event["verb"] in WRITES and event["objectRef"].get("name")
            if not cut_off:
                continue
        elif event["stage"] != ("ResponseStarted" if event["verb"] == "watch" else "ResponseComplete"):
            continue
        record = _audit_record(event, sequence, agents)
        sequence += 1
        finish = 0 if event["stage"] == "RequestReceived" else line  # no record tells when its sender gave it up
        yield replace(record, old=known.get(record.key), start=came.get(number, 0), finish=finish)
        if record.verb == "delete":
            known.pop(record.key, None)
        elif record.new is not None and record.revision and record.name:
            known[record.key] = record.new


def _events(path: Path, users: tuple[str, ...]) -> Iterator[Json]:
    for line in path.read_bytes().split(b"\n"):
        try:
            event = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue  # cut by a kill
        user = (event.get("user") or {}).get("username", "")
        if event.get("objectRef") and (not users or user in users):
            yield event


def _audit_record(event: Json, sequence: int, agents: tuple[str, ...]) -> Record:
    target = event["objectRef"]
    group, version = target.get("apiGroup", ""), target.get("apiVersion", "v1")
    head = f"apis/{group}/{version}" if group else f"api/{version}"
    code = int((event.get("responseStatus") or {}).get("code") or 0)
    answer = event.get("responseObject") if code < 300 else None
    metadata = (answer or {}).get("metadata") or {}
    agent = event.get("userAgent", "")
    return Record(
        order=sequence + 1,
        sequence=sequence,
        began=_micros(event["requestReceivedTimestamp"]),
        ended=_micros(event["stageTimestamp"]),
        replica=agent,
        term=0,
        verb=event["verb"],
        path=f"{head}/{target.get('resource', '')}",
        namespace=target.get("namespace", "") if target.get("resource") != "namespaces" else "",
        name=target.get("name", "") or metadata.get("name", ""),
        subresource=target.get("subresource", ""),
        uid=metadata.get("uid", ""),
        outcome="unknown" if not code else "done" if code < 300 else "refused",
        reason=(event.get("responseStatus") or {}).get("reason", ""),
        code=code,
        query=dict(parse_qsl(urlsplit(event.get("requestURI", "")).query)),
        body=event.get("requestObject"),
        old=None,
        new=_summary(answer) if event["verb"] == "list" else answer,
        marks={"foreign": "yes"} if agents and not agent.startswith(agents) else {},
    )


def _summary(answer: Json | None) -> Json | None:
    """A list's revision and the marks of its items."""
    if answer is None or "items" not in answer:
        return None  # as a table, or metadata only
    wanted = ("namespace", "name", "uid", "resourceVersion")
    items = [{name: (item.get("metadata") or {}).get(name) for name in wanted} for item in answer["items"] or ()]
    return {"metadata": answer.get("metadata") or {}, "items": items}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield name
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, str):
        yield value
        yield from value.split("/")  # a path of a JSON patch


def _micros(text: str) -> int:
    from datetime import datetime

    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)
