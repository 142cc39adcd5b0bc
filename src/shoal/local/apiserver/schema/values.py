"""A schema's rules for plain values: length, pattern and format of texts, bounds of numbers.

`checks.py` puts these closures together with those for objects, lists and alternatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from shoal.local.apiserver.primitives import formats
from shoal.local.apiserver.primitives.field_errors import InvalidField, Path, fault, shown, text, tokens
from shoal.local.apiserver.primitives.patterns import matcher

Json = dict[str, Any]
Check = Callable[[Any, Path, list[InvalidField]], None]


def named(path: Path) -> str:
    return "" if path is None else text(path)


def body(path: Path, value: Any, rule: str) -> InvalidField:
    return fault(path, "Invalid", value, f"{named(path)} in body {rule}")


# --- text


def text_checks(schema: Json) -> Iterable[Check]:
    longest, shortest = schema.get("maxLength"), schema.get("minLength")
    if longest is not None or shortest is not None or schema.get("pattern"):
        yield _length_check(longest, shortest, str(schema.get("pattern") or ""))
    accepts = formats.text_check(str(schema.get("format") or ""))
    if accepts is not None and not schema.get("x-kubernetes-int-or-string"):
        yield _format_check(str(schema["format"]), accepts)


def _length_check(longest: int | None, shortest: int | None, pattern: str) -> Check:
    """Length, then pattern; as Kubernetes, only the first that fails is named."""
    matches = matcher(pattern) if pattern else None

    def check(value: Any, path: Path, errors: list[InvalidField]) -> None:
        if longest is not None and len(value) > longest:
            unit = "byte" if longest == 1 else "bytes"
            errors.append(fault(path, "TooLong", detail=f"may not be more than {longest} {unit}"))
        elif shortest is not None and len(value) < shortest:
            errors.append(body(path, value, f"should be at least {shortest} chars long"))
        elif matches is not None and not matches(value):
            errors.append(body(path, value, f"should match '{pattern}'"))

    return check


def _format_check(name: str, accepts: Callable[[str], bool]) -> Check:
    def check(value: Any, path: Path, errors: list[InvalidField]) -> None:
        if not accepts(value):
            rule = f"{named(path)} in body must be of type {name}: {shown(value)}"
            errors.append(fault(path, "TypeInvalid", value, rule))

    return check


# --- numbers


def number_checks(schema: Json) -> Iterable[Check]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None:
        yield _bound_check(low, bool(schema.get("exclusiveMinimum")), below=True)
    if high is not None:
        yield _bound_check(high, bool(schema.get("exclusiveMaximum")), below=False)
    if schema.get("multipleOf"):
        yield _multiple_check(schema["multipleOf"])
    limits = formats.INTEGER.get(str(schema.get("format") or "")) if schema.get("type") == "integer" else None
    if limits is not None:
        yield _range_check(str(schema["format"]), limits)


def _bound_check(bound: float, exclusive: bool, *, below: bool) -> Check:
    side = "greater than" if below else "less than"
    rule = f"should be {side} {_plain(bound)}" if exclusive else f"should be {side} or equal to {_plain(bound)}"

    def check(value: Any, path: Path, errors: list[InvalidField]) -> None:
        good = value > bound if below else value < bound
        if not good and (exclusive or value != bound):
            errors.append(body(path, value, rule))

    return check


def _multiple_check(factor: float) -> Check:
    def check(value: Any, path: Path, errors: list[InvalidField]) -> None:
        quotient = value / factor
        if quotient != int(quotient):
            errors.append(body(path, value, f"should be a multiple of {_plain(factor)}"))

    return check


def _range_check(name: str, limits: tuple[int, int]) -> Check:
    low, high = limits

    def check(value: Any, path: Path, errors: list[InvalidField]) -> None:
        if not low <= value <= high:
            words = f"Checked value must be of type integer with format {name} in {named(path)}"
            errors.append(InvalidField("<nil>", "Invalid", f'Invalid value: "": {words}', tokens(path)))

    return check


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else repr(number)
