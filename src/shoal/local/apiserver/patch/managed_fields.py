"""Who owns which field: server-side apply, and the book-keeping of every other write.

`apply` merges one manager's configuration into an object: what it sets it owns, what it no longer sets goes away
unless another owns it too, and a value that another manager owns is a conflict unless forced. `track` records
an update and runs on every write, so the common case (a status written again by the manager that owns it) builds no
set at all. Neither changes what it is given, save that `track` sets `metadata.managedFields` of the new object.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from shoal.local.apiserver.patch import field_sets
from shoal.local.apiserver.patch.errors import PatchError
from shoal.local.apiserver.patch.field_merging import merge, prune, without_nulls
from shoal.local.apiserver.patch.field_sets import Set
from shoal.local.apiserver.patch.field_shapes import FieldShape
from shoal.local.apiserver.primitives.values import clone

Json = dict[str, Any]

MOST_UPDATERS = 10  # as Kubernetes: older update entries are folded into one
_ANCIENT = "ancient-changes"
_BEFORE_APPLY = "before-first-apply"
_UNOWNED = frozenset(("name", "namespace", "uid", "creationTimestamp", "selfLink", "resourceVersion", "generation",
                      "managedFields", "deletionTimestamp", "deletionGracePeriodSeconds"))  # fmt: skip


# --- updates


def track(
    shape: FieldShape, old: Json | None, new: Json, manager: str, *, now: str, api_version: str, subresource: str = ""
) -> None:
    """Record a create or update: `new["metadata"]["managedFields"]` becomes what it must be afterwards.

    `new` must be as it will be stored (defaulted, status put back where the write may not touch it). A write that
    changes nothing leaves the entries as they were, so that it can be recognised as no change.
    """
    metadata = new.setdefault("metadata", {})
    sent = metadata.pop("managedFields", None)
    if old is None:
        changed, gone = _owned(shape, new, subresource, added=True), None
        entries: list[Json] = []
    else:
        entries = (old.get("metadata") or {}).get("managedFields") or []
        if sent is not None and not subresource and sent != entries:  # [] and [{}] ask to start over
            entries = [] if not any(sent) else sent if _are_entries(sent) else entries
        if not entries:
            return  # as Kubernetes: an object without entries gets them with the first apply
        changed, gone = _difference(shape, old, new, subresource)
    if changed is None and gone is None:
        if entries:
            metadata["managedFields"] = entries
        return
    kept = _tracked(entries, changed, gone, manager, now, api_version, subresource)
    if kept:
        metadata["managedFields"] = kept


def _are_entries(sent: list[Json]) -> bool:
    """Whether a client sent entries that can be taken as they are."""
    return all(
        entry.get("operation") in ("Apply", "Update")
        and entry.get("fieldsType") == "FieldsV1"
        and type(entry.get("fieldsV1")) is dict
        and type(entry.get("apiVersion")) is str
        for entry in sent
    )


def _tracked(
    entries: list[Json],
    changed: Set | None,
    gone: Set | None,
    manager: str,
    now: str,
    api_version: str,
    subresource: str,
) -> list[Json]:
    mine: Json | None = None
    kept: list[Json] = []
    for entry in entries:
        if _same_manager(entry, manager, "Update", subresource) and entry.get("apiVersion") == api_version:
            mine = entry
            continue
        rest: Set | None = entry.get("fieldsV1") or {}
        if rest and changed is not None and field_sets.meets(rest, changed):
            rest = field_sets.subtract(rest, changed)
        if rest and gone is not None and field_sets.meets(rest, gone):
            rest = field_sets.subtract(rest, gone)
        if rest:
            kept.append(entry if rest is entry.get("fieldsV1") else {**entry, "fieldsV1": rest})
    owned: Set | None = mine["fieldsV1"] if mine else None
    if changed is not None and (owned is None or not field_sets.holds(owned, changed)):
        owned = field_sets.union(owned, changed) if owned else changed
    if owned and gone is not None and field_sets.meets(owned, gone):
        owned = field_sets.subtract(owned, gone)
    if owned:
        kept.append(_entry(manager, "Update", now, api_version, subresource, owned))
    return _in_order(_capped(kept))


def _difference(shape: FieldShape, old: Json, new: Json, subresource: str) -> tuple[Set | None, Set | None]:
    changed: Set = {}
    gone: Set = {}
    for name in (*new, *(name for name in old if name not in new)):
        if name in ("apiVersion", "kind") or (subresource == "status" and name != "status"):
            continue
        before, after = old.get(name), new.get(name)
        if before is after:
            continue
        if name == "metadata":
            before = {key: item for key, item in (before or {}).items() if key not in _UNOWNED}
            after = {key: item for key, item in (after or {}).items() if key not in _UNOWNED}
        if before == after and (name in old) == (name in new):
            continue
        if name not in new:
            gone[f"f:{name}"] = {}
            continue
        if name not in old:
            changed.update(field_sets.fields_of(shape, {name: after}, added=True))
            continue
        set_, lost = field_sets.difference_of(shape.member(name), before, after)
        if set_ is not None:
            changed[f"f:{name}"] = set_
        if lost:
            gone[f"f:{name}"] = lost
    return changed or None, gone or None


def _owned(shape: FieldShape, obj: Json, subresource: str = "", *, added: bool = False) -> Set | None:
    """All that an object sets and that can be owned."""
    found: Set = {}
    for name, value in obj.items():
        if name in ("apiVersion", "kind") or (subresource == "status" and name != "status"):
            continue
        if name == "metadata":
            value = {key: item for key, item in (value or {}).items() if key not in _UNOWNED}
            if not value:
                continue
        found.update(field_sets.fields_of(shape, {name: value}, added=added))
    return found or None


def _same_manager(entry: Json, manager: str, operation: str, subresource: str) -> bool:
    return bool(
        entry.get("manager") == manager
        and entry.get("operation") == operation
        and (entry.get("subresource") or "") == subresource
    )


def _entry(manager: str, operation: str, now: str, api_version: str, subresource: str, fields: Set) -> Json:
    entry: Json = {"manager": manager, "operation": operation, "apiVersion": api_version, "time": now,
                   "fieldsType": "FieldsV1", "fieldsV1": fields}  # fmt: skip
    if subresource:
        entry["subresource"] = subresource
    return entry


def _in_order(entries: list[Json]) -> list[Json]:
    """As Kubernetes lists them: what was applied first, then by time and name."""
    if len(entries) < 2:
        return entries
    words = ("operation", "time", "manager", "apiVersion", "subresource")
    return sorted(entries, key=lambda entry: tuple(str(entry.get(word) or "") for word in words))


def _capped(entries: list[Json]) -> list[Json]:
    updates = [entry for entry in entries if entry.get("operation") == "Update"]
    if len(updates) <= MOST_UPDATERS:
        return entries
    updates.sort(key=lambda entry: (entry.get("manager") != _ANCIENT, str(entry.get("time") or "")))
    folded = updates[: len(updates) - MOST_UPDATERS + 1]
    fields = folded[0]["fieldsV1"]
    for entry in folded[1:]:
        fields = field_sets.union(fields, entry["fieldsV1"])
    ancient = {**folded[-1], "manager": _ANCIENT, "fieldsV1": fields}
    ancient.pop("subresource", None)
    gone = {id(entry) for entry in folded}
    return [ancient, *(entry for entry in entries if id(entry) not in gone)]


# --- apply


def apply(
    shape: FieldShape,
    live: Json | None,
    config: Json,
    manager: str,
    *,
    now: str,
    api_version: str,
    force: bool = False,
    subresource: str = "",
    separate_status: bool = False,
) -> Json:
    """`live` with `config` applied by `manager`: a fresh object with its managedFields set.

    Raises PatchError 409 where another manager owns a value that would change, and 400 where the configuration itself
    carries managedFields. With `live` None the object is to be created.
    """
    if (config.get("metadata") or {}).get("managedFields"):
        raise PatchError(400, "BadRequest", "metadata.managedFields must be nil")
    config = without_nulls(config)
    if separate_status and subresource != "status":
        config.pop("status", None)  # it has an address of its own
    wanted = _owned(shape, config, subresource) or {}
    _check_fields(shape, config, "", given_name(config, api_version))
    if live is None:
        created: Json = clone(config)
        created.setdefault("metadata", {})
        if wanted:
            created["metadata"]["managedFields"] = [_entry(manager, "Apply", now, api_version, subresource, wanted)]
        return created
    entries = (live.get("metadata") or {}).get("managedFields") or []
    if not entries:
        whole = {name: value for name, value in live.items() if name != "status" or not separate_status}
        found = _owned(shape, whole, added=True)
        entries = [_entry(_BEFORE_APPLY, "Update", now, api_version, "", found)] if found else []
    given = {name: value for name, value in config.items() if name == "status"} if subresource == "status" else config
    merged: Json = merge(shape, live, given)
    changed, _ = _difference(shape, live, merged, subresource)
    others = [entry for entry in entries if not _same_manager(entry, manager, "Apply", subresource)]
    if changed is not None and not force:
        _refuse_conflicts(others, changed)
    before = next((e for e in entries if _same_manager(e, manager, "Apply", subresource)), None)
    dropped = field_sets.subtract(before["fieldsV1"], wanted, sweep=False) if before else None
    if dropped is not None:
        merged = prune(shape, merged, dropped, [wanted, *(entry.get("fieldsV1") or {} for entry in others)])
    _, gone = _difference(shape, live, merged, subresource)
    kept = _others_after(others, changed if force else None, gone)
    if wanted:
        steady = before is not None and changed is None and gone is None and before.get("fieldsV1") == wanted
        kept.append(before if steady and before else _entry(manager, "Apply", now, api_version, subresource, wanted))
    metadata = dict(merged.get("metadata") or {})
    metadata.pop("managedFields", None)
    if kept:
        metadata["managedFields"] = _in_order(kept)
    merged["metadata"] = metadata
    return merged


def _others_after(others: list[Json], taken: Set | None, gone: Set | None) -> list[Json]:
    kept = []
    for entry in others:
        rest: Set | None = entry.get("fieldsV1") or {}
        for loss in (taken, gone):
            if rest and loss is not None and field_sets.meets(rest, loss):
                rest = field_sets.subtract(rest, loss)
        if rest:
            kept.append(entry if rest is entry.get("fieldsV1") else {**entry, "fieldsV1": rest})
    return kept


def _refuse_conflicts(others: list[Json], changed: Set) -> None:
    conflicts: list[tuple[str, str]] = []
    for entry in others:
        theirs = entry.get("fieldsV1") or {}
        shared = field_sets.common(theirs, changed) if theirs else None
        if shared:
            conflicts += [(_described(entry), path) for path in field_sets.paths(shared)]
    if not conflicts:
        return
    if len(conflicts) == 1:
        message = f"Apply failed with 1 conflict: conflict with {conflicts[0][0]}: {conflicts[0][1]}"
    else:
        lines = []
        for who in sorted({who for who, _ in conflicts}):
            lines.append(f"conflicts with {who}:")
            lines += [f"- {path}" for other, path in conflicts if other == who]
        message = f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {who}", "field": path} for who, path in conflicts
    ]
    raise PatchError(409, "Conflict", message, causes)


def _described(entry: Json) -> str:
    words = f'"{entry.get("manager")}"'
    if entry.get("subresource"):
        words += f' with subresource "{entry["subresource"]}"'
    if entry.get("operation") == "Update":
        words += f" using {entry.get('apiVersion')}"
    return words


def given_name(config: Json, api_version: str) -> str:
    """How Kubernetes names an applied object in its complaints."""
    metadata = config.get("metadata") or {}
    return f"{metadata.get('namespace') or ''}/{metadata.get('name') or ''}; {api_version}, Kind={config.get('kind')}"


def _check_fields(shape: FieldShape, value: Any, path: str, subject: str) -> None:
    """A field that the kind does not have, or an item without its key or given twice, cannot be owned."""
    if type(value) is dict and shape.granularity == "map":
        for name, item in value.items():
            if not shape.knows(name) and not (not path and name in ("apiVersion", "kind")):
                words = f"failed to create typed patch object ({subject}): {path}.{name}: field not declared in schema"
                raise PatchError(400, "BadRequest", words)
            _check_fields(shape.member(name), item, f"{path}.{name}", subject)
    elif type(value) is list and shape.granularity == "keyed":
        seen = set()
        for index, item in enumerate(value):
            key = field_sets.key_of(shape, item)
            if key is None and shape.item is not None and shape.item.is_built_in:
                where = f"{path[1:]}[{index}].{shape.keys[0]}"
                faults = [{"reason": "FieldValueRequired", "message": "Required value", "field": where}]
                raise PatchError(
                    422, "Invalid", f"the applied configuration is invalid: {where}: Required value", faults
                )
            if key is None:
                names = ", ".join(repr(name) for name in shape.keys)
                raise _untyped(
                    f"{path}: element {index}: associative list with keys has an element that omits key field "
                    f"{names} (and doesn't have default value)"
                )
            if key in seen:
                raise _untyped(f"{path}: duplicate entries for key {key[2:]}")
            seen.add(key)
            assert shape.item is not None
            _check_fields(shape.item, item, f"{path}[{key[2:]}]", subject)
    elif type(value) is list and shape.granularity == "set":
        times = Counter(field_sets.value_of(item) for item in value)
        for item, count in times.items():
            if count > 1:
                raise _untyped(f"{path}: duplicate entries for key [={item[2:]}]")


def _untyped(message: str) -> PatchError:
    return PatchError(400, "BadRequest", f"failed to create typed patch object: {message}")
