"""Invariants on what is written into objects: I19, I21, I22, I23."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from tests.checker.record import BOOKKEEPING, Json, Record, Violation

WRITES_PER_STATE = 2
ON_THE_WAY = timedelta(seconds=60)
"""A condition that comes with the creation was written before the server stamped the object, by at most this."""


def states(records: list[Record]) -> dict[str, list[Record]]:
    """Per UID: the record that showed each revision first, in the order of revisions."""
    found: dict[str, dict[int, Record]] = {}
    for record in records:
        shows = record.is_done_write or record.verb == "get" or record.event in ("ADDED", "MODIFIED")
        if shows and record.new is not None and record.revision and record.verb != "delete":
            uid = (record.new.get("metadata") or {}).get("uid")
            if uid:
                kept = found.setdefault(uid, {})
                if record.revision not in kept or (record.is_write and not kept[record.revision].is_write):
                    kept[record.revision] = record
    return {uid: [by_revision[number] for number in sorted(by_revision)] for uid, by_revision in found.items()}


def transition_times(records: list[Record]) -> Iterator[Violation]:
    """I19: times never fall, never precede creation, and change only with the value.

    Judged is who sent a time: what others wrote shows in every later answer. A node is made with its conditions in one
    write, as a kubelet does: their moment is that of the sending.
    """
    unsure = _unknown_conditions(records)
    for history in states(records).values():
        before: dict[str, Json] = {}
        for record in history:
            assert record.new is not None
            created = record.new["metadata"].get("creationTimestamp") or ""
            now = {str(one.get("type")): one for one in _conditions(record.new)}
            for kind, condition in now.items():
                time, old = condition.get("lastTransitionTime") or "", before.get(kind)
                ours = record.is_write and not record.is_foreign and record.says(kind)
                ours = ours and (not time or record.says(time))
                if not ours or condition == old:
                    continue
                was, same = (old or {}).get("lastTransitionTime") or "", _value(condition) == _value(old)
                early = bool(time and created) and _seconds(time) < _seconds(created)
                carried = early and record.verb == "create" and _moment(created) - _moment(time) <= ON_THE_WAY
                if early and not carried and not (same and time == was):
                    yield Violation("I19", f"condition {kind} changed at {time}, before the object was made", (record,))
                if old is None or any(not record.precedes(one) for one in unsure.get((record.key, kind), ())):
                    continue
                if time and was and _seconds(time) < _seconds(was):
                    yield Violation("I19", f"the time of condition {kind} fell from {was} to {time}", (record,))
                if time != was and same:
                    yield Violation("I19", f"the time of condition {kind} changed but its value did not", (record,))
            before = now


def _unknown_conditions(records: list[Record]) -> dict[tuple[tuple[str, str, str], str], list[Record]]:
    """Writes by object and condition that may have come between, unseen, or may do so late."""
    found: dict[tuple[tuple[str, str, str], str], list[Record]] = {}
    for record in records:
        if record.is_write and record.outcome != "done" and record.may_have_acted:
            for kind in record.sent or ():
                found.setdefault((record.key, kind), []).append(record)
    return found


def _value(condition: Json | None) -> Any:
    return (condition or {}).get("status")


def vain_writes(records: list[Record]) -> Iterator[Violation]:
    """I21: no update or patch leaves the object equal. Server-side apply only says what shall be.

    Judged is who had been shown this very revision: one who had not may ask for what another has done meanwhile, and
    one who never heard of a write repeats it.
    """
    seen: dict[tuple[str, int], list[Record]] = {}
    unsure: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        shown = [
            one
            for one in seen.get((record.uid, record.revision), ())
            if one.replica == record.replica and one.precedes(record)  # else it may have seen this very write
        ]
        changes = record.is_done_write and record.verb in ("update", "patch") and not record.is_foreign
        changes = changes and record.query.get("force") != "true"
        repeats = any(one.body in (None, record.body) for one in unsure.get(record.key, ()))
        if changes and shown and not repeats and not _ended_by(record):
            yield Violation("I21", "the write left the object as it was", (shown[0], record))
        if record.is_write and record.outcome != "done" and record.may_have_acted:
            unsure.setdefault(record.key, []).append(record)
        if record.revision and record.uid:
            seen.setdefault((record.uid, record.revision), []).append(record)


def _ended_by(record: Record) -> bool:
    """The last finalizer was taken: the object is gone, and a real server answers with the revision before."""
    metadata = (record.new or {}).get("metadata") or {}
    return bool(metadata.get("deletionTimestamp")) and not metadata.get("finalizers")


def observed_generation(records: list[Record]) -> Iterator[Violation]:
    """I22: observedGeneration never falls nor exceeds generation, by the hand of any sender."""
    for history in states(records).values():
        last = 0
        for record in history:
            assert record.new is not None
            status = record.new.get("status") or {}
            generation = int(record.new["metadata"].get("generation") or 0)
            observed = status.get("observedGeneration") if isinstance(status, dict) else None
            everywhere = [observed, *(one.get("observedGeneration") for one in _conditions(record.new))]
            ours = record.is_write and not record.is_foreign and record.says("observedGeneration")
            for number in everywhere:
                if ours and isinstance(number, int) and generation and number > generation:
                    yield Violation("I22", f"observedGeneration {number} exceeds generation {generation}", (record,))
            if isinstance(observed, int):
                if ours and observed < last:
                    yield Violation("I22", f"observedGeneration fell from {last} to {observed}", (record,))
                last = observed


def quiet(records: list[Record]) -> Iterator[Violation]:
    """I23: quiet means no writes; and at most two writes in a row that change nothing but texts and times.

    Texts tell of the world: where something else has changed in between, a new text is no chatter.
    """
    calm: Record | None = None
    for record in records:
        if record.verb in ("quiet", "noise"):
            calm = record if record.verb == "quiet" else None
        elif calm is not None and record.decides and not record.is_foreign and _was_sent_after(record, calm):
            yield Violation("I23", "a write while nothing happened", (record,))
    stories = states([record for record in records if not record.path.endswith(BOOKKEEPING)])
    turns = _turns(records, stories)
    removals = [record.sequence for record in records if record.verb.startswith("delete") and record.may_have_acted]
    for history in stories.values():
        run: list[Record] = []
        for before, after in pairwise(history):
            same = after.is_write and not after.is_foreign and _state(before.new) == _state(after.new)
            elsewhere = bisect_right(turns, before.revision) < bisect_left(turns, after.revision)
            elsewhere = elsewhere or any(before.sequence < one < after.sequence for one in removals)
            run = [*run, after] if same and not elsewhere else []
            if len(run) > WRITES_PER_STATE:
                yield Violation("I23", f"{len(run)} writes in a row without a change of state", tuple(run))
                run = []


def _was_sent_after(record: Record, calm: Record) -> bool:
    """And not on its way when calm was declared."""
    return record.outcome != "unsent" and record.order > calm.order


def _turns(records: list[Record], stories: dict[str, list[Record]]) -> list[int]:
    """Revisions at which anything came, went or changed more than its texts."""
    found = [record.revision for record in records if record.event == "DELETED"]
    for history in stories.values():
        found.append(history[0].revision)
        found += [after.revision for before, after in pairwise(history) if _state(before.new) != _state(after.new)]
    return sorted(found)


def _conditions(obj: Json) -> list[Json]:
    status = obj.get("status")
    listed = status.get("conditions") if isinstance(status, dict) else None
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _seconds(text: str) -> str:
    return text[:19]  # RFC 3339 in UTC sorts as text


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(_seconds(text))


def _state(value: Any) -> Any:
    """What is left of an object without texts, times and revisions."""
    if isinstance(value, dict):
        return {
            name: _state(one)
            for name, one in value.items()
            if name not in ("message", "resourceVersion", "managedFields") and not name.endswith(("Time", "Timestamp"))
        }
    return [_state(one) for one in value] if isinstance(value, list) else value
