"""A schema's value rules compiled to closures: type, bounds, enum, pattern, lists, and the logical combinators.

`compile_check` is called once per CRD version; the closures run on every write, so a good value costs little more
than one dictionary look-up per field and no text is built until something is wrong. They never change the value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shoal.local.apiserver.primitives.field_errors import (
    InvalidField,
    OpenKey,
    Path,
    bracketed,
    fault,
    shown,
    supported,
    tokens,
)
from shoal.local.apiserver.primitives.values import same
from shoal.local.apiserver.schema.values import Check, body, named, number_checks, text_checks

Json = dict[str, Any]

_NAMES: dict[type, str] = {
    str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array", type(None): "null",
}  # fmt: skip
_CLASSES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "object": (dict,),
    "array": (list,),
}  # fmt: skip


def compile_check(schema: Json) -> Check | None:
    """The closure for one node and all below it, or None where every value is good."""
    names = ("integer", "string") if schema.get("x-kubernetes-int-or-string") else _type_names(schema)
    nullable = bool(schema.get("nullable"))
    anything = list(_any_checks(schema))
    table: dict[type, tuple[Check, ...]] = {
        str: (*text_checks(schema), *anything),
        int: (*number_checks(schema), *anything),
        float: (*number_checks(schema), *anything),
        bool: tuple(anything),
        dict: (*_object_checks(schema), *anything),
        list: (*_array_checks(schema), *anything),
        type(None): tuple(anything),
    }
    if names:
        accepted = {cls for name in names for cls in _CLASSES.get(name, ())}
        table = {cls: checks for cls, checks in table.items() if cls in accepted}
    elif not any(table.values()):
        return None
    expected = ",".join(names)

    numeric = tuple(number_checks(schema)) if names == ("integer",) else ()
    listed = _enum_check(schema["enum"]) if schema.get("enum") else _good

    def refuse(value: Any, path: Path, errors: list[InvalidField]) -> None:
        if value is None and nullable:
            listed(value, path, errors)
            return
        if type(value) is float and value.is_integer() and "integer" in names:  # 1.0 is an integer in JSON
            for check in table[int]:
                check(int(value), path, errors)
            return
        errors.append(_type_fault(path, _NAMES.get(type(value), "object"), expected))
        listed(value, path, errors)  # as Kubernetes: also said of a value of another type
        if type(value) is float and names == ("integer",):
            words = f"Checked value must be of type integer (default format) in {named(path)}"
            errors.append(InvalidField("<nil>", "Invalid", f'Invalid value: "": {words}', tokens(path)))
            for check in numeric:
                check(value, path, errors)

    def check_all(value: Any, path: Path, errors: list[InvalidField]) -> None:
        checks = table.get(type(value))
        if checks is None or (value is None and nullable):
            refuse(value, path, errors)
            return
        for check in checks:
            check(value, path, errors)

    def check_type(value: Any, path: Path, errors: list[InvalidField]) -> None:
        if type(value) not in table:
            refuse(value, path, errors)

    return check_all if any(table.values()) else check_type


def _type_names(schema: Json) -> tuple[str, ...]:
    written = schema.get("type")
    return (written,) if isinstance(written, str) and written else ()


def _type_fault(path: Path, found: str, expected: str) -> InvalidField:
    return fault(path, "TypeInvalid", found, f'{named(path)} in body must be of type {expected}: "{found}"')


# --- objects


def _object_checks(schema: Json) -> Iterable[Check]:
    required = tuple(schema.get("required") or ())
    if required:
        yield _required_check(required)
    most, fewest = schema.get("maxProperties"), schema.get("minProperties")
    if most is not None or fewest is not None:
        yield _size_check(most, fewest, "properties")
    if schema.get("x-kubernetes-embedded-resource"):
        yield _embedded_check
    properties = {name: compile_check(child) for name, child in (schema.get("properties") or {}).items()}
    known: dict[str, Check] = {name: check for name, check in properties.items() if check is not None}
    rest = schema.get("additionalProperties")
    other = compile_check(rest) if isinstance(rest, dict) else None
    if other is not None:
        yield _members_check(known, other, frozenset(properties))
    elif known:
        yield _properties_check(known)


def _required_check(names: tuple[str, ...]) -> Check:
    def check(value: Any, path: Path, errors: list[InvalidField]) -> None:
        for name in names:
            if name not in value:
                errors.append(fault((path, name), "Required", owner=path))

    return check


def _properties_check(known: dict[str, Check]) -> Check:
    find = known.get

    def check(value: Any, path: Path, errors: list[InvalidField]) -> None:
        for name, item in value.items():
            inner = find(name)
            if inner is not None:
                inner(item, (path, name), errors)

    return check


def _members_check(known: dict[str, Check], other: Check, named: frozenset[str]) -> Check:
    def check(value: Any, path: Path, errors: list[InvalidField]) -> None:
        for name, item in value.items():
            if name in named:
                inner = known.get(name)
                if inner is not None:
                    inner(item, (path, name), errors)
            else:
                other(item, (path, OpenKey(name)), errors)

    return check


def _size_check(most: int | None, fewest: int | None, unit: str) -> Check:
    def check(value: Any, path: Path, errors: list[InvalidField]) -> None:
        size = len(value)
        if most is not None and size > most:
            errors.append(fault(path, "TooMany", size, f"must have at most {most} {'item' if most == 1 else 'items'}"))
        if fewest is not None and size < fewest:
            errors.append(body(path, size, f"should have at least {fewest} {unit}"))

    return check


def _embedded_check(value: Any, path: Path, errors: list[InvalidField]) -> None:
    """A whole object inside a field: it must say what it is."""
    for name in ("apiVersion", "kind"):
        if name not in value:
            errors.append(fault((path, name), "Required", owner=path))
        elif not isinstance(value[name], str):
            errors.append(fault((path, name), "Invalid", value[name], "must be a string"))
        elif not value[name]:
            errors.append(fault((path, name), "Invalid", "", "must not be empty"))
    if not isinstance(value.get("metadata", {}), dict):
        errors.append(fault((path, "metadata"), "Invalid", value["metadata"], "must be an object"))


# --- lists


def _array_checks(schema: Json) -> Iterable[Check]:
    most, fewest = schema.get("maxItems"), schema.get("minItems")
    if most is not None or fewest is not None:
        yield _size_check(most, fewest, "items")
    items = schema.get("items")
    inner = compile_check(items) if isinstance(items, dict) else None
    if inner is not None:
        yield _items_check(inner)
    kind = schema.get("x-kubernetes-list-type")
    if kind == "set":
        yield _set_check
    elif kind == "map":
        yield _map_check(tuple(schema.get("x-kubernetes-list-map-keys") or ()))


def _items_check(inner: Check) -> Check:
    def check(value: Any, path: Path, errors: list[InvalidField]) -> None:
        for index, item in enumerate(value):
            inner(item, (path, index), errors)

    return check


def _set_check(value: Any, path: Path, errors: list[InvalidField]) -> None:
    for index in _repeated([shown(item) for item in value]):
        errors.append(fault((bracketed(path), index), "Duplicate", value[index], owner=path))


def _map_check(keys: tuple[str, ...]) -> Check:
    def check(value: Any, path: Path, errors: list[InvalidField]) -> None:
        found: list[Any] = []
        for index, item in enumerate(value):
            if item is not None and type(item) is not dict:
                rule = "must be an object for an array of list-type map"
                errors.append(fault((bracketed(path), index), "Invalid", item, rule, owner=path))
                return
            found.append({key: item[key] for key in keys if key in item} if item else {})
        if len(found) < 2:
            return
        for index in _repeated([shown(item) for item in found]):
            errors.append(fault((bracketed(path), index), "Duplicate", found[index], owner=path))

    return check


def _repeated(written: list[str]) -> list[int]:
    """The second appearance of each value that appears more than once."""
    if len(set(written)) == len(written):
        return []
    seen: dict[str, int] = {}
    found = []
    for index, item in enumerate(written):
        seen[item] = seen.get(item, 0) + 1
        if seen[item] == 2:
            found.append(index)
    return found


# --- any type


def _any_checks(schema: Json) -> Iterable[Check]:
    if schema.get("enum"):
        yield _enum_check(schema["enum"])
    for word, judge in (("allOf", _all_check), ("anyOf", _any_check), ("oneOf", _one_check)):
        if schema.get(word) and not (schema.get("x-kubernetes-int-or-string") and _only_types(schema[word])):
            yield judge([compile_check(child) or _good for child in schema[word]])
    if isinstance(schema.get("not"), dict):
        yield _not_check(compile_check(schema["not"]) or _good)


def _only_types(children: list[Json]) -> bool:
    """`anyOf: [{type: integer}, {type: string}]` beside int-or-string says nothing new."""
    return all(set(child) <= {"type"} for child in children)


def _good(value: Any, path: Path, errors: list[InvalidField]) -> None:
    return None


def _enum_check(allowed: list[Any]) -> Check:
    plain = frozenset(value for value in allowed if type(value) is str)

    def check(value: Any, path: Path, errors: list[InvalidField]) -> None:
        if (type(value) is str and value in plain) or any(same(value, item) for item in allowed):
            return
        errors.append(fault(path, "NotSupported", value, supported(allowed)))

    return check


def _faults(check: Check, value: Any, path: Path) -> list[InvalidField]:
    found: list[InvalidField] = []
    check(value, path, found)
    return found


def _logic(path: Path, rule: str) -> InvalidField:
    return InvalidField("<nil>", "Invalid", f'Invalid value: "": "{named(path)}" {rule}', tokens(path))


def _fewest(results: list[list[InvalidField]]) -> list[InvalidField]:
    """The faults of the alternative that came nearest."""
    best = results[0]
    for found in results[1:]:
        best = found if len(found) < len(best) else best
    return best


def _all_check(checks: list[Check]) -> Check:
    def check(value: Any, path: Path, errors: list[InvalidField]) -> None:
        found = [error for inner in checks for error in _faults(inner, value, path)]
        if found:
            errors += found
            errors.append(_logic(path, "must validate all the schemas (allOf)"))

    return check


def _any_check(checks: list[Check]) -> Check:
    def check(value: Any, path: Path, errors: list[InvalidField]) -> None:
        results = [_faults(inner, value, path) for inner in checks]
        if all(results):
            errors.append(_logic(path, "must validate at least one schema (anyOf)"))
            errors.extend(_fewest(results))

    return check


def _one_check(checks: list[Check]) -> Check:
    def check(value: Any, path: Path, errors: list[InvalidField]) -> None:
        results = [_faults(inner, value, path) for inner in checks]
        good = sum(not found for found in results)
        if good == 0:
            errors.append(_logic(path, "must validate one and only one schema (oneOf). Found none valid"))
            errors.extend(_fewest(results))
        elif good > 1:
            errors.append(
                _logic(path, f"must validate one and only one schema (oneOf). Found {good} valid alternatives")
            )

    return check


def _not_check(inner: Check) -> Check:
    def check(value: Any, path: Path, errors: list[InvalidField]) -> None:
        if not _faults(inner, value, path):
            errors.append(_logic(path, "must not validate the schema (not)"))

    return check
