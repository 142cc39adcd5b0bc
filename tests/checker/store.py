"""Invariants on the server and its watches: I26 to I30."""

from __future__ import annotations

from collections.abc import Iterator

from tests.checker.record import Record, Violation


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
    maybe_deleted: dict[tuple[str, str, str], int] = {}
    for record in records:  # one that was on its way while we read may have been carried out
        removes = record.verb == "delete" or record.subresource == "eviction"
        if removes and record.outcome in ("done", "unknown"):
            for key in (record.key, *_goes_along(record)):
                maybe_deleted[key] = min(record.began, maybe_deleted.get(key, record.began))
    crashes = [record.sequence for record in records if record.verb == "crash"]
    for record in records:  # in the order in which requests ended
        if record.event == "DELETED":
            maybe_deleted.setdefault(record.key, record.began)
        if record.verb == "deletecollection":
            for key in written:
                if key[0] == record.collection and (not record.namespace or key[1] == record.namespace):
                    maybe_deleted.setdefault(key, record.began)
        if record.is_done_write and record.verb != "delete":
            if _removes_last_finalizer(record) or _may_be_collected(record):
                maybe_deleted.setdefault(record.key, record.began)
            written[record.key] = record
        if record.verb == "get" and record.name and not record.subresource and not record.query.get("resourceVersion"):
            yield from _seen(record, written.get(record.key), maybe_deleted, crashes, _revision_read(record))
        if record.verb == "list" and record.outcome == "done" and _is_whole(record):
            items = (record.new or {}).get("items") or ()
            listed = {(one.get("namespace") or "", one.get("name")): int(one["resourceVersion"] or 0) for one in items}
            for key, write in written.items():
                if key[0] == record.collection and (not record.namespace or key[1] == record.namespace):
                    yield from _seen(record, write, maybe_deleted, crashes, listed.get((key[1], key[2])))


def _seen(
    read: Record,
    write: Record | None,
    maybe_deleted: dict[tuple[str, str, str], int],
    crashes: list[int],
    revision: int | None,
) -> Iterator[Violation]:
    if write is None or write.sequence >= read.sequence or write.ended > read.began or write.order > read.order:
        return
    invariant = "I27" if any(write.sequence < crash < read.sequence for crash in crashes) else "I29"
    if revision is None:
        deleted = maybe_deleted.get(write.key, read.ended + 1) <= read.ended
        if (read.outcome == "done" or read.code == 404) and not deleted:
            yield Violation(invariant, "an acknowledged object is not there", (write, read))
    elif revision < write.revision:
        yield Violation(invariant, f"a read older ({revision}) than an acknowledged write", (write, read))


def revisions(records: list[Record]) -> Iterator[Violation]:
    """I28: revisions never fall or repeat, restarts included."""
    highest: Record | None = None
    owner: dict[int, Record] = {}
    for record in records:
        if not record.is_done_write or record.verb == "delete" or _is_vain(record) or _removes_last_finalizer(record):
            continue  # the answer to a delete shows the object as it was
        if record.revision in owner and owner[record.revision].uid == record.uid:
            continue  # nothing changed, which I21 judges
        if highest is not None and record.began > highest.ended and record.revision <= highest.revision:
            yield Violation("I28", "a later write got an earlier revision", (highest, record))
        first = owner.setdefault(record.revision, record)
        if first.uid != record.uid:
            yield Violation("I28", "one revision for two objects", (first, record))
        if highest is None or record.revision > highest.revision:
            highest = record


def old_revisions(records: list[Record]) -> Iterator[Violation]:
    """I30: a write with an old resourceVersion never succeeds."""
    known: dict[str, set[int]] = {}
    for record in records:
        if record.uid and record.revision and record.verb != "list":
            known.setdefault(record.uid, set()).add(record.revision)
    for record in records:
        body = record.body if isinstance(record.body, dict) else {}
        given = str((body.get("metadata") or {}).get("resourceVersion") or "")
        if record.is_done_write and record.verb in ("update", "patch") and given.isdigit() and not _is_vain(record):
            between = [number for number in known.get(record.uid, ()) if int(given) < number < record.revision]
            if between:
                says = f"a write from revision {given} succeeded although revision {between[0]} came between"
                yield Violation("I30", says, (record,))


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


def _may_be_collected(record: Record) -> bool:
    """An object with an owner may be removed by the garbage collector, whose requests this history does not hold."""
    return bool(((record.new or {}).get("metadata") or {}).get("ownerReferences"))


def _goes_along(record: Record) -> list[tuple[str, str, str]]:
    """A server takes the Endpoints of a Service away with it, without a request."""
    return [("api/endpoints", record.namespace, record.name)] if record.path == "api/v1/services" else []


def _ends_initial(event: Record) -> bool:
    annotations = ((event.new or {}).get("metadata") or {}).get("annotations") or {}
    return event.event == "BOOKMARK" and annotations.get("k8s.io/initial-events-end") == "true"
