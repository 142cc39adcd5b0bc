"""The JSONPath of printer columns and scale paths: fields, indexes, wildcards, filters such as `[?(@.type=="Ready")]`.

Compiled once per column; a path that leads nowhere finds nothing and never raises. The braces of kubectl's own
JSONPath are accepted and ignored.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from shoal.errors import BadInput

Step = Callable[[Any], Iterator[Any]]
Find = Callable[[Any], list[Any]]

_TOKEN = re.compile(
    r"""
    \.\.(?P<deep>[\w\-$]+|\*)                       # ..name
  | \.(?P<field>(?:[^.\[\]\\]|\\.)+)                # .name, dots escaped by a backslash
  | \[\s*\?\s*\((?P<filter>(?:[^()"']|"[^"]*"|'[^']*'|\([^()]*\))*)\)\s*\]
  | \[\s*(?P<index>-?\d+)\s*\]
  | \[\s*(?P<slice>-?\d*:-?\d*(?::-?\d*)?)\s*\]
  | \[\s*(?P<star>\*)\s*\]
  | \[\s*(?:'(?P<single>(?:[^'\\]|\\.)*)'|"(?P<double>(?:[^"\\]|\\.)*)")\s*\]
    """,
    re.VERBOSE,
)
_CONDITION = re.compile(r"""\s*(?P<left>@[^=!<>]*?)\s*(?:(?P<op>==|!=|>=|<=|>|<)\s*(?P<right>.+?))?\s*$""")


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip


@cache
def compiled(path: str) -> Find:
    """A function from an object to all values at `path`. Raises BadInput for what is no path."""
    steps = _steps(path.strip().removeprefix("{").removesuffix("}"), path)

    def find(obj: Any) -> list[Any]:
        found = [obj]
        for step in steps:
            found = [inner for value in found for inner in step(value)]
        return found

    return find


def _steps(rest: str, whole: str) -> list[Step]:
    rest = rest.removeprefix("$")
    if rest and rest[0] not in ".[":
        rest = "." + rest
    steps: list[Step] = []
    place = 0
    while place < len(rest):
        if rest[place:] == ".":
            break
        match = _TOKEN.match(rest, place)
        if match is None:
            raise BadInput(f"{whole!r} is not a JSONPath: cannot read {rest[place:][:40]!r}")
        steps.append(_step(match, whole))
        place = match.end()
    return steps


def _step(match: re.Match[str], whole: str) -> Step:
    groups = match.groupdict()
    if groups["deep"] is not None:
        return _descend(groups["deep"])
    for name in ("field", "single", "double"):
        if groups[name] is not None:
            plain = re.sub(r"\\(.)", r"\1", groups[name])
            return _each if plain == "*" and name == "field" else _field(plain)
    if groups["index"] is not None:
        return _item(int(groups["index"]))
    if groups["slice"] is not None:
        return _part(slice(*(int(number) if number else None for number in groups["slice"].split(":"))))
    return _each if groups["star"] else _filter(groups["filter"], whole)


def _field(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, dict) and name in value:
            yield value[name]

    return step


def _item(index: int) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and -len(value) <= index < len(value):
            yield value[index]

    return step


def _part(wanted: slice) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and wanted.step != 0:
            yield from value[wanted]

    return step


def _each(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()


def _descend(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, dict) and name in value:
            yield value[name]
        for inner in _each(value):
            yield from step(inner)

    return step


def _filter(text: str, whole: str) -> Step:
    match = _CONDITION.match(text)
    if match is None:
        raise BadInput(f"{whole!r} is not a JSONPath: cannot read the filter {text!r}")
    left = _steps(match["left"].strip()[1:], whole)
    sign = match["op"]
    right = _literal(match["right"], whole) if sign else None

    def holds(item: Any) -> bool:
        found = [item]
        for step in left:
            found = [inner for value in found for inner in step(value)]
        if not sign:
            return bool(found)
        return bool(found) and _compare(found[0], sign, right)

    def select(value: Any) -> Iterator[Any]:
        return (item for item in _each(value) if holds(item))

    return select


def _literal(text: str, whole: str) -> Any:
    text = text.strip()
    if text[:1] in "\"'" and text[-1:] == text[:1] and len(text) > 1:
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise BadInput(f"{whole!r} is not a JSONPath: {text!r} is neither text in quotes nor a number") from None


def _compare(left: Any, sign: str, right: Any) -> bool:
    if isinstance(left, bool) != isinstance(right, bool) or isinstance(left, str) != isinstance(right, str):
        return sign == "!="
    try:
        return bool(_OPERATORS[sign](left, right))
    except TypeError:
        return False
