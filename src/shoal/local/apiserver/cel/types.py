"""Whether the rules of a custom kind fit the types of its schema, found when its definition is written.

The schema becomes protobuf messages, which is how the CEL library knows types; nothing is ever evaluated with them.
Where protobuf has no such type (a list of lists) nothing is known, and the rule is judged when it runs. As in
Kubernetes, what a schema does not name cannot be read by a rule, even where unknown fields are kept. Called by
`validation_crd` alone; a schema without rules costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from shoal.local.apiserver.cel.formats import rewritten
from shoal.local.apiserver.cel.rules import TAIL, Problem, children, environment, uses_old
from shoal.local.apiserver.cel.values import spellings

Json = dict[str, Any]

_PACKAGE = "shoal"
_TEXT = {"type": "string"}
_OBJECT_META = {"type": "object", "properties": {"name": _TEXT, "generateName": _TEXT}}
_SCALARS = {"integer": "int", "number": "double", "boolean": "bool"}
_FORMATS = {"byte": "bytes", "duration": "duration", "date": "timestamp", "datetime": "timestamp"}
_WELL_KNOWN = {
    "dyn": ".google.protobuf.Value",
    "timestamp": ".google.protobuf.Timestamp",
    "duration": ".google.protobuf.Duration",
}
_REASONS = ("FieldValueInvalid", "FieldValueRequired", "FieldValueForbidden", "FieldValueDuplicate")
_STEP = re.compile(r"""(\.([A-Za-z_][A-Za-z0-9_]*)|\['([^']*)'\])""")
_STRUCT = re.compile(r" not found in struct '[^']*'")
_COMPARED = re.compile(r"overload for '_(?:<|<=|>|>=)_' applied to '\((?:int|uint|double), (?:int|uint|double)\)'")
_LINE = re.compile(r"<input>:(\d+):")


class _Shape(NamedTuple):
    """A type of CEL: a scalar, `message` by its name, or a `list` or `map` of another."""

    word: str
    name: str = ""
    inner: _Shape | None = None


def type_problems(schema: Json) -> Iterator[Problem]:
    """Every rule and message of a schema that cannot work with its types."""
    yield from _walk(schema, "", "", root=True)


def _walk(schema: Json, where: str, unstable: str, *, root: bool) -> Iterator[Problem]:
    """`unstable` names the part above whose items cannot be told apart from one write to the next."""
    rules = schema.get("x-kubernetes-validations") or ()
    if rules:
        here = f"{where}.x-kubernetes-validations" if where else "x-kubernetes-validations"
        checker = _Checker(schema, root=root or bool(schema.get("x-kubernetes-embedded-resource")))
        for index, rule in enumerate(rules):
            yield from checker.problems(rule, f"{here}[{index}]", unstable)
            yield from _misplaced(schema, rule, f"{here}[{index}]")
    fixed = schema.get("type") == "array" and schema.get("x-kubernetes-list-type") != "map"
    if not unstable and (fixed or schema.get("x-kubernetes-map-type") == "atomic"):
        unstable = where or "the root"
    for part, child in children(schema):
        yield from _walk(child, f"{where}.{part}" if where else part, unstable, root=False)


def _misplaced(schema: Json, rule: Json, where: str) -> Iterator[Problem]:
    """What a refusal would say: a reason that clients know, about a field that there is."""
    reason, path = str(rule.get("reason") or _REASONS[0]), str(rule.get("fieldPath") or "").strip()
    if reason not in _REASONS:
        yield Problem(f"{where}.reason", reason, f"must be one of {', '.join(_REASONS)}")
    here: Any = schema
    steps = _STEP.findall(path)
    if path and "".join(whole for whole, _, _ in steps) != path:
        here = None
    for _, plain, quoted in steps:
        below = here.get("additionalProperties") if isinstance(here, dict) else None
        known = (here.get("properties") or {}) if isinstance(here, dict) else {}
        here = known.get(plain or quoted) or (below if isinstance(below, dict) else None)
    if here is None:
        yield Problem(f"{where}.fieldPath", path, "fieldPath must be a valid path: it does not refer to a valid field")


class _Checker:
    """Compiles rules of one place in a schema against its types."""

    def __init__(self, schema: Json, *, root: bool) -> None:
        messages = _Messages()
        shape = messages.shape(schema, root=root)
        known = messages.type_of(shape) if shape is not None else None
        self._environment = environment("self", "oldSelf", "previous", type_=known, pool=messages.pool())

    def problems(self, rule: Json, where: str, unstable: str) -> Iterator[Problem]:
        source, message = str(rule.get("rule") or "").strip(), str(rule.get("messageExpression") or "")
        optional = bool(rule.get("optionalOldSelf"))
        yield from self._wrong(source, f"{where}.rule", "BOOL", "cel expression must evaluate to a bool", optional)
        if message:
            words = "messageExpression must evaluate to a string"
            yield from self._wrong(message, f"{where}.messageExpression", "STRING", words, optional)
        if uses_old(source):
            if unstable:
                words = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {unstable}"
                yield Problem(f"{where}.rule", source, words)
        elif "optionalOldSelf" in rule:
            words = "may not be set if oldSelf is not used in rule"
            yield Problem(f"{where}.optionalOldSelf", str(optional).lower(), words)

    def _wrong(self, source: str, where: str, wanted: str, otherwise: str, optional: bool) -> Iterator[Problem]:
        whole = f"cel.bind(oldSelf, optional.of(previous),\n{source})" if optional else source
        try:
            found = self._environment.compile(rewritten(whole)).return_type().name()
        except RuntimeError as error:  # the library's word for what does not fit
            if all(_COMPARED.search(one) for one in str(error).split("ERROR: ")[1:]):
                return  # whole numbers and fractions may be compared: Kubernetes allows it, and so do we when it runs
            said = _STRUCT.sub("", TAIL.sub("", str(error)))
            if optional:
                said = _LINE.sub(lambda match: f"<input>:{int(match[1]) - 1}:", said)
            yield Problem(where, source, f"compilation failed: {said}")
            return
        if found not in (wanted, "DYN"):
            yield Problem(where, source, otherwise)


