"""Label and field selectors, as the API server reads them.

Parsed once into a function over labels or over an object, so that in-process servers and caches filter as a real
server would. A selector that does not parse is refused with what was wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from shoal.api.meta import Json
from shoal.errors import BadInput

Labels = Mapping[str, str]

_SET = re.compile(r"\s*([^\s!=,()]+)\s+(in|notin)\s*\(([^)]*)\)\s*")
_PAIR = re.compile(r"\s*([^\s!=,()]+)\s*(==|=|!=)\s*([^\s!=,()]*)\s*")
_EXISTS = re.compile(r"\s*(!?)\s*([^\s!=,()]+)\s*")
_COMMA_OUTSIDE = re.compile(r",(?![^(]*\))")


def label_selector(text: str) -> Callable[[Labels], bool]:
    """`app=web,tier in (a, b),!old` as a test on labels. Empty selects everything."""
    tests = [_label_requirement(part) for part in _COMMA_OUTSIDE.split(text)] if text.strip() else []
    return lambda labels: all(test(labels) for test in tests)


def field_selector(text: str) -> Callable[[Json], bool]:
    """`metadata.name=web,spec.nodeName!=` as a test on an object. A missing field counts as empty."""
    tests = [_field_requirement(part) for part in text.split(",")] if text.strip() else []
    return lambda obj: all(test(obj) for test in tests)


def _label_requirement(part: str) -> Callable[[Labels], bool]:
    if found := _SET.fullmatch(part):
        key, operator, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        return lambda labels: (key in labels and labels[key] in values) == (operator == "in")
    if found := _PAIR.fullmatch(part):
        key, operator, value = found.groups()
        return lambda labels: (labels.get(key) == value) == (operator != "!=")
    if found := _EXISTS.fullmatch(part):
        absent, key = found.groups()
        return lambda labels: (key in labels) != bool(absent)
    raise BadInput(
        f"unable to parse the label selector part {part.strip()!r}: write key=value, key in (a,b), key or !key"
    )


def _field_requirement(part: str) -> Callable[[Json], bool]:
    found = _PAIR.fullmatch(part)
    if found is None:
        raise BadInput(f"unable to parse the field selector part {part.strip()!r}: write path=value or path!=value")
    path, operator, value = found.groups()
    names = path.split(".")

    def test(obj: Json) -> bool:
        here: Any = obj
        for name in names:
            here = here.get(name) if isinstance(here, dict) else None
        return ("" if here is None else _plain(here)) == value if operator != "!=" else _plain(here) != value

    return test


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
