"""Invariants on the server and its watches: I26 to I30."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from tests.checker.record import Json, Record, Violation


def watches(records: list[Record]) -> Iterator[Violation]:
    """I26: every watch is ordered, unique and gapless, and its bookmarks promise only what was delivered."""
    events: dict[int, list[Record]] = {}
    for record in records:
        if record.verb == "event" and record.event != "ERROR":
            events.setdefault(record.watch, []).append(record)
    for opened in (record for record in records if record.verb == "watch" and record.outcome == "done"):
        came = events.get(opened.order, [])
        start = opened.query.get("resourceVersion", "")
        begun = int(start) if start.isdigit() else None
        if opened.query.get("sendInitialEvents") == "true":
            ends = [number for number, event in enumerate(came) if _ends_initial(event)]
            if not ends:
                continue
            begun, came = came[ends[0]].revision, came[ends[0] + 1 :]
        if begun is None or begun == 0:
            continue
        yield from _order(opened, begun, came)
        yield from _gaps(opened, begun, came, records)


def _order(opened: Record, begun: int, came: list[Record]) -> Iterator[Violation]:
    last = begun
    promised = begun
    for event in came:
        if event.event == "BOOKMARK":
            if event.revision < last:
                yield Violation("I26", "a bookmark behind what was delivered", (opened, event))
            promised = max(promised, event.revision)
        elif event.revision <= promised:
            yield Violation(
                "I26", f"an event at or before revision {promised}, which was already passed", (opened, event)
            )
        elif event.revision <= last:
            yield Violation("I26", "events out of order or doubled", (opened, event))
        last = max(last, event.revision)


def _gaps(opened: Record, begun: int, came: list[Record], records: list[Record]) -> Iterator[Violation]:
    if opened.query.get("labelSelector") or opened.query.get("fieldSelector") or not came:
        return
    delivered = {event.revision for event in came}
    end = max(delivered)
    for record in records:
        inside = record.path == opened.path and (not opened.namespace or record.namespace == opened.namespace)
        acknowledged = record.is_done_write and record.verb != "delete" and not _is_vain(record)
        if inside and acknowledged and begun < record.revision <= end and record.revision not in delivered:
            yield Violation("I26", "a change that the watch passed over", (opened, record))


def acknowledged(records: list[Record]) -> Iterator[Violation]:
    """I27, I29: a read begun after an acknowledged write sees it, also when the server was killed in between."""
    written: dict[tuple[str, str, str], Record] = {}
    gone = Removals(records)
    crashes = [record.sequence for record in records if record.verb == "crash"]
    for record in records:  # in the order in which requests ended
        if record.is_done_write and record.verb != "delete":
            before = written.get(record.key)
            if before is None or before.revision <= record.revision:
                written[record.key] = record
        if record.verb == "get" and record.name and not record.subresource and not record.query.get("resourceVersion"):
            yield from _seen(record, written.get(record.key), gone, crashes, _revision_read(record))
        if record.verb == "list" and record.outcome == "done" and _is_whole(record):
            items = (record.new or {}).get("items") or ()
            listed = {(one.get("namespace") or "", one.get("name")): int(one["resourceVersion"] or 0) for one in items}
            for key, write in written.items():
                if key[0] == record.collection and (not record.namespace or key[1] == record.namespace):
                    yield from _seen(record, write, gone, crashes, listed.get((key[1], key[2])))


def _seen(
    read: Record, write: Record | None, gone: Removals, crashes: list[int], revision: int | None
) -> Iterator[Violation]:
    if write is None or not write.precedes(read):
        return
    invariant = "I27" if any(write.sequence < crash < read.sequence for crash in crashes) else "I29"
    if revision is None:
        told = read.outcome == "done" or (read.code == 404 and read.reason == "NotFound")  # else a kind is not served
        if told and not gone.explain(write, read):
            yield Violation(invariant, "an acknowledged object is not there", (write, read))
    elif 0 < revision < write.revision:
        yield Violation(invariant, f"a read older ({revision}) than an acknowledged write", (write, read))


class Removals:
    """Whatever may have taken an object away: asked for in this history, or shown by it."""

    def __init__(self, records: list[Record]) -> None:
        self._company = any(record.verb == "company" for record in records)
        self._asked: dict[tuple[str, str, str], list[Record]] = {}
        self._many: list[Record] = []
        self._ending: dict[tuple[str, str, str], int] = {}
        """The last revision that showed an object as gone, being deleted, or another's to take along."""
        for record in records:
            removes = record.verb in ("delete", "deletecollection") or record.subresource == "eviction"
            if removes and record.may_have_acted:
                for key in (record.key, *_goes_along(record)):
                    self._asked.setdefault(key, []).append(record)
                if not record.name or record.path.endswith(("/namespaces", "/customresourcedefinitions")):
                    self._many.append(record)
            if record.event == "DELETED" or _may_be_taken(record.new):
                self._ending[record.key] = max(record.revision, self._ending.get(record.key, 0))

    def explain(self, write: Record, read: Record) -> bool:
        """May the object that was written be gone when it was read?"""
        if _may_be_taken(write.new):
            return True
        asked = self._asked.get(write.key, ())
        if any(not read.precedes(one) for one in asked):
            return True
        if any(_takes(one, write) and not read.precedes(one) for one in self._many):
            return True
        # somebody else did it, whose requests are not here; a watch tells of it later than a read
        return not asked and (self._company or self._ending.get(write.key, 0) >= write.revision)


