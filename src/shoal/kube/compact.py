"""Cuts the undecoded parts of an object loose from the message that it came in.

msgspec's `Raw` fields are views: one small field would keep a whole object, or a whole page of a list, in memory. For
each type the places of its `Raw` fields are found once; a type without any costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from msgspec.inspect import (
    CollectionType,
    DictType,
    RawType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

Cut = Callable[[Any], Any]


def cutter(type: Any) -> Cut | None:
    """A function that gives an object of this type `Raw` fields of its own; None when it has none."""
    return None if type is dict else _found_once(type)


@cache
def _found_once(type: Any) -> Cut | None:
    return _cutter(type_info(type), {})


def _cutter(type: Type, known: dict[Any, Cut | None]) -> Cut | None:
    match type:
        case RawType():
            return _own
        case StructType():
            return _struct_cutter(type, known)
        case UnionType():
            parts = [found for one in type.types if (found := _cutter(one, known)) is not None]
            return None if not parts else lambda value: None if value is None else parts[0](value)
        case CollectionType() | VarTupleType():
            item = _cutter(type.item_type, known)
            return None if item is None else lambda value: value.__class__(map(item, value))
        case DictType():
            inner = _cutter(type.value_type, known)
            return None if inner is None else lambda value: {name: inner(one) for name, one in value.items()}
    return None


def _struct_cutter(type: StructType, known: dict[Any, Cut | None]) -> Cut | None:
    if type.cls in known:
        return known[type.cls]
    known[type.cls] = None  # a type inside itself: what is deeper than that stays a view
    fields = [(field.name, cut) for field in type.fields if (cut := _cutter(field.type, known)) is not None]

    def cut_struct(value: Any) -> Any:
        for name, cut in fields:
            old = getattr(value, name)
            new = cut(old)
            if new is not old:
                msgspec.structs.force_setattr(value, name, new)
        return value

    known[type.cls] = cut_struct if fields else None
    return known[type.cls]


def _own(raw: msgspec.Raw) -> msgspec.Raw:
    data = bytes(raw)
    return msgspec.Raw(data) if data else raw
