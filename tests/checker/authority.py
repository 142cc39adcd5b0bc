"""Invariants on who may write: I24, I25, I31."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tests.checker.record import Record, Violation


@dataclass(frozen=True)
class Term:
    lease: str
    number: int
    holder: str
    begins: int
    """Revision at which the server stored it."""
    ends: int


def terms(records: list[Record]) -> dict[str, list[Term]]:
    """Lease terms as the server saw them, by lease. Heartbeats of nodes and other programs' leases are not ours."""
    changes: dict[str, dict[int, tuple[int, str]]] = {}
    for record in records:
        is_lease = record.path.endswith("/leases") and record.namespace != "kube-node-lease" and not record.is_foreign
        if is_lease and record.new is not None and record.revision and record.outcome == "done":
            spec, uid = record.new.get("spec") or {}, record.new["metadata"].get("uid", "")
            number, holder = int(spec.get("leaseTransitions") or 0), str(spec.get("holderIdentity") or "")
            changes.setdefault(uid, {})[record.revision] = (number, holder)
    return {uid: _terms(uid, stored) for uid, stored in changes.items()}


def _terms(lease: str, changes: dict[int, tuple[int, str]]) -> list[Term]:
    found: list[Term] = []
    for revision in sorted(changes):
        number, holder = changes[revision]
        last = found[-1] if found else None
        if last is not None and last.ends == _NEVER and (last.number, last.holder) != (number, holder):
            found[-1] = replace(last, ends=revision)
        if holder and (last is None or (last.number, last.holder) != (number, holder)):
            found.append(Term(lease, number, holder, revision, _NEVER))
    return found


def lease_terms(records: list[Record]) -> Iterator[Violation]:
    """I24: every deciding write falls inside its replica's term; terms do not overlap; none precedes the first sync."""
    known = terms(records)
    for one in known.values():
        for before, after in pairwise(one):
            if after.number == before.number:
                yield Violation("I24", f"term {after.number} was held twice, by {before.holder} and {after.holder}")
            elif after.number < before.number:
                yield Violation("I24", f"term {after.number} came after term {before.number}")
    synced: dict[tuple[str, int], int] = {}
    for record in records:
        if record.verb == "synced":
            synced.setdefault((record.replica, record.term), record.order)
    for record in records:
        if not record.term or not record.decides or record.outcome in ("unsent", "refused"):
            continue
        mine = (record.replica, record.term)
        held = [term for one in known.values() for term in one if (term.holder, term.number) == mine]
        if not held:
            yield Violation("I24", f"{record.replica} wrote in term {record.term}, which it did not hold", (record,))
        elif _stamped(record) and not any(term.begins < record.revision < term.ends for term in held):
            span = f"{held[0].begins} to {held[0].ends if held[0].ends != _NEVER else 'now'}"
            yield Violation("I24", f"a write outside its term (revisions {span})", (record,))
        if synced and record.order < synced.get(mine, _NEVER):
            yield Violation("I24", "a write before the first full sync of its term", (record,))


def _stamped(record: Record) -> bool:
    """Does the answer tell the revision at which the write took place? Not that of a delete, nor of one in vain."""
    old = str(((record.old or {}).get("metadata") or {}).get("resourceVersion") or "")
    metadata = (record.new or {}).get("metadata") or {}
    ends = bool(metadata.get("deletionTimestamp")) and not metadata.get("finalizers")
    stale = old.isdigit() and record.revision <= int(old)
    return bool(record.revision) and record.verb != "delete" and not ends and not stale


def after_loss(records: list[Record]) -> Iterator[Violation]:
    """I25: nothing of a term is sent after its replica lost it."""
    lost: dict[tuple[str, int], int] = {}
    for record in sorted(records, key=lambda one: one.order):
        if record.verb == "stop":
            lost.setdefault((record.replica, record.term), record.order)
        elif record.decides and record.outcome != "unsent" and (record.replica, record.term) in lost:
            yield Violation("I25", f"sent after {record.replica} had lost term {record.term}", (record,))


def unknown_fates(records: list[Record]) -> Iterator[Violation]:
    """I31: after an unknown outcome the next step for that key is a read, or a repeat that cannot act twice.

    A request that began before the outcome was unknown could not know, and one that changes something else repeats
    nothing.
    """
    questions: dict[tuple[str, tuple[str, str, str]], list[Record]] = {}
    for record in sorted(records, key=lambda one: one.order):
        if _looks(record):
            for who, key in [*questions]:
                if who == record.replica and key[0] == record.collection and record.name in ("", key[2]):
                    del questions[who, key]
            continue
        if not record.is_write or record.outcome == "unsent" or record.is_foreign:
            continue
        at = (record.replica, _asked_name(record))
        for question in questions.get(at, ()):
            if question.precedes(record) and _repeats(record, question):
                yield Violation("I31", "repeated without looking after an unknown outcome", (question, record))
        questions[at] = [one for one in questions.get(at, ()) if not one.precedes(record)]
        if record.outcome == "unknown":
            questions[at].append(record)


def _looks(record: Record) -> bool:
    """A read, a watch that begins with all there is, or one that tells of the object."""
    if record.verb == "watch":
        return record.outcome == "done" and record.query.get("sendInitialEvents") == "true"
    if record.verb in ("get", "list"):
        return record.outcome == "done" or record.code == 404
    return bool(record.event and record.name)


def _asked_name(record: Record) -> tuple[str, str, str]:
    """A create that leaves the name to the server is the same request each time, whatever name came of it."""
    body = record.body if isinstance(record.body, dict) else {}
    metadata = body.get("metadata") or {}
    unnamed = record.verb == "create" and metadata.get("generateName") and not metadata.get("name")
    return (record.collection, record.namespace, f"{metadata['generateName']}*" if unnamed else record.name)


def _repeats(record: Record, before: Record) -> bool:
    """Could this act twice, or be overtaken by the one before?"""
    body = record.body if isinstance(record.body, dict) else {}
    metadata = body.get("metadata") or {}
    match record.verb:
        case "create":
            return not metadata.get("name") and record.subresource == before.subresource
        case "delete":
            return before.verb in ("create", "delete") and not (body.get("preconditions") or {}).get("uid")
        case "update":
            return not metadata.get("resourceVersion")
        case "patch":
            if metadata.get("resourceVersion") or before.verb != "patch":
                return False
            earlier = before.body
            if isinstance(record.body, list) or "items" in body or not isinstance(earlier, dict) or "items" in earlier:
                return record.body == earlier  # operations in order: again is twice
            return _contradicts(body, earlier)
    return False


def _contradicts(one: Any, other: Any) -> bool:
    """Do two merge patches give one field different values?"""
    if isinstance(one, dict) and isinstance(other, dict):
        return any(name in other and _contradicts(value, other[name]) for name, value in one.items())
    return bool(one != other)


_NEVER = 1 << 62
