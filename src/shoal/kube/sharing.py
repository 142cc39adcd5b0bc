"""Stores equal parts of objects once: the pods of a gang differ in little more than their names.

For caches that hold many objects and change slowly: typed pods take a third of the memory and twice the time to decode,
dictionaries two thirds of the memory and a third more time. Only what cannot change is shared: texts, bytes, tuples and
frozen structs.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.api.meta import ObjectMeta

LONGEST = 64
"""Longer texts are ids and arguments, which seldom recur."""
LARGEST = 50_000
"""Entries after which the table starts over, so that names that do not recur are not kept for ever."""
_UNIQUE = frozenset({"name", "uid", "resource_version", "generate_name"})


class Sharer:
    def __init__(self) -> None:
        self._table: dict[Any, Any] = {}
        self._fields: dict[type, tuple[str, ...]] = {}

    def share(self, value: Any) -> Any:
        """The same value made of shared parts. It is changed in place, to an equal one."""
        if len(self._table) > LARGEST:
            self._table.clear()
        return self._shared(value)

    def _shared(self, value: Any) -> Any:
        kind = type(value)
        if kind is str:
            return self._table.setdefault(value, value) if len(value) <= LONGEST else value
        if kind is tuple:
            return self._once(tuple(map(self._shared, value)))
        if kind is dict:
            table = self._table
            for name, one in value.items():
                if type(one) is str:  # most of what a dictionary holds: without a call for each
                    if len(one) <= LONGEST:
                        value[name] = table.setdefault(one, one)
                elif one is not None:
                    value[name] = self._shared(one)
            return value
        if kind is list:
            value[:] = map(self._shared, value)
            return value
        if kind is msgspec.Raw:
            return self._table.setdefault(bytes(value), value)
        if isinstance(value, msgspec.Struct):
            for name in self._names(kind):
                old = getattr(value, name)
                if old is not None:
                    new = self._shared(old)
                    if new is not old:
                        msgspec.structs.force_setattr(value, name, new)
            return self._once(value) if value.__struct_config__.frozen else value
        return value

    def _once(self, value: Any) -> Any:
        try:
            return self._table.setdefault(value, value)
        except TypeError:  # holds a dictionary somewhere
            return value

    def _names(self, kind: type[msgspec.Struct]) -> tuple[str, ...]:
        """Fields worth looking at: not numbers, not what is unique to each object."""
        found = self._fields.get(kind)
        if found is None:
            unique = _UNIQUE if kind is ObjectMeta else frozenset()
            plain = (msgspec.inspect.IntType, msgspec.inspect.BoolType, msgspec.inspect.FloatType)
            info = msgspec.inspect.type_info(kind)
            assert isinstance(info, msgspec.inspect.StructType)
            found = tuple(one.name for one in info.fields if one.name not in unique and not isinstance(one.type, plain))
            self._fields[kind] = found
        return found
