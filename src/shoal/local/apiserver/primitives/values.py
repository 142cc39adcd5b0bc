"""Decoded JSON as values: copied, compared, and known in a set, for all that patches, checks or merges objects."""

from __future__ import annotations

from typing import Any

import msgspec


def clone(value: Any) -> Any:
    """A deep copy of decoded JSON, several times cheaper than copy.deepcopy."""
    if type(value) is dict:
        return {name: clone(item) if type(item) in CONTAINERS else item for name, item in value.items()}
    if type(value) is list:
        return [clone(item) if type(item) in CONTAINERS else item for item in value]
    return value


CONTAINERS = frozenset((dict, list))


def same(left: Any, right: Any) -> bool:
    """Equal as JSON: true is not 1, and order matters in lists only."""
    if left is right:
        return True
    if isinstance(left, bool) or isinstance(right, bool):
        return False
    if type(left) is dict and type(right) is dict:
        return left.keys() == right.keys() and all(same(value, right[name]) for name, value in left.items())
    if type(left) is list and type(right) is list:
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def mark(value: Any) -> Any:
    """By which values that are the `same` are known in a set: to compare each with all takes the square of the time."""
    kind = type(value)
    if kind is bool:
        return (bool, value)
    return msgspec.json.encode(value, order="deterministic") if kind in CONTAINERS else value
