"""Kubernetes' own functions for CEL rules, on top of what the CEL library brings.

Quantities, addresses, URLs and versions travel through CEL as one-member maps tagged with what they are, so that
they compare by value. Used by `rules.py` only. Not here, because the library cannot carry its macros: comprehensions
over two variables.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from shoal.api.quantity import MAX_UNITS, NANO
from shoal.api.quantity import parse as parse_quantity
from shoal.errors import BadInput
from shoal.local.apiserver.cel import formats
from shoal.local.apiserver.primitives.patterns import find

_SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z.-]+))?(?:\+([0-9A-Za-z.-]+))?", re.ASCII)


def extension(cel: Any) -> Any:
    """All functions as one extension of the given library."""
    t = cel.Type
    anything, text, truth, whole, real = t.DYN, t.STRING, t.BOOL, t.INT, t.DOUBLE
    items = t.List(t.DYN)
    table: list[tuple[str, bool, Any, list[Any], Callable[..., Any]]] = [
        # name, member, result, parameters, implementation
        ("quantity", False, anything, [text], quantity),
        ("isQuantity", False, truth, [text], _succeeds(quantity)),
        ("sign", True, whole, [anything], lambda q: (_nano(q) > 0) - (_nano(q) < 0)),
        ("isInteger", True, truth, [anything], lambda q: _nano(q) % NANO == 0 and abs(_nano(q)) <= MAX_UNITS * NANO),
        ("asInteger", True, whole, [anything], _as_integer),
        ("asApproximateFloat", True, real, [anything], lambda q: _nano(q) / NANO),
        ("add", True, anything, [anything, anything], lambda q, other: _tagged(_nano(q) + _amount(other))),
        ("sub", True, anything, [anything, anything], lambda q, other: _tagged(_nano(q) - _amount(other))),
        ("compareTo", True, whole, [anything, anything], _compare),
        ("isLessThan", True, truth, [anything, anything], lambda a, b: _compare(a, b) < 0),
        ("isGreaterThan", True, truth, [anything, anything], lambda a, b: _compare(a, b) > 0),
        ("semver", False, anything, [text], semver),
        ("semver", False, anything, [text, truth], lambda value, loose: semver(_loosened(value) if loose else value)),
        ("isSemver", False, truth, [text], _succeeds(semver)),
        ("major", True, whole, [anything], lambda v: _parts(v)[0]),
        ("minor", True, whole, [anything], lambda v: _parts(v)[1]),
        ("patch", True, whole, [anything], lambda v: _parts(v)[2]),
        ("ip", False, anything, [text], ip),
        ("isIP", False, truth, [text], _succeeds(ip)),
        ("ip.isCanonical", False, truth, [text], lambda value: ip(value)["$ip"] == value),
        ("family", True, whole, [anything], lambda a: _address(a).version),
        ("isUnspecified", True, truth, [anything], lambda a: _address(a).is_unspecified),
        ("isLoopback", True, truth, [anything], lambda a: _address(a).is_loopback),
        ("isLinkLocalMulticast", True, truth, [anything], _link_local_multicast),
        ("isLinkLocalUnicast", True, truth, [anything], lambda a: _address(a).is_link_local),
        ("isGlobalUnicast", True, truth, [anything], _global_unicast),
        ("cidr", False, anything, [text], cidr),
        ("isCIDR", False, truth, [text], _succeeds(cidr)),
        ("containsIP", True, truth, [anything, anything], lambda c, a: _address(a) in _interface(c).network),
        ("containsCIDR", True, truth, [anything, anything], _contains_cidr),
        ("ip", True, anything, [anything], lambda c: {"$ip": str(_interface(c).ip)}),
        ("masked", True, anything, [anything], lambda c: {"$cidr": str(_interface(c).network)}),
        ("prefixLength", True, whole, [anything], lambda c: _interface(c).network.prefixlen),
        ("url", False, anything, [text], url),
        ("isURL", False, truth, [text], _succeeds(url)),
        ("getScheme", True, text, [anything], lambda u: urlsplit(u["$url"]).scheme),
        ("getHost", True, text, [anything], lambda u: urlsplit(u["$url"]).netloc.rpartition("@")[2]),
        ("getHostname", True, text, [anything], lambda u: urlsplit(u["$url"]).hostname or ""),
        ("getPort", True, text, [anything], lambda u: str(urlsplit(u["$url"]).port or "")),
        ("getEscapedPath", True, text, [anything], lambda u: quote(urlsplit(u["$url"]).path, safe="/%:@&=+$,;~!'()*")),
        ("getQuery", True, anything, [anything], lambda u: parse_qs(urlsplit(u["$url"]).query, keep_blank_values=True)),
        ("string", False, text, [t.Map(text, anything)], _written),
        (formats.FUNCTION, False, t.List(text), [text, text], formats.complaints),
        ("find", True, text, [text, text], _find),
        ("findAll", True, t.List(text), [text, text], lambda value, pattern: _find_all(value, pattern, -1)),
        ("findAll", True, t.List(text), [text, text, whole], _find_all),
        ("isSorted", True, truth, [items], lambda values: all(a <= b for a, b in pairwise(values))),
        ("sum", True, anything, [items], lambda values: sum(values[1:], values[0]) if values else 0),
        ("min", True, anything, [items], lambda values: _extreme(min, values)),
        ("max", True, anything, [items], lambda values: _extreme(max, values)),
        ("indexOf", True, whole, [items, anything], lambda values, wanted: _place(values, wanted)),
        ("lastIndexOf", True, whole, [items, anything], _last_place),
        ("distinct", True, items, [items], _distinct),
        ("reverse", True, items, [items], lambda values: values[::-1]),
        ("sort", True, items, [items], sorted),
        ("slice", True, items, [items, whole, whole], _slice),
        ("flatten", True, items, [items], _flatten),
        ("lists.range", False, t.List(whole), [whole], lambda size: list(range(min(size, 10_000)))),
        ("sets.contains", False, truth, [items, items], lambda a, b: _marks(b) <= _marks(a)),
        ("sets.equivalent", False, truth, [items, items], _equivalent),
        ("sets.intersects", False, truth, [items, items], lambda a, b: bool(_marks(a) & _marks(b))),
    ]  # fmt: skip
    overloads: dict[str, list[Any]] = {}
    for number, (name, member, result, parameters, act) in enumerate(table):
        one = cel.Overload(f"shoal_{number}", result, parameters, is_member=member, impl=act)
        overloads.setdefault(name, []).append(one)
    return cel.CelExtension("kubernetes", [cel.FunctionDecl(name, found) for name, found in overloads.items()])


def _succeeds(parse: Callable[[str], Any]) -> Callable[[str], bool]:
    def check(value: str) -> bool:
        try:
            parse(value)
        except ValueError:
            return False
        return True

    return check


# --- quantities and versions


def quantity(value: str) -> dict[str, str]:
    try:
        return _tagged(parse_quantity(value).nano)
    except BadInput as error:
        raise ValueError(str(error)) from None


def _tagged(nano: int) -> dict[str, str]:
    return {"$quantity": str(nano)}  # text: billionths do not fit 64 bits


def _nano(value: Any) -> int:
    if isinstance(value, dict) and "$quantity" in value:
        return int(value["$quantity"])
    raise ValueError("no such overload: not a quantity")


def _amount(value: Any) -> int:
    return value * NANO if isinstance(value, int) else _nano(value)


def _as_integer(value: Any) -> int:
    nano = _nano(value)
    if nano % NANO:
        raise ValueError("cannot convert value to integer")
    return nano // NANO


def _compare(left: Any, right: Any) -> int:
    if isinstance(left, dict) and "$semver" in left:
        a, b = _order(left), _order(right)
        return (a > b) - (a < b)
    first, second = _nano(left), _nano(right)
    return (first > second) - (first < second)


def semver(value: str) -> dict[str, str]:
    if _SEMVER.fullmatch(value) is None:
        raise ValueError(f"{value!r} is not a semantic version")
    return {"$semver": value}


def _loosened(value: str) -> str:
    core, mark, rest = value.removeprefix("v").partition("-")
    numbers = [str(int(part)) if part.isdecimal() else part for part in core.split(".")]
    return ".".join([*numbers, "0", "0"][: max(3, len(numbers))]) + mark + rest


def _parts(value: Any) -> tuple[int, int, int]:
    found = _SEMVER.fullmatch(value["$semver"])
    assert found is not None  # it was made by semver()
    return int(found[1]), int(found[2]), int(found[3])


def _order(value: Any) -> tuple[Any, ...]:
    """Sorts as versions do: a pre-release is before its release, numbers before words."""
    found = _SEMVER.fullmatch(value["$semver"])
    assert found is not None
    words = [(0, int(w), "") if w.isdecimal() else (1, 0, w) for w in (found[4] or "").split(".") if w]
    return (*_parts(value), not found[4], words)


# --- addresses


def ip(value: str) -> dict[str, str]:
    found = ipaddress.ip_address(value)
    if getattr(found, "scope_id", None) or getattr(found, "ipv4_mapped", None):
        raise ValueError(f"{value!r} carries a zone or an IPv4 address inside IPv6")
    return {"$ip": str(found)}


def cidr(value: str) -> dict[str, str]:
    if "/" not in value:
        raise ValueError(f"{value!r} has no prefix length")
    return {"$cidr": str(ipaddress.ip_interface(value))}


def _address(value: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(value if isinstance(value, str) else value["$ip"])


def _interface(value: Any) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
    return ipaddress.ip_interface(value if isinstance(value, str) else value["$cidr"])


def _contains_cidr(outer: Any, inner: Any) -> bool:
    a, b = _interface(outer).network, _interface(inner).network
    return a.version == b.version and b.subnet_of(a)  # type: ignore[arg-type]  # both of one version


def _link_local_multicast(value: Any) -> bool:
    found = _address(value)
    block = ipaddress.ip_network("224.0.0.0/24" if found.version == 4 else "ff02::/16")
    return found in block


def _global_unicast(value: Any) -> bool:
    found = _address(value)
    broadcast = str(found) == "255.255.255.255"
    return not (found.is_unspecified or found.is_loopback or found.is_multicast or found.is_link_local or broadcast)


def url(value: str) -> dict[str, str]:
    parts = urlsplit(value)
    if not (value.startswith("/") or (parts.scheme and (parts.netloc or parts.path))) or " " in value:
        raise ValueError(f"URL parse error during conversion from string: {value!r}")
    parts.port  # noqa: B018  raises for a port that is no number
    return {"$url": value}


def _written(value: dict[str, Any]) -> str:
    for tag in ("$ip", "$cidr", "$url", "$semver"):
        if tag in value:
            return str(value[tag])
    raise ValueError("no such overload: string(map)")


# --- lists and patterns


def _find(value: str, pattern: str) -> str:
    found = find(pattern, value)
    return found[0] if found else ""


def _find_all(value: str, pattern: str, most: int) -> list[str]:
    return find(pattern, value, most)


def _extreme(choose: Callable[[Any], Any], values: list[Any]) -> Any:
    if not values:
        raise ValueError(f"{choose.__name__} called on empty list")
    return choose(values)


def _place(values: list[Any], wanted: Any) -> int:
    return next((index for index, value in enumerate(values) if value == wanted), -1)


def _last_place(values: list[Any], wanted: Any) -> int:
    place = _place(values[::-1], wanted)
    return -1 if place < 0 else len(values) - 1 - place


def _flatten(values: list[Any]) -> list[Any]:
    return [item for value in values for item in (value if isinstance(value, list) else [value])]


def _equivalent(left: list[Any], right: list[Any]) -> bool:
    return _marks(left) == _marks(right)


def _mark(value: Any) -> Any:
    """By which equal values are known, in a set: looking for each among all would take the square of their number."""
    try:
        hash(value)
        return value
    except TypeError:
        return repr(value)


def _marks(values: list[Any]) -> set[Any]:
    return {_mark(value) for value in values}


def _distinct(values: list[Any]) -> list[Any]:
    return list({_mark(value): value for value in reversed(values)}.values())[::-1]


def _slice(values: list[Any], start: int, end: int) -> list[Any]:
    if not 0 <= start <= end <= len(values):
        raise ValueError(f"cannot slice({start}, {end}), list is length {len(values)}")
    return values[start:end]
