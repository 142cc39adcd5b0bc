"""Server-side apply's work on the object itself: one manager's configuration merged in, and what no manager sets any
more taken out. Lists merge by their keys, as the kind's shape says. Only `managed_fields.py` calls this; nothing that
it is given is changed.
"""

from __future__ import annotations

from typing import Any

from shoal.local.apiserver.patch import field_sets
from shoal.local.apiserver.patch.field_sets import Set
from shoal.local.apiserver.patch.field_shapes import FieldShape
from shoal.local.apiserver.primitives.values import clone

Json = dict[str, Any]


def merge(shape: FieldShape, live: Any, config: Any) -> Any:
    if type(live) is dict and type(config) is dict and shape.granularity == "map":
        merged = {name: clone(value) for name, value in live.items() if name not in config}
        for name, value in config.items():
            merged[name] = merge(shape.member(name), live[name], value) if name in live else clone(value)
        return merged
    if type(live) is list and type(config) is list:
        if shape.granularity == "keyed":
            return _merge_items(shape, live, config)
        if shape.granularity == "set":
            return _merge_set(live, config)
    return clone(config)


def _merge_items(shape: FieldShape, live: list[Any], config: list[Any]) -> list[Any]:
    """The configuration's order, with items that only the live list has kept near their neighbours."""
    assert shape.item is not None
    found = {field_sets.key_of(shape, item): item for item in live}
    wanted = {field_sets.key_of(shape, item): item for item in config}
    if None in found:
        taken: list[Any] = clone(config)
        return taken
    merged: list[Any] = []
    for key in _woven(list(found), list(wanted)):
        if key in found and key in wanted:
            merged.append(merge(shape.item, found[key], wanted[key]))
        else:
            merged.append(clone(wanted[key] if key in wanted else found[key]))
    return merged


def _merge_set(live: list[Any], config: list[Any]) -> list[Any]:
    values = {field_sets.value_of(item): item for item in (*live, *config)}
    order = _woven([field_sets.value_of(item) for item in live], [field_sets.value_of(item) for item in config])
    return [clone(values[key]) for key in order]


def _woven(live: list[Any], config: list[Any]) -> list[Any]:
    """Keys of both lists, each in its own order as far as possible; where they disagree, the configuration's holds."""
    left, right = list(dict.fromkeys(live)), list(dict.fromkeys(config))
    wanted, held = set(right), set(left)
    shared = [key for key in right if key in held]
    woven: list[Any] = []
    at = to = next_shared = 0
    while at < len(left) or to < len(right):
        both = at < len(left) and to < len(right)
        due = shared[next_shared] if next_shared < len(shared) else None
        if both and left[at] in wanted and left[at] != right[to] and due is not None and due != left[at]:
            at += 1  # its turn comes with the configuration's order
            continue
        if at < len(left) and (left[at] not in wanted or (to < len(right) and left[at] == right[to])):
            to += left[at] in wanted
            key = left[at]
            at += 1
        elif to < len(right):
            key = right[to]
            to += 1
        else:
            break
        woven.append(key)
        next_shared += due is not None and due == key
    return woven


def prune(shape: FieldShape, value: Any, dropped: Set, others: list[Set]) -> Any:
    """Remove what the manager no longer sets, save what another manager owns, or what it sets in another way: something
    below a map that was empty. Changes `value`, which is fresh."""
    if type(value) is dict and shape.granularity == "map":
        for element, below in dropped.items():
            name = element[2:]
            if not element.startswith("f:") or name not in value:
                continue
            theirs = [fields[element] for fields in others if element in fields]
            if not below:
                if not theirs:
                    del value[name]
                continue
            rest = prune(shape.member(name), value[name], below, theirs)
            if rest in ({}, []) and not theirs:
                del value[name]
            else:
                value[name] = rest
        return value
    if type(value) is list and shape.granularity in ("keyed", "set"):
        kept = []
        for item in value:
            step = field_sets.value_of(item) if shape.granularity == "set" else field_sets.key_of(shape, item)
            if step is None or step not in dropped:
                kept.append(item)
                continue
            theirs = [fields[step] for fields in others if step in fields]
            claimed = any(field_sets.is_member(fields) for fields in theirs)
            if field_sets.is_member(dropped[step]) and not claimed:
                continue  # as Kubernetes: a manager of only something inside an item does not hold the item
            if shape.item is None:
                kept.append(item)
                continue
            below = {one: node for one, node in dropped[step].items() if one[2:] not in shape.keys}
            kept.append(prune(shape.item, item, below, theirs))
        return kept
    return value


def without_nulls(value: Any) -> Any:
    if type(value) is dict:
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    if type(value) is list:
        return [without_nulls(item) for item in value]
    return value
