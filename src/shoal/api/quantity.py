"""Kubernetes quantities, exactly.

A quantity is text in manifests and an integer everywhere in Shoal: milli-units for cpu, whole units for all else, both
rounded up as Kubernetes' `MilliValue()` and `Value()` do. No floats, no 32-bit traps. Called wherever a manifest meets
a sum; `show` is the way back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import msgspec

from shoal.errors import BadInput

Format = Literal["decimal", "binary", "exponent"]

NANO = 10**9
MAX_UNITS = 2**63 - 1  # the API server caps larger values to this

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_NAME = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_NAME = {shift: suffix for suffix, shift in _BINARY.items()}
_PATTERN = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)([eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i|)", re.ASCII)
_LONGEST = 128  # an honest quantity is far shorter; bounds the arithmetic on hostile input
_MOST_BITS = 400
_LARGEST_POWER = 256  # beyond it every text of that length is capped or rounded to the same value


class Quantity(msgspec.Struct, frozen=True):
    """An exact amount in billionths, with the style it was written in."""

    nano: int
    format: Format = "decimal"

    @property
    def units(self) -> int:
        """Whole units, rounded away from zero, as `Value()`."""
        return _rounded(self.nano, NANO)

    @property
    def milli(self) -> int:
        """Thousandths, rounded away from zero, as `MilliValue()`."""
        return _rounded(self.nano, 10**6)

    def __str__(self) -> str:
        return _print(self.nano, self.format)


def parse(text: str | int | float) -> Quantity:
    """Read a quantity. Raises BadInput with the text at fault; numbers are read as YAML would have written them."""
    written = _plain(text) if isinstance(text, (int, float)) and not isinstance(text, bool) else text
    found = _read(written) if isinstance(written, str) and len(written) <= _LONGEST else None
    if found is None:
        raise BadInput(f"{_shown(text)} is not a quantity; write a number with an optional suffix such as 500m or 2Gi")
    return found


@lru_cache(maxsize=4096)  # a cluster asks for the same few amounts again and again
def _read(written: str) -> Quantity | None:
    match = _PATTERN.fullmatch(written)
    if match is None:
        return None
    sign, digits, suffix = match.groups()
    whole, _, fraction = digits.partition(".")
    mantissa = int((whole + fraction) or "0")
    exponent = -len(fraction)
    shift = 0
    style: Format = "decimal"
    if suffix in _BINARY:
        shift, style = _BINARY[suffix], "binary"
    elif suffix in _DECIMAL:
        exponent += _DECIMAL[suffix]
    else:
        style = "exponent"
        power = max(-_LARGEST_POWER, min(_LARGEST_POWER, int(suffix[1:])))
        exponent += power
    scaled = (mantissa << shift) * NANO
    nano = scaled * 10**exponent if exponent >= 0 else -(-scaled // 10**-exponent)
    nano = min(nano, MAX_UNITS * NANO)
    return Quantity(-nano if sign == "-" else nano, style)


def amount(resource: str, text: str | int | float) -> int:
    """The engine's integer for one resource: milli for cpu, units for everything else."""
    quantity = parse(text)
    return quantity.milli if counts_in_milli(resource) else quantity.units


def amounts(resources: Mapping[str, str | int | float] | None) -> dict[str, int]:
    """A whole ResourceList as integers."""
    return {name: amount(name, text) for name, text in (resources or {}).items()}


def show(resource: str, value: int) -> str:
    """The way back: an engine integer as Kubernetes prints it. Memory-like resources print in binary units."""
    if counts_in_milli(resource):
        return _print(value * 10**6, "decimal")
    binary = resource in ("memory", "ephemeral-storage", "storage") or resource.startswith("hugepages-")
    return _print(value * NANO, "binary" if binary else "decimal")


def counts_in_milli(resource: str) -> bool:
    return resource == "cpu" or resource in ("requests.cpu", "limits.cpu")


def _print(nano: int, style: Format) -> str:
    if nano == 0:
        return "0"
    sign, rest = ("-", -nano) if nano < 0 else ("", nano)
    if style == "binary" and rest >= 1024 * NANO:
        units, shift = -(-rest // NANO), 0
        while shift < 60 and units % 1024 == 0:
            units, shift = units // 1024, shift + 10
        return f"{sign}{units}{_BINARY_NAME.get(shift, '')}"
    exponent = -9
    while exponent < 18 and rest % 1000 == 0:
        rest, exponent = rest // 1000, exponent + 3
    if style == "exponent":
        return f"{sign}{rest}e{exponent}" if exponent else f"{sign}{rest}"
    return f"{sign}{rest}{_DECIMAL_NAME[exponent]}"


def _rounded(nano: int, step: int) -> int:
    whole = -(-abs(nano) // step)
    return whole if nano >= 0 else -whole


def _plain(number: int | float) -> str:
    if isinstance(number, int):
        return str(number) if number.bit_length() < _MOST_BITS else "a number that no field can hold"
    return repr(number)


def _shown(text: object) -> str:
    if isinstance(text, int) and text.bit_length() >= _MOST_BITS:
        return "a number of that size"
    shown = repr(text)
    return shown if len(shown) <= 40 else shown[:37] + "..."
