"""From bytes and dictionaries to typed kinds and back, without losing what we do not know.

Controllers read a typed object, change a copy with `msgspec.structs.replace`, and call `rewrite` with the raw object
they read: only what differs between the two typed objects changes in the raw one. Nothing here knows any kind.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from shoal.api.meta import Json

T = TypeVar("T")

# Fields that name an element within its list, most telling first.
_ELEMENT_KEYS = ("name", "type", "groupName", "uid", "key", "path", "podname")


def typed(source: Json | bytes | msgspec.Raw, type: type[T]) -> T:
    """Decode a dictionary or JSON bytes as a typed kind. Raises msgspec.ValidationError with the path at fault.

    A field that is null counts as absent, as everywhere in Kubernetes: `env:` with nothing behind it is null in YAML.
    """
    data = msgspec.json.encode(source) if isinstance(source, dict) else source
    try:
        return msgspec.json.decode(data, type=type)
    except msgspec.ValidationError:
        if b"null" not in bytes(data):
            raise
    return msgspec.json.decode(msgspec.json.encode(without_nulls(msgspec.json.decode(data))), type=type)


def without_nulls(value: Any) -> Any:
    """The same JSON without fields that are null; nulls inside lists stay, because positions count."""
    if isinstance(value, dict):
        return {name: without_nulls(part) for name, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """A typed object (or any part of one) as dictionaries and lists; raw fields are opened."""
    return msgspec.json.decode(msgspec.json.encode(value))


def opened(raw: msgspec.Raw) -> Json:
    """The dictionary inside a raw field; an absent or null field is empty."""
    found = msgspec.json.decode(raw) if raw else None
    return found if isinstance(found, dict) else {}


def sealed(value: Any) -> msgspec.Raw:
    """The raw field that holds this value."""
    return msgspec.Raw(msgspec.json.encode(value))


def rewrite(raw: Json, before: Any, after: Any) -> Json:
    """The raw object with exactly the changes from `before` to `after`, both typed views (or plain JSON) of it.

    Fields that neither view knows stay as they are, inside list elements too: elements are matched by name, type or a
    like key where they have one, else by position. `raw` itself is not changed.
    """
    return _apply(raw, plain(before), plain(after))  # type: ignore[no-any-return]


def merge_patch(before: Any, after: Any) -> Json:
    """The JSON merge patch (RFC 7386) from one object to another; empty when they are equal.

    Lists are replaced whole, so compare raw objects (see `rewrite`), not typed views, where list elements may hold
    unknown fields.
    """
    patch: Json = difference(plain(before), plain(after))
    return patch


def copied(value: Json) -> Json:
    """A JSON object of one's own, all the way down."""
    own: Json = msgspec.json.decode(msgspec.json.encode(value))
    return own


def _apply(raw: Any, before: Any, after: Any) -> Any:
    if before == after:
        return raw
    if isinstance(raw, dict) and isinstance(before, dict) and isinstance(after, dict):
        changed = dict(raw)
        for name in before.keys() - after.keys():
            changed.pop(name, None)
        for name, value in after.items():
            if name not in before or before[name] != value:
                changed[name] = _apply(raw.get(name), before.get(name), value)
        return changed
    if isinstance(raw, list) and isinstance(before, list) and isinstance(after, list) and len(raw) == len(before):
        return _apply_list(raw, before, after)
    return after


def _apply_list(raw: list[Any], before: list[Any], after: list[Any]) -> list[Any]:
    key = _element_key(before, after)
    if key is not None:
        known = {element[key]: index for index, element in enumerate(before)}
        return [
            _apply(raw[known[element[key]]], before[known[element[key]]], element) if element[key] in known else element
            for element in after
        ]
    if len(before) == len(after):
        return [_apply(*triple) for triple in zip(raw, before, after, strict=True)]
    front = 0
    while front < min(len(before), len(after)) and before[front] == after[front]:
        front += 1
    back = 0
    while back < min(len(before), len(after)) - front and before[-1 - back] == after[-1 - back]:
        back += 1
    return raw[:front] + after[front : len(after) - back] + raw[len(raw) - back :]


def _element_key(before: list[Any], after: list[Any]) -> str | None:
    for key in _ELEMENT_KEYS:
        if all(_names_each(elements, key) for elements in (before, after)):
            return key
    return None


def _names_each(elements: list[Any], key: str) -> bool:
    names = [element.get(key) for element in elements if isinstance(element, dict)]
    return (
        len(names) == len(elements) and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    )


def difference(before: Json, after: Json) -> Json:
    """The same as `merge_patch` for what is plain JSON already."""
    patch: Json = dict.fromkeys(before.keys() - after.keys())
    for name, value in after.items():
        old = before.get(name)
        if name in before and old == value:
            continue
        patch[name] = difference(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return patch
