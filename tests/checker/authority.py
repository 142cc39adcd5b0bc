"""Invariants on who may write: I24, I25, I31."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

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
        elif record.revision and not any(term.begins < record.revision < term.ends for term in held):
            span = f"{held[0].begins} to {held[0].ends if held[0].ends != _NEVER else 'now'}"
            yield Violation("I24", f"a write outside its term (revisions {span})", (record,))
        if synced and record.order < synced.get(mine, _NEVER):
            yield Violation("I24", "a write before the first full sync of its term", (record,))


def after_loss(records: list[Record]) -> Iterator[Violation]:
    """I25: nothing of a term is sent after its replica lost it."""
    lost: dict[tuple[str, int], int] = {}
    for record in sorted(records, key=lambda one: one.order):
        if record.verb == "stop":
            lost.setdefault((record.replica, record.term), record.order)
        elif record.decides and record.outcome != "unsent" and (record.replica, record.term) in lost:
            yield Violation("I25", f"sent after {record.replica} had lost term {record.term}", (record,))


def unknown_fates(records: list[Record]) -> Iterator[Violation]:
    """I31: after an unknown outcome the next step for that key is a read, or a repeat that cannot act twice."""
    open_questions: dict[tuple[str, tuple[str, str, str]], Record] = {}
    for record in sorted(records, key=lambda one: one.order):
        if record.verb in ("get", "list") and record.outcome == "done":
            for who, key in [*open_questions]:
                same = key == record.key if record.verb == "get" else key[0] == record.collection
                if who == record.replica and same:
                    del open_questions[who, key]
            continue
        if not record.is_write or record.outcome == "unsent" or record.is_foreign:
            continue
        question = open_questions.pop((record.replica, record.key), None)
        if question is not None and not _cannot_act_twice(record, question):
            yield Violation("I31", "repeated without looking after an unknown outcome", (question, record))
        if record.outcome == "unknown":
            open_questions[record.replica, record.key] = record


def _cannot_act_twice(record: Record, before: Record) -> bool:
    body = record.body if isinstance(record.body, dict) else {}
    metadata = body.get("metadata") or {}
    match record.verb:
        case "create":
            return bool(metadata.get("name"))
        case "delete":
            return bool((body.get("preconditions") or {}).get("uid"))
        case "update":
            return bool(metadata.get("resourceVersion"))
        case "patch":
            return bool(metadata.get("resourceVersion")) or (body == before.body and "items" not in body)
    return False


_NEVER = 1 << 62
