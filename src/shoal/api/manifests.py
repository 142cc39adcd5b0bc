"""Reading YAML that people and other programs hand us, within bounds.

Called by the command line and by tests for every manifest file. It reads as Kubernetes does (dates stay text, a key
given twice is an error) and never lets a document cost more than its size: depth, nodes, aliases, length are limited.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from shoal.api.meta import Json
from shoal.errors import BadInput

MOST_BYTES = 3 * 1024 * 1024  # what an API server takes in one request
MOST_NODES = 200_000
DEEPEST = 100

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})
_FALSE = frozenset({"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})
_INTEGER = re.compile(r"[-+]?(0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*)([eE][-+]?[0-9]+)?", re.ASCII)
_NOT_JSON = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", re.ASCII)
_LONGEST_NUMBER = 64


def read(text: str | bytes, source: str = "manifest") -> list[Json]:
    """Every document of a YAML or JSON text as an object; empty ones are left out. Raises BadInput with the line."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(raw) > MOST_BYTES:
        raise BadInput(f"{source} has {len(raw)} bytes; the limit is {MOST_BYTES}: split it")
    try:
        decoded = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{source} is not UTF-8 text at byte {error.start}; save it as UTF-8") from None
    if "\0" in decoded:
        raise BadInput(f"{source} contains a NUL character; it is not a manifest")
    documents = _ManifestReader(source).documents(decoded)
    found = []
    for position, document in enumerate(documents, 1):
        if document is None:
            continue
        if not isinstance(document, dict):
            raise BadInput(f"{source}, document {position}: expected an object with apiVersion and kind")
        found.append(document)
    return found


def line_of(text: bytes, number: int, path: Sequence[str | int]) -> int:
    """The line, from 1, on which a value stands in the object of this number, from 0; 0 where it is not written there.
    The text is one that `read` took: its size is known to be bounded."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    objects = [node for node in yaml.compose_all(text.decode(), Loader=loader) if isinstance(node, yaml.MappingNode)]
    node: Any = objects[number] if number < len(objects) else None
    line = 0
    for step in path:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if getattr(key, "value", None) == step]
            if not found:
                return 0
            line, node = found[-1][0].start_mark.line + 1, found[-1][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
        else:
            return 0
    return line


class _ManifestReader:
    """Builds plain values from YAML events, counting as it goes."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.nodes = 0
        self.anchors: dict[str, tuple[Any, int]] = {}

    def documents(self, text: str) -> list[Any]:
        import yaml  # costs 20 ms; only commands that read manifests pay

        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        found = []
        try:
            events = yaml.parse(text, Loader=loader)
            for event in events:
                if isinstance(event, yaml.DocumentStartEvent):
                    self.anchors = {}
                    found.append(self._value(events, next(events), 0, yaml))
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f", line {mark.line + 1}" if mark else ""
            raise BadInput(f"{self.source}{where}: {getattr(error, 'problem', None) or error}") from None
        return found

    def _value(self, events: Any, event: Any, depth: int, yaml: Any) -> Any:
        self._count(1, event)
        if depth > DEEPEST:
            self._refuse(event, f"nested deeper than {DEEPEST} levels")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                self._refuse(event, f"alias *{event.anchor} has no anchor before it")
            value, size = self.anchors[event.anchor]
            self._count(size, event)
            return msgspec.json.decode(msgspec.json.encode(value))
        before = self.nodes
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = []
            while not isinstance(event_ := next(events), yaml.SequenceEndEvent):
                value.append(self._value(events, event_, depth + 1, yaml))
        else:
            value = self._mapping(events, depth, yaml)
        if event.anchor:
            self.anchors[event.anchor] = (value, self.nodes - before)
        return value

    def _mapping(self, events: Any, depth: int, yaml: Any) -> Json:
        found: Json = {}
        merged: Json = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse(event, "a key must be plain text")
            self._count(1, event)
            key = event.value
            value = self._value(events, next(events), depth + 1, yaml)
            if key == "<<" and event.implicit[0]:
                for part in value if isinstance(value, list) else [value]:
                    merged.update({name: kept for name, kept in part.items() if name not in merged})
            elif key in found:
                self._refuse(event, f"key {key!r} is given twice")
            else:
                found[key] = value
        return {**merged, **found}

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        if not event.implicit[0] or event.style in ("'", '"', "|", ">"):
            if event.tag in ("tag:yaml.org,2002:binary", "!!binary"):
                return "".join(text.split())
            return text
        if text in _NULL:
            return None
        if text in _TRUE:
            return True
        if text in _FALSE:
            return False
        if _NOT_JSON.fullmatch(text):
            self._refuse(event, f"{text} has no JSON form; give a finite number")
        if _INTEGER.fullmatch(text):
            return self._integer(event, text)
        if _FLOAT.fullmatch(text):
            if len(text) > _LONGEST_NUMBER:
                self._refuse(event, "a number with more digits than any field can hold")
            number = float(text.replace("_", ""))
            if math.isinf(number):
                self._refuse(event, f"{text} is larger than any number in JSON")
            return number
        return text

    def _integer(self, event: Any, text: str) -> int:
        if len(text) > _LONGEST_NUMBER:
            self._refuse(event, "a number with more digits than any field can hold")
        digits = text.replace("_", "").lstrip("+-")
        base = {"0b": 2, "0x": 16, "0o": 8}.get(digits[:2], 8 if len(digits) > 1 and digits[0] == "0" else 10)
        try:
            number = int(digits[2:] if digits[:2] in ("0b", "0x", "0o") else digits, base)
        except ValueError:
            self._refuse(event, f"{text} is not a number")
        return -number if text.startswith("-") else number

    def _count(self, nodes: int, event: Any) -> None:
        self.nodes += nodes
        if self.nodes > MOST_NODES:
            self._refuse(event, f"more than {MOST_NODES} values once its aliases are expanded")

    def _refuse(self, event: Any, reason: str) -> Any:
        raise BadInput(f"{self.source}, line {event.start_mark.line + 1}: {reason}")
