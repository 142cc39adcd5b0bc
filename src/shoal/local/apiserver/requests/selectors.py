"""Label and field selectors: which objects a list, a watch or a deletecollection means.

Parsed once per request, then asked once per object. Label requirements read the labels that a record keeps; field
requirements decode only the paths that they name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from shoal.api.meta import Json
from shoal.local.apiserver.kinds.resources import Resource, ServedVersion
from shoal.local.apiserver.primitives.status import Refused, bad_request
from shoal.local.apiserver.requests.field_selectors import FIELDS, parse_fields, reader
from shoal.local.apiserver.storage.collection import StoredObject

_KEY = re.compile(
    r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII
)
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_TOKEN = re.compile(r"\s*(!=|==|=|!|,|\(|\)|<|>|[^\s,()=!<>]+)\s*")

Labels = dict[str, str]
Test = Callable[[Labels], bool]


class Selection:
    """Both selectors of a request. An empty one matches everything and costs nothing."""

    __slots__ = ("_fields", "_labels", "_read", "everything", "name", "namespace")

    def __init__(self, labels: list[Test], fields: list[tuple[str, bool, str]]) -> None:
        self._labels = labels
        self.name: str | None = None
        self.namespace: str | None = None
        others = []
        for path, equal, value in fields:
            if path == "metadata.name" and equal and self.name is None:
                self.name = value
            elif path == "metadata.namespace" and equal and self.namespace is None:
                self.namespace = value
            else:
                others.append((path, equal, value))
        self._fields = others
        self._read = reader(tuple(path for path, _, _ in others)) if others else None
        self.everything = not labels and not fields

    @property
    def reads_fields(self) -> bool:
        """Whether an object must be looked into, beyond its name and labels."""
        return self._read is not None

    def matches(self, record: StoredObject) -> bool:
        if self.everything:
            return True
        if self.name is not None and record.name != self.name:
            return False
        if self.namespace is not None and record.namespace != self.namespace:
            return False
        if self._labels:
            labels = record.labels
            for test in self._labels:
                if not test(labels):
                    return False
        if self._read is not None:
            values = self._read(record)
            for value, (_, equal, wanted) in zip(values, self._fields, strict=True):
                if (value == wanted) is not equal:
                    return False
        return True


EVERYTHING = Selection([], [])


def selection(resource: Resource, version: ServedVersion, label_selector: str, field_selector: str) -> Selection:
    """Raises a 400 with the words of Kubernetes for what cannot be parsed or is not selectable."""
    if not label_selector and not field_selector:
        return EVERYTHING
    fields = parse_fields(field_selector) if field_selector else []
    allowed = ("metadata.name", "metadata.namespace", *FIELDS.get(resource.name, ()), *version.selectable)
    for path, _, _ in fields:
        if path not in allowed:
            raise bad_request(f"field label not supported: {path}")
    return Selection(parse_labels(label_selector) if label_selector else [], fields)


# --- labels


def _unparsable(why: str) -> Refused:
    return bad_request(f"unable to parse requirement: {why}")


@lru_cache(maxsize=512)
def _parsed_labels(text: str) -> tuple[Test, ...]:
    tokens = _tokens(text)
    tests: list[Test] = []
    at = 0
    while at < len(tokens):
        negated = tokens[at] == "!"
        at += negated
        key = _key(tokens[at] if at < len(tokens) else "")
        at += 1
        operator = tokens[at] if at < len(tokens) else ","
        if negated or operator == ",":
            if negated and operator != ",":
                raise _unparsable(f"found '{operator}', expected: ','")
            tests.append(_absent(key) if negated else _present(key))
        elif operator in ("=", "==", "!="):
            value = ""
            if at + 1 < len(tokens) and tokens[at + 1] != ",":
                at += 1
                value = tokens[at]
            tests.append(_one_of(key, frozenset((_value(key, value),)), operator != "!="))
            at += 1
        elif operator in ("<", ">"):
            at += 1
            bound = tokens[at] if at < len(tokens) else ""
            if not re.fullmatch(r"-?\d{1,18}", bound, re.ASCII):
                raise _unparsable(
                    f"values[0]: Invalid value: \"{bound}\": for 'Gt', 'Lt' operators, the value must be an integer"
                )
            tests.append(_compared(key, operator, int(_value(key, bound))))
            at += 1
        elif operator in ("in", "notin"):
            values, at = _set(tokens, at + 1)
            tests.append(_one_of(key, frozenset(_value(key, value) for value in values), operator == "in"))
        else:
            raise _unparsable(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")
        if at < len(tokens):
            if tokens[at] != ",":
                raise _unparsable(f"found '{tokens[at]}', expected: ',' or 'end of string'")
            at += 1
            if at == len(tokens):
                raise _unparsable("found '', expected: identifier after ','")
    return tuple(tests)


def parse_labels(text: str) -> list[Test]:
    return list(_parsed_labels(text))


def label_selector(selector: Json | None) -> Test:
    """A `metav1.LabelSelector` as a test. None matches nothing, an empty one everything."""
    if selector is None:
        return lambda labels: False
    tests: list[Test] = [
        _one_of(key, frozenset((value,)), True) for key, value in (selector.get("matchLabels") or {}).items()
    ]
    for one in selector.get("matchExpressions") or ():
        key, values = one.get("key", ""), frozenset(one.get("values") or ())
        match one.get("operator"):
            case "In":
                tests.append(_one_of(key, values, True))
            case "NotIn":
                tests.append(_one_of(key, values, False))
            case "Exists":
                tests.append(_present(key))
            case "DoesNotExist":
                tests.append(_absent(key))
            case other:
                raise bad_request(f'"{other}" is not a valid label selector operator')
    return lambda labels: all(test(labels) for test in tests)


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _unparsable(f"found '{text[at : at + 20]}'")
        tokens.append(match.group(1))
        at = match.end()
    return tokens


def _set(tokens: list[str], at: int) -> tuple[list[str], int]:
    if at >= len(tokens) or tokens[at] != "(":
        raise _unparsable(f"found '{tokens[at] if at < len(tokens) else ''}', expected: '('")
    values, at, open_value = [], at + 1, True
    while at < len(tokens) and tokens[at] != ")":
        if tokens[at] == ",":
            if open_value:
                values.append("")
            open_value = True
        else:
            values.append(tokens[at])
            open_value = False
        at += 1
    if at >= len(tokens):
        raise _unparsable("found '', expected: ',' or ')'")
    if open_value:
        values.append("")
    return values, at + 1


def _key(text: str) -> str:
    if not _KEY.fullmatch(text):
        raise _unparsable(
            f'<nil>: Invalid value: "{text[:80]}": name part must consist of alphanumeric characters, '
            "'-', '_' or '.', and must start and end with an alphanumeric character"
        )
    return text


def _value(key: str, text: str) -> str:
    if not _VALUE.fullmatch(text):
        raise _unparsable(
            f'values[0][{key}]: Invalid value: "{text[:80]}": a valid label must be an empty string or consist '
            "of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
        )
    return text


def _present(key: str) -> Test:
    return lambda labels: key in labels


def _absent(key: str) -> Test:
    return lambda labels: key not in labels


def _one_of(key: str, values: frozenset[str], inside: bool) -> Test:
    if inside:
        if len(values) == 1:
            (only,) = values
            return lambda labels: labels.get(key) == only
        return lambda labels: key in labels and labels[key] in values
    return lambda labels: key not in labels or labels[key] not in values


def _compared(key: str, operator: str, bound: int) -> Test:
    def test(labels: Labels) -> bool:
        text = labels.get(key, "")
        if not re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
            return False
        return int(text) > bound if operator == ">" else int(text) < bound

    return test
