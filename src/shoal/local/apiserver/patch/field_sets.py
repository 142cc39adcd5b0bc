"""Sets of fields, as managedFields write them, and how two objects differ in them.

A set is the decoded `fieldsV1` itself: nested maps whose keys are `f:name`, `k:{"key":"value"}` or `v:value`. A node
that is empty, or has the member `.`, is in the set. Working on that form directly spares a conversion on every
write. Functions here never change their arguments; results may share parts with them.
"""

from __future__ import annotations

import json
from typing import Any

from shoal.local.apiserver.patch.field_shapes import FieldShape
from shoal.local.apiserver.primitives.values import CONTAINERS

Set = dict[str, Any]
Json = dict[str, Any]


def key_of(shape: FieldShape, item: Any) -> str | None:
    """The path element of a keyed item, or None for an item that lacks a key."""
    if type(item) is not dict:
        return None
    if len(shape.keys) == 1:  # by far the most: containers, variables and volumes by name
        value = item.get(shape.keys[0])
        if type(value) is str and value.isascii() and value.isprintable() and '"' not in value and "\\" not in value:
            return f'k:{{"{shape.keys[0]}":"{value}"}}'
    found = {}
    for key in shape.keys:
        value = item.get(key, shape.defaults.get(key))
        if value is None:
            return None
        found[key] = value
    return "k:" + json.dumps(found, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def value_of(item: Any) -> str:
    return "v:" + json.dumps(item, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def fields_of(shape: FieldShape, value: Any, *, added: bool = False, inside: bool = False) -> Set:
    """Every field that `value` sets.

    With `added` it was not there before, and maps and lists are themselves set, save those that exist in every object;
    `inside` something that is all new, nothing did.
    """
    if type(value) is dict and shape.granularity == "map":
        return {
            "f:" + name: _member_fields(shape, name, item, added, inside) if type(item) in CONTAINERS else {}
            for name, item in value.items()
            if (added or type(item) not in CONTAINERS or _sets_something(shape.member(name), item))
            and not (added and not inside and name in shape.always and _is_zero(shape.member(name), item))
        }
    if type(value) is list and value:
        if shape.granularity == "keyed":
            assert shape.item is not None  # as every keyed list has
            found: Set = {}
            for item in value:
                key = key_of(shape, item)
                if key is None:
                    return {}
                below = fields_of(shape.item, item, added=added, inside=True)
                found[key] = {".": {}, **below} if below else {}
            return found
        if shape.granularity == "set":
            return {value_of(item): {} for item in value}
    return {}


def _is_zero(shape: FieldShape, value: Any) -> bool:
    """What every object of a kind has from the start belongs to no manager until it says something."""
    if type(value) is dict:
        return all(name in shape.always and _is_zero(shape.member(name), item) for name, item in value.items())
    return value == "" or (value == 0 and type(value) in (int, bool))


def _sets_something(shape: FieldShape, value: Any) -> bool:
    """A list that is owned by its items sets nothing when it has none, nor does a map of nothing but such lists."""
    if type(value) is list:
        return bool(value) or shape.granularity not in ("keyed", "set")
    if not value or shape.granularity != "map":
        return True
    return any(
        type(item) not in CONTAINERS or _sets_something(shape.member(name), item) for name, item in value.items()
    )


def _member_fields(shape: FieldShape, name: str, item: Any, added: bool, inside: bool = False) -> Set:
    inside = inside or name not in shape.always
    found = fields_of(shape.member(name), item, added=added, inside=inside)
    return {".": {}, **found} if added and found and inside else found


def difference_of(shape: FieldShape, old: Any, new: Any) -> tuple[Set | None, Set | None]:
    """What was set or changed, and what is gone; None where there is nothing."""
    if type(old) is dict and type(new) is dict and shape.granularity == "map":
        return _members_difference(shape, old, new)
    if type(old) is list and type(new) is list and shape.granularity in ("keyed", "set"):
        return _items_difference(shape, old, new)
    if type(old) is type(new) and old == new:
        return None, None
    return fields_of(shape, new, added=True), {}


def _members_difference(shape: FieldShape, old: Json, new: Json) -> tuple[Set | None, Set | None]:
    changed: Set = {}
    gone: Set = {}
    for name, value in new.items():
        if name not in old:
            changed[f"f:{name}"] = _member_fields(shape, name, value, True)
            continue
        before = old[name]
        if before is value or (type(before) is type(value) and before == value):
            continue
        set_, lost = difference_of(shape.member(name), before, value)
        if set_ is not None:
            changed[f"f:{name}"] = set_
        if lost:
            gone[f"f:{name}"] = lost
    for name in old:
        if name not in new:
            gone[f"f:{name}"] = {}
    return changed or None, gone or None


def _items_difference(shape: FieldShape, old: list[Any], new: list[Any]) -> tuple[Set | None, Set | None]:
    if shape.granularity == "set":
        before, after = {value_of(item) for item in old}, {value_of(item) for item in new}
        changed: Set = {key: {} for key in sorted(after - before)}
        gone: Set = {key: {} for key in sorted(before - after)}
        return changed or None, gone or None
    was, now = _by_key(shape, old), _by_key(shape, new)
    if was is None or now is None:
        return (None, None) if old == new else ({}, {})
    changed, gone = {}, {}
    assert shape.item is not None
    for key, item in now.items():
        if key not in was:
            changed[key] = {".": {}, **fields_of(shape.item, item, added=True, inside=True)}
        elif was[key] != item:
            set_, lost = difference_of(shape.item, was[key], item)
            if set_ is not None:
                changed[key] = set_
            if lost:
                gone[key] = lost
    for key in was:
        if key not in now:
            gone[key] = {}
    return changed or None, gone or None


def _by_key(shape: FieldShape, items: list[Any]) -> dict[str, Any] | None:
    """Items by what they are known by; None when one of them has no key."""
    found: dict[str, Any] = {}
    for item in items:
        key = key_of(shape, item)
        if key is None:
            return None
        found[key] = item
    return found


# --- algebra


def is_member(node: Set) -> bool:
    return not node or "." in node


def union(left: Set, right: Set) -> Set:
    if left == right:
        return left
    if not left or not right:
        more = left or right
        return more if is_member(more) else {".": {}, **more}
    joined = dict(left)
    for key, node in right.items():
        joined[key] = union(left[key], node) if key in left else node
    return joined


def subtract(left: Set, right: Set, *, sweep: bool = True) -> Set | None:
    """`left` without the members of `right`, or None where nothing is left.

    With `sweep` an end of `right` takes all below it (the value is gone or other); without, only its own path.
    """
    if not right:
        below = {} if sweep else {key: node for key, node in left.items() if key != "."}
        return below or None
    kept: Set = {}
    for key, node in left.items():
        if key == ".":
            if "." not in right:
                kept["."] = node
        elif key not in right:
            kept[key] = node
        else:
            rest = subtract(node, right[key], sweep=sweep) if node else (None if is_member(right[key]) else node)
            if rest is not None:
                kept[key] = rest
    if len(kept) == 1 and "." in kept:
        return {}  # a member with nothing below is written as an end
    return kept or None


def common(left: Set, right: Set) -> Set | None:
    """Members of both, or None. An end of `right` stands for all that `left` has below it."""
    if not left:
        return {} if is_member(right) else None
    if not right:
        return left
    shared: Set = {}
    for key, node in left.items():
        if key in right:
            if key == ".":
                shared["."] = {}
                continue
            both = common(node, right[key])
            if both is not None:
                shared[key] = both
    return shared or None


def holds(whole: Set, part: Set) -> bool:
    """Whether every member of `part` is in `whole`."""
    if not part:
        return is_member(whole)
    if not whole:
        return False
    return all(key in whole and (key == "." or holds(whole[key], node)) for key, node in part.items())


def meets(left: Set, right: Set) -> bool:
    """Whether some member is in both, without building anything."""
    if not left or not right:
        return True
    return any(key in left and (key == "." or meets(left[key], node)) for key, node in right.items())


def paths(fields: Set, prefix: str = "") -> list[str]:
    """The members as Kubernetes prints them: `.spec.containers[name="main"].image`."""
    if not fields:
        return [prefix]
    found = [prefix] if "." in fields and prefix else []
    for key, node in fields.items():
        if key != ".":
            found += paths(node, prefix + _step(key))
    return found


def _step(key: str) -> str:
    kind, _, rest = key.partition(":")
    if kind == "f":
        return f".{rest}"
    if kind == "k":
        keys = json.loads(rest)
        return "[" + ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in keys.items()) + "]"
    return f"[={rest}]" if kind == "v" else f"[{rest}]"