class _Messages:
    """The objects of a schema as protobuf messages in one file."""

    def __init__(self) -> None:
        from google.protobuf import descriptor_pb2  # comes with the CEL library

        self._file = descriptor_pb2.FileDescriptorProto(name="schema.proto", package=_PACKAGE, syntax="proto3")
        kinds = descriptor_pb2.FieldDescriptorProto
        self._numbers = {"int": kinds.TYPE_INT64, "double": kinds.TYPE_DOUBLE, "bool": kinds.TYPE_BOOL,
                         "string": kinds.TYPE_STRING, "bytes": kinds.TYPE_BYTES}  # fmt: skip
        self._message, self._one, self._many = kinds.TYPE_MESSAGE, kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED

    def pool(self) -> Any:
        from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, struct_pb2, timestamp_pb2

        pool = descriptor_pool.DescriptorPool()
        for module in (duration_pb2, struct_pb2, timestamp_pb2):
            known = descriptor_pb2.FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(known)
            pool.Add(known)
            self._file.dependency.append(known.name)
        pool.Add(self._file)
        return pool

    def type_of(self, shape: _Shape) -> Any:
        """The shape as a type of the CEL library."""
        from cel_expr_python import cel

        if shape.word == "message":
            return cel.Type(f"{_PACKAGE}.{shape.name}")
        if shape.inner is not None:
            inner = self.type_of(shape.inner)
            return cel.Type.List(inner) if shape.word == "list" else cel.Type.Map(cel.Type.STRING, inner)
        return getattr(cel.Type, shape.word.upper())

    def shape(self, schema: Json, *, root: bool = False) -> _Shape | None:
        """What CEL knows of a place in the schema; None where Kubernetes knows nothing, and hides it."""
        if schema.get("x-kubernetes-int-or-string"):
            return _Shape("dyn")
        kind = str(schema.get("type") or "")
        if kind == "string":
            return _Shape(_FORMATS.get(str(schema.get("format") or "").replace("-", ""), "string"))
        if kind in _SCALARS:
            return _Shape(_SCALARS[kind])
        below = schema.get("items") if kind == "array" else schema.get("additionalProperties")
        if kind == "array" or isinstance(below, dict):
            embedded = isinstance(below, dict) and bool(below.get("x-kubernetes-embedded-resource"))
            inner = self.shape(below, root=embedded) if isinstance(below, dict) else None
            return _Shape("list" if kind == "array" else "map", "", inner) if inner is not None else None
        return _Shape("message", self._add(schema, root)) if kind == "object" else None

    def _add(self, schema: Json, root: bool) -> str:
        properties = dict(schema.get("properties") or {})
        if root:
            properties |= {"apiVersion": _TEXT, "kind": _TEXT, "metadata": _OBJECT_META}
        message = self._file.message_type.add()
        message.name = f"Object{len(self._file.message_type)}"
        number = 0
        for name, child in properties.items():
            found = self.shape(child, root=bool(child.get("x-kubernetes-embedded-resource")))
            if found is None:
                continue
            for told in spellings(name):
                number += 1
                self._field(message, told, number, found)
        return str(message.name)

    def _field(self, message: Any, name: str, number: int, shape: _Shape) -> None:
        inner, label = shape, self._one
        if shape.inner is not None:
            flat = shape.inner.inner is None
            entry = "".join(word[:1].upper() + word[1:] for word in name.split("_")) + "Entry"
            if not flat or any(one.name == entry for one in message.nested_type):
                inner = _Shape("dyn")  # protobuf knows no lists of lists
            elif shape.word == "list":
                inner, label = shape.inner, self._many
            else:
                nested = message.nested_type.add(name=entry)
                nested.options.map_entry = True
                self._field(nested, "key", 1, _Shape("string"))
                self._field(nested, "value", 2, shape.inner)
                inner, label = _Shape("message", f"{message.name}.{entry}"), self._many
        field = message.field.add(name=name, number=number, label=label, json_name=f"f{number}")
        if inner.word in self._numbers:
            field.type = self._numbers[inner.word]
        else:
            field.type = self._message
            field.type_name = _WELL_KNOWN.get(inner.word) or f".{_PACKAGE}.{inner.name}"
