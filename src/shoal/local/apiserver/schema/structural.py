"""Structural schemas of custom kinds: what a CRD's openAPIV3Schema does to an object on its way in.

The server compiles one `Structural` per CRD version and calls it on every write: `prune` drops what the schema does
not name, `default` fills in what it promises, `validate` says what is wrong in Kubernetes' words. Compiled to
closures once; nothing here reads the schema again. `prune` and `default` change the object they are given (a
request's own, freshly decoded); `validate` changes nothing.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from shoal.local.apiserver.cel.rules import CelRules, compile_rules
from shoal.local.apiserver.primitives import patterns
from shoal.local.apiserver.primitives.builtin_types import fields
from shoal.local.apiserver.primitives.field_errors import InvalidField, Path, text
from shoal.local.apiserver.primitives.status import bad_request
from shoal.local.apiserver.primitives.values import CONTAINERS, clone, same
from shoal.local.apiserver.schema.checks import compile_check
from shoal.local.apiserver.schema.values import Check

__all__ = ["InvalidField", "Structural"]

Json = dict[str, Any]
_Prune = Callable[[Any, Path, list[str]], None]
_Default = Callable[[Any], None]

_META = frozenset(("apiVersion", "kind", "metadata"))
_BLOCKING = frozenset(("NotSupported", "Required", "TooLong", "TooMany", "TypeInvalid"))
_UNCHECKED = InvalidField(
    "<nil>",
    "Invalid",
    "Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation",
)


class Structural:
    """One version's schema, compiled."""

    def __init__(self, openapi_schema: Json | None) -> None:
        schema = openapi_schema or {}
        self.schema = schema
        self._prune = _compile_prune(schema, root=True)
        self._default = _compile_default(schema)
        self._check: Check | None = compile_check(schema)
        status = (schema.get("properties") or {}).get("status")
        self._check_status: Check | None = compile_check(status) if isinstance(status, dict) else None
        self.rules: CelRules | None = compile_rules(schema)

    def prune(self, obj: Json) -> list[str]:
        """Drop what the schema does not name, in place. Returns the paths that were dropped."""
        unknown: list[str] = []
        if self._prune is not None:
            self._prune(obj, None, unknown)
        return unknown

    def default(self, obj: Json) -> None:
        """Fill in defaults, in place; a null where none is allowed counts as absent."""
        if self._default is not None:
            self._default(obj)

    def validate(self, obj: Json, old: Json | None = None, *, status_only: bool = False) -> list[InvalidField]:
        """What is wrong with `obj`, nothing if it is good.

        With `old` it is an update: transition rules run, and faults in values that did not change are let pass, as
        Kubernetes' ratcheting does. `status_only` judges a write to the status subresource.
        """
        errors: list[InvalidField] = []
        try:
            with patterns.metered():
                return self._validate(obj, old, status_only, errors)
        except patterns.TooCostly as error:
            return [InvalidField("<nil>", "Invalid", f'Invalid value: "": {error}')]

    def _validate(
        self, obj: Json, old: Json | None, status_only: bool, errors: list[InvalidField]
    ) -> list[InvalidField]:
        if status_only:
            if self._check_status is not None and "status" in obj:
                self._check_status(obj["status"], None, errors)
                errors = [_under_status(error) for error in errors]
        elif self._check is not None:
            self._check(obj, None, errors)
        if errors and old is not None:
            errors = [error for error in errors if not _unchanged(self.schema, obj, old, error.owner)]
        if self.rules is not None:
            if any(error.type in _BLOCKING for error in errors):
                return [*errors, _UNCHECKED]
            errors += self.rules.check(obj, old)
        return errors


_compiled: OrderedDict[bytes, Structural] = OrderedDict()
_MOST_COMPILED = 64


def digest(schema: Json) -> bytes:
    """By which equal schemas are known again: the versions of a CRD often share one, and so do many clusters' CRDs."""
    return hashlib.blake2b(msgspec.json.encode(schema), digest_size=16).digest()


def compiled(schema: Json | None) -> Structural:
    """As `Structural`, compiled once for equal schemas."""
    key = digest(schema or {})
    found = _compiled.get(key)
    if found is None:
        found = _compiled[key] = Structural(schema)
        if len(_compiled) > _MOST_COMPILED:
            _compiled.popitem(last=False)
    _compiled.move_to_end(key)
    return found


def _under_status(error: InvalidField) -> InvalidField:
    path = "status" if error.path == "<nil>" else f"status.{error.path}"
    return msgspec.structs.replace(error, path=path, owner=("status", *error.owner))


# --- pruning


def _compile_prune(schema: Json, *, root: bool = False) -> _Prune | None:
    """None where nothing can be dropped: the walk then stops."""
    keep = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    if schema.get("type") == "array" or "items" in schema:
        items = schema.get("items")
        inner = _compile_prune(items) if isinstance(items, dict) else None
        return _prune_items(inner) if inner is not None else None
    if schema.get("x-kubernetes-int-or-string") or schema.get("type") in ("string", "integer", "number", "boolean"):
        return _prune_all
    known = {name: _compile_prune(child) for name, child in (schema.get("properties") or {}).items()}
    embedded = root or bool(schema.get("x-kubernetes-embedded-resource"))
    if embedded:
        known.update(dict.fromkeys(_META))  # metadata is checked elsewhere, by the rules of every object
        if not root:
            known["metadata"] = _prune_metadata
    rest = schema.get("additionalProperties")
    others = _compile_prune(rest) if isinstance(rest, dict) else None
    open_ended = keep or rest is True or isinstance(rest, dict)
    if open_ended and others is None and not any(known.values()):
        return None
    return _prune_members(known, others, open_ended)


