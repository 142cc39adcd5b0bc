"""Names, labels and keys: which texts Kubernetes accepts, and its words for those it does not.

Each check returns the complaints about one text, none if it is good.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"


def _rule(pattern: str, longest: int, words: str, unit: str = "bytes") -> Callable[[str], list[str]]:
    """A kind of text: how long it may be, its pattern, and Kubernetes' words for both."""
    fits = re.compile(pattern, re.ASCII).fullmatch
    too_long = f"must be no more than {longest} {unit}"
    wrong = f"{words}, regex used for validation is '{pattern}')"

    def check(text: str) -> list[str]:
        found = [too_long] if len(text.encode()) > longest else []
        return found if fits(text) is not None else [*found, wrong]

    return check


dns_label = _rule(
    _LABEL,
    63,
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    "and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc'",
)
dns_subdomain = _rule(
    rf"{_LABEL}(\.{_LABEL})*",
    253,
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character (e.g. 'example.com'",
    unit="characters",
)
old_dns_label = _rule(
    r"[a-z]([-a-z0-9]*[a-z0-9])?",
    63,
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123'",
)
label_value = _rule(
    rf"({_QUALIFIED})?",
    63,
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345'",
)
_SHORT_NAME = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    "(e.g. 'MyName',  or 'my.name',  or '123-abc'"
)
_name_part = _rule(_QUALIFIED, 63, _SHORT_NAME)
_config_key = _rule(
    r"[-._a-zA-Z0-9]+",
    253,
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' "
    "(e.g. 'key.name',  or 'KEY_NAME',  or 'key-name'",
)


def path_segment(text: str) -> list[str]:
    if text in (".", ".."):
        return [f"may not be '{text}'"]
    return [f"may not contain '{part}'" for part in ("/", "%") if part in text]


def qualified_name(text: str) -> list[str]:
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        return [
            f"a valid label key {_SHORT_NAME}, regex used for validation is '{_QUALIFIED}') with an optional DNS "
            "subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    found = []
    if slash:
        found += [f"prefix part {c}" for c in dns_subdomain(prefix)] if prefix else ["prefix part must be non-empty"]
    if not name:
        found.append("name part must be non-empty")
    return found + [f"name part {complaint}" for complaint in _name_part(name)]


def config_key(text: str) -> list[str]:
    if text == "." or text.startswith(".."):
        return ["must not be '.' or begin with '..'"]
    return _config_key(text)


def env_name(text: str) -> list[str]:
    if not text or "=" in text or not text.isprintable() or not text.isascii():
        return ["a valid environment variable name must consist only of printable ASCII characters other than '='"]
    return []


def port_name(text: str) -> list[str]:
    found = [] if len(text) <= 15 else ["must be no more than 15 characters"]
    if not re.fullmatch(r"[-a-z0-9]+", text, re.ASCII):
        found.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    elif not re.search("[a-z]", text):
        found.append("must contain at least one letter (a-z)")
    if "--" in text:
        found.append("must not contain consecutive hyphens")
    if text[:1] == "-" or text[-1:] == "-":
        found.append("must not begin or end with a hyphen")
    return found


def port_number(value: object) -> list[str]:
    return [] if isinstance(value, int) and 1 <= value <= 65535 else ["must be between 1 and 65535, inclusive"]