def _may_be_taken(obj: Json | None) -> bool:
    """It is being deleted, or has an owner, and the garbage collector takes it with that."""
    metadata = (obj or {}).get("metadata") or {}
    return bool(metadata.get("deletionTimestamp") or metadata.get("ownerReferences"))


def _takes(removal: Record, write: Record) -> bool:
    """With a namespace goes what is in it, with a definition what it defines, with a collection all of it."""
    if removal.path.endswith("/namespaces") and removal.name:
        return write.namespace == removal.name
    if removal.path.endswith("/customresourcedefinitions") and removal.name:
        plural, _, group = removal.name.partition(".")
        return write.collection == f"apis/{group}/{plural}"
    return write.collection == removal.collection and removal.namespace in ("", write.namespace)


def revisions(records: list[Record]) -> Iterator[Violation]:
    """I28: revisions never fall or repeat, restarts included."""
    ended: list[Record] = []
    """Each with a higher revision than the one before."""
    owner: dict[int, Record] = {}
    for record in records:
        if not record.is_done_write or record.verb == "delete" or _is_vain(record) or _removes_last_finalizer(record):
            continue  # the answer to a delete shows the object as it was
        if record.revision in owner and owner[record.revision].uid == record.uid:
            continue  # nothing changed, which I21 judges
        first = owner.setdefault(record.revision, record)
        if first.uid != record.uid:
            yield Violation("I28", "one revision for two objects", (first, record))
            continue
        later = ended[bisect_left(ended, record.revision, key=lambda one: one.revision) :]
        passed = next((one for one in later if one.precedes(record)), None)
        if passed is not None and _is_new(record, passed):
            yield Violation("I28", "a later write got an earlier revision", (passed, record))
        if not ended or record.revision > ended[-1].revision:
            ended.append(record)


def _is_new(record: Record, passed: Record) -> bool:
    """The revision was given to this very write, and not to one before that had done the same already."""
    return record.verb == "create" or record.uid == passed.uid or 0 < given_revision(record) < record.revision


def old_revisions(records: list[Record]) -> Iterator[Violation]:
    """I30: a write with an old resourceVersion never succeeds."""
    known: dict[str, set[int]] = {}
    for record in records:
        if record.uid and record.revision and record.verb != "list":
            known.setdefault(record.uid, set()).add(record.revision)
    for record in records:
        given = given_revision(record)
        if record.is_done_write and record.verb in ("update", "patch") and given and not _is_vain(record):
            between = [number for number in known.get(record.uid, ()) if given < number < record.revision]
            if between:
                says = f"a write from revision {given} succeeded although revision {between[0]} came between"
                yield Violation("I30", says, (record,))


def given_revision(record: Record) -> int:
    """What a write was decided on; 0 where it said nothing, or that it does not matter."""
    body = record.body if isinstance(record.body, dict) else {}
    given = str((body.get("metadata") or {}).get("resourceVersion") or "")
    return int(given) if given.isdigit() else 0


def _is_vain(record: Record) -> bool:
    """The answer's revision was known before: the write changed nothing (I21 judges that)."""
    old = str(((record.old or {}).get("metadata") or {}).get("resourceVersion") or "")
    return old.isdigit() and record.revision <= int(old)


def _is_whole(record: Record) -> bool:
    picky = ("labelSelector", "fieldSelector", "limit", "continue", "resourceVersion")
    return record.new is not None and not any(record.query.get(name) for name in picky)


def _revision_read(record: Record) -> int | None:
    return record.revision if record.outcome == "done" else None


def _removes_last_finalizer(record: Record) -> bool:
    metadata = (record.new or {}).get("metadata") or {}
    return bool(metadata.get("deletionTimestamp")) and not metadata.get("finalizers")


def _goes_along(record: Record) -> list[tuple[str, str, str]]:
    """A server takes the Endpoints of a Service away with it, without a request."""
    return [("api/endpoints", record.namespace, record.name)] if record.path == "api/v1/services" else []


def _ends_initial(event: Record) -> bool:
    annotations = ((event.new or {}).get("metadata") or {}).get("annotations") or {}
    return event.event == "BOOKMARK" and annotations.get("k8s.io/initial-events-end") == "true"