def _prune_metadata(value: Any, path: Path, unknown: list[str]) -> None:
    """Of an object inside an object: what no metadata has."""
    if type(value) is dict:
        for name in ("labels", "annotations"):
            found = value.get(name)
            if found is not None and not (type(found) is dict and all(type(one) is str for one in found.values())):
                raise bad_request(f"{text((path, name))}: must be a map of text to text")
        for name in [name for name in value if name not in fields("meta.v1.ObjectMeta")]:
            unknown.append(text((path, name)))
            del value[name]


def _prune_all(value: Any, path: Path, unknown: list[str]) -> None:
    """An object where a plain value belongs is refused later, without what it holds."""
    if type(value) is dict:
        unknown += [text((path, name)) for name in value]
        value.clear()
    else:
        for index, item in enumerate(value):
            if type(item) in CONTAINERS:
                _prune_all(item, (path, index), unknown)


def _prune_items(inner: _Prune) -> _Prune:
    def prune(value: Any, path: Path, unknown: list[str]) -> None:
        if type(value) is dict:
            _prune_all(value, path, unknown)
        elif type(value) is list:
            for index, item in enumerate(value):
                if type(item) in CONTAINERS:
                    inner(item, (path, index), unknown)

    return prune


def _prune_members(known: dict[str, _Prune | None], others: _Prune | None, open_ended: bool) -> _Prune:
    def prune(value: Any, path: Path, unknown: list[str]) -> None:
        if type(value) is not dict:
            return
        extra: list[str] | None = None
        for name, item in value.items():
            if name in known:
                inner = known[name]
            elif open_ended:
                inner = others
            else:
                extra = [*(extra or ()), name]
                continue
            if inner is not None and type(item) in CONTAINERS:
                inner(item, (path, name), unknown)
        for name in extra or ():
            del value[name]
            unknown.append(text((path, name)))

    return prune


# --- defaulting


def _compile_default(schema: Json) -> _Default | None:
    if schema.get("x-kubernetes-int-or-string") or schema.get("type") in ("string", "integer", "number", "boolean"):
        return None
    items = schema.get("items")
    if isinstance(items, dict):
        inner = _compile_default(items)
        return _default_items(inner) if inner is not None else None
    properties: dict[str, Json] = schema.get("properties") or {}
    rest = schema.get("additionalProperties")
    if not properties and not isinstance(rest, dict):
        return None
    children = {name: _compile_default(child) for name, child in properties.items()}
    defaults = {name: child["default"] for name, child in properties.items() if child.get("default") is not None}
    nullable = frozenset(name for name, child in properties.items() if child.get("nullable"))
    other = _compile_default(rest) if isinstance(rest, dict) else None
    other_nullable = not isinstance(rest, dict) or bool(rest.get("nullable"))
    return _default_members(children, defaults, nullable, other, other_nullable)


def _default_items(inner: _Default) -> _Default:
    def fill(value: Any) -> None:
        if type(value) is list:
            for item in value:
                if type(item) in CONTAINERS:
                    inner(item)

    return fill


def _default_members(
    children: dict[str, _Default | None],
    defaults: dict[str, Any],
    nullable: frozenset[str],
    other: _Default | None,
    other_nullable: bool,
) -> _Default:
    def fill(value: Any) -> None:
        if type(value) is not dict:
            return
        if None in value.values():
            for name in [name for name, item in value.items() if item is None]:
                if name not in nullable if name in children else not other_nullable:
                    del value[name]
        for name, default in defaults.items():
            if name not in value:
                value[name] = clone(default)
        for name, item in value.items():
            if type(item) in CONTAINERS:
                inner = children.get(name, other)
                if inner is not None:
                    inner(item)

    return fill


# --- ratcheting


def _unchanged(schema: Json, new: Any, old: Any, owner: tuple[Any, ...]) -> bool:
    """Whether the value at `owner`, or one around it, is what it was before. Lists are followed by their map keys."""
    for token in owner:
        if type(new) is dict and type(old) is dict:
            if token not in new or token not in old:
                return False
            new, old = new[token], old[token]
            rest = schema.get("additionalProperties")
            schema = (schema.get("properties") or {}).get(token) or (rest if isinstance(rest, dict) else {})
        elif type(new) is list and type(old) is list:
            if same(new, old):
                return True
            keys = schema.get("x-kubernetes-list-map-keys")
            if not keys or type(new[token]) is not dict:
                return False
            new = new[token]
            before = [item for item in old if type(item) is dict and all(item.get(k) == new.get(k) for k in keys)]
            if len(before) != 1:
                return False
            old = before[0]
            schema = schema.get("items") or {}
        else:
            return False
    return same(new, old)
