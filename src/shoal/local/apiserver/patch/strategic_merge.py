"""Strategic merge patch for built-in kinds.

Lists of objects merge by the key of their type instead of being replaced; directives in the patch delete, replace,
order or retain. The server calls it for `application/strategic-merge-patch+json`; custom kinds have no merge keys
and are refused with 415, as in Kubernetes. Never changes what it is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shoal.api.kind import Kind
from shoal.local.apiserver.patch.errors import PatchError, inapplicable, malformed
from shoal.local.apiserver.primitives import builtin_types
from shoal.local.apiserver.primitives.builtin_types import TypeField
from shoal.local.apiserver.primitives.values import clone, mark

_PATCH = "$patch"
_RETAIN = "$retainKeys"
_ORDER = "$setElementOrder/"
_DROP = "$deleteFromPrimitiveList/"
_UNSUPPORTED = (
    "the body of the request was in an unknown format - accepted media types include: "
    "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
)


def strategic_merge(kind: Kind, doc: Any, patch: Any) -> Any:
    """`doc` with `patch` merged by the merge keys of `kind`."""
    type_name = builtin_types.type_of(kind)
    if type_name is None:
        raise PatchError(415, "UnsupportedMediaType", _UNSUPPORTED)
    if not isinstance(patch, dict):
        raise malformed("a strategic merge patch is an object")
    return _merge_object(type_name, doc, patch)


def _merge_object(type_name: str, doc: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    directive = patch.get(_PATCH)
    if directive == "replace":
        replaced: dict[str, Any] = _plain({name: value for name, value in patch.items() if name != _PATCH})
        return replaced
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise malformed(f"unknown patch type found: {directive}; use $patch: merge, replace or delete")
    known = builtin_types.fields(type_name)
    merged = dict(doc)
    if _RETAIN in patch:
        merged = _retained(merged, patch)
    orders: dict[str, list[Any]] = {}
    touched: set[str] = set()
    for name, value in patch.items():
        if name in (_PATCH, _RETAIN):
            continue
        if name.startswith(_ORDER):
            orders[name[len(_ORDER) :]] = _list(value, name)
        elif name.startswith(_DROP):
            merged[name[len(_DROP) :]] = _without(merged.get(name[len(_DROP) :]), _list(value, name))
        elif value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge_member(known.get(name), merged.get(name), value)
            touched.add(name)
    for name, order in orders.items():
        if isinstance(merged.get(name), list):
            key = known[name].merge_key if name in known else None
            _check_order(patch.get(name), order, key or "", name)
            merged[name] = _ordered(merged[name], order, doc.get(name) or [], key or "")
            touched.add(name)
    return {name: value if name in touched else clone(value) for name, value in merged.items()}


def _merge_member(field: TypeField | None, found: Any, value: Any) -> Any:
    if isinstance(value, dict):
        if not isinstance(found, dict):
            return _plain(value) if value.get(_PATCH) != "delete" else {}
        if field is not None and field.shape == "map":
            return _merge_map(field, found, value)
        return _merge_object(field.type if field is not None else "", found, value)
    if isinstance(value, list):
        if field is None or field.merge_key is None or field.shape != "list":
            return [_plain(item) for item in value]
        return _merge_list(field, found if isinstance(found, list) else [], value)
    return value


def _merge_map(field: TypeField, found: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """A map from string: every member has the same type."""
    if not any(isinstance(value, (dict, list)) for value in patch.values()):
        return _merge_object("", found, patch)
    element = field._replace(shape="one")
    merged = {name: clone(value) for name, value in found.items() if name not in patch}
    for name, value in patch.items():
        if value is not None and not name.startswith("$"):
            merged[name] = _merge_member(element, found.get(name), value)
    return merged


def _merge_list(field: TypeField, found: list[Any], patch: list[Any]) -> list[Any]:
    if not field.merge_key:
        if any(isinstance(item, (dict, list)) for item in patch):
            raise inapplicable(f"{field.name} is a list of plain values; the patch holds objects")
        return _ordered(_distinct(found + patch), patch, found, "")
    for item in patch:
        if not isinstance(item, dict):
            raise inapplicable(f"expected {field.name} to hold objects with {field.merge_key}, got {item!r}")
    if any(item.get(_PATCH) == "replace" for item in patch):
        return [_plain(item) for item in patch if item.get(_PATCH) != "replace"]
    keys = _keys(field, patch)
    entries: list[dict[str, Any]] = []
    deleted: set[Any] = set()
    for item in patch:
        if field.merge_key not in item:
            raise inapplicable(f"{field.name}: {item!r:.200} does not contain declared merge key: {field.merge_key}")
        if item.get(_PATCH) == "delete":
            deleted.add(_key(item, keys))
        else:
            entries.append(item)
    kept = [other for other in found if not isinstance(other, dict) or _key(other, keys) not in deleted]
    places = _places((_key(other, keys) if isinstance(other, dict) else None for other in kept), None)
    fresh: list[bool] = [False] * len(kept)
    for item in entries:
        at = places.get(_key(item, keys))
        if at is None:
            places[_key(item, keys)] = len(kept)
            kept.append(_plain(item))
            fresh.append(True)
        else:
            kept[at] = _merge_object(field.type, kept[at], item) if isinstance(kept[at], dict) else _plain(item)
            fresh[at] = True
    kept = [item if new else clone(item) for item, new in zip(kept, fresh, strict=True)]
    return _ordered(kept, entries, found, field.merge_key)


def _keys(field: TypeField, patch: list[dict[str, Any]]) -> tuple[str, ...]:
    """Kubernetes matches by the one merge key. Where the patch itself names one key twice (a port for TCP and for UDP),
    the entries are told apart by the full key of the list, or one would swallow the other."""
    values = {mark(item.get(str(field.merge_key))) for item in patch}
    twice = len(values) < len(patch)
    return field.keys if twice and len(field.keys) > 1 else (str(field.merge_key),)


def _key(item: dict[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(mark(item.get(key, "TCP" if key == "protocol" else None)) for key in keys)


def _places(marks: Iterable[Any], absent: Any) -> dict[Any, int]:
    """The first place of each; `absent` stands for what has none."""
    found: dict[Any, int] = {}
    for index, one in enumerate(marks):
        if one is not absent:
            found.setdefault(one, index)
    return found


def _ordered(items: list[Any], order: list[Any], live: list[Any], key: str) -> list[Any]:
    """Items that `order` names in its order, the others woven in by their place in the live list.

    As Kubernetes: an item that is new in the patch comes before those that only the server has.
    """

    absent = object()

    def places(among: list[Any]) -> dict[Any, int]:
        if not key:
            return _places(map(mark, among), absent)
        return _places((mark(one.get(key)) if isinstance(one, dict) else absent for one in among), absent)

    def known(item: Any) -> Any:
        return mark(item.get(key) if key and isinstance(item, dict) else item)

    ordered, lived = places(order), places(live)
    named = sorted((item for item in items if known(item) in ordered), key=lambda item: ordered[known(item)])
    others = sorted((item for item in items if known(item) not in ordered), key=lambda item: lived.get(known(item), -1))
    woven: list[Any] = []
    first = second = 0
    while first < len(named) and second < len(others):
        left, right = lived.get(known(others[second]), -1), lived.get(known(named[first]), -1)
        if 0 <= left < right:
            woven.append(others[second])
            second += 1
        else:
            woven.append(named[first])
            first += 1
    return woven + named[first:] + others[second:]


def _check_order(patch: Any, order: list[Any], key: str, name: str) -> None:
    """Every item that the patch sets must have its place in the order that it gives."""
    given = {mark(one.get(key) if isinstance(one, dict) else one) for one in order}
    for item in patch if isinstance(patch, list) else ():
        if isinstance(item, dict) and (item.get(_PATCH) or key not in item):
            continue
        value = item.get(key) if isinstance(item, dict) else item
        if mark(value) not in given:
            raise malformed(f"the order in the patch list of {name} doesn't match {_ORDER}{name}")


def _retained(doc: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    keep = patch[_RETAIN]
    if not isinstance(keep, list) or not all(isinstance(name, str) for name in keep):
        raise malformed(f"{_RETAIN} must be a list of field names")
    for name, value in patch.items():
        if not name.startswith("$") and value is not None and name not in keep:
            raise malformed(f"{_RETAIN} must contain every field that the patch sets; {name} is missing")
    return {name: value for name, value in doc.items() if name in keep}


def _plain(value: Any) -> Any:
    """A patch value where there was none before: directives and nulls have nothing to act on."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items() if item is not None and not _directive(name)}
    if isinstance(value, list):
        return [_plain(item) for item in value if not (isinstance(item, dict) and item.get(_PATCH) == "delete")]
    return value


def _directive(name: str) -> bool:
    return name in (_PATCH, _RETAIN) or name.startswith((_ORDER, _DROP))


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise malformed(f"{name} must be a list")
    return value


def _without(found: Any, values: list[Any]) -> list[Any]:
    gone = set(map(mark, values))
    return [item for item in found if mark(item) not in gone] if isinstance(found, list) else []


def _distinct(values: list[Any]) -> list[Any]:
    return list({mark(value): value for value in reversed(values)}.values())[::-1]
