"""The `format` keyword of CRD schemas: which texts and numbers each name accepts.

Only the formats that Kubernetes enforces; an unknown format is a comment, as there.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from shoal.api.times import parse_time
from shoal.errors import BadInput

_UUID = r"[0-9a-f]{8}-?[0-9a-f]{4}-?%s[0-9a-f]{3}-?%s[0-9a-f]{3}-?[0-9a-f]{12}"
_ANY = "[0-9a-f]"
_DURATION = re.compile(r"([-+]?(\d+(\.\d*)?|\.\d+)\s*(ns|us|µs|μs|ms|s|m|h|d|w))+|[-+]?0", re.ASCII)
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_HOSTNAME = re.compile(
    r"([a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?)(\.[a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?)*\.?"
)


def _pattern(expression: str, flags: int = re.IGNORECASE | re.ASCII) -> Callable[[str], bool]:
    found = re.compile(expression, flags).fullmatch
    return lambda text: found(text) is not None


def _parses(parse: Callable[[str], Any], *errors: type[Exception]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            parse(text)
        except errors:
            return False
        return True

    return check


def _uri(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return text.startswith("/") or bool(parts.scheme and (parts.netloc or parts.path))


def _byte(text: str) -> bool:
    try:
        base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)  # Go passes over line breaks
    except (binascii.Error, ValueError):
        return False
    return True


def _cidr(text: str) -> bool:
    return "/" in text and _parses(lambda value: ipaddress.ip_network(value, strict=False), ValueError)(text)


def _date(text: str) -> bool:
    return len(text) == 10 and _parses(lambda value: parse_time(f"{value}T00:00:00Z"), BadInput)(text)


TEXT: dict[str, Callable[[str], bool]] = {
    "uri": _uri,
    "email": _pattern(r"[^@\s<>]+@[^@\s<>]+"),
    "hostname": lambda text: len(text) <= 253 and _HOSTNAME.fullmatch(text) is not None,
    "ipv4": _parses(ipaddress.IPv4Address, ValueError),
    "ipv6": _parses(ipaddress.IPv6Address, ValueError),
    "cidr": _cidr,
    "mac": _pattern(r"([0-9a-f]{2}([:-]))([0-9a-f]{2}\2){4}[0-9a-f]{2}|([0-9a-f]{4}\.){2}[0-9a-f]{4}"),
    "uuid": _pattern(_UUID % (_ANY, _ANY)),
    "uuid3": _pattern(_UUID % ("3", _ANY)),
    "uuid4": _pattern(_UUID % ("4", "[89ab]")),
    "uuid5": _pattern(_UUID % ("5", "[89ab]")),
    "hexcolor": _pattern(r"#?([0-9a-f]{3}|[0-9a-f]{6})"),
    "rgbcolor": _pattern(r"rgb\(\s*\d{1,3}\s*,\s*\d{1,3}\s*,\s*\d{1,3}\s*\)"),
    "bsonobjectid": _pattern(r"[0-9a-f]{24}"),
    "byte": _byte,
    "date": _date,
    "datetime": _parses(parse_time, BadInput),
    "duration": lambda text: _DURATION.fullmatch(text) is not None,
    "k8sshortname": lambda text: _LABEL.fullmatch(text) is not None,
    "k8slongname": lambda text: len(text) <= 253 and all(_LABEL.fullmatch(part) for part in text.split(".")),
}

INTEGER: dict[str, tuple[int, int]] = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


def text_check(name: str) -> Callable[[str], bool] | None:
    """The check behind a string format; hyphens do not matter (date-time is datetime)."""
    return TEXT.get(name.replace("-", ""))
