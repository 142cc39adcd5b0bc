"""Names, labels and keys: which texts Kubernetes accepts, and its words for those it does not.

Each check returns the complaints about one text, none if it is good.
"""

from __future__ import annotations

import re

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_OLD_LABEL = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = rf"({_QUALIFIED})?"
_CONFIG_KEY = r"[-._a-zA-Z0-9]+"
_ENV = r"[-._a-zA-Z][-._a-zA-Z0-9]*"
_compiled = {
    text: re.compile(text, re.ASCII) for text in (_LABEL, _SUBDOMAIN, _OLD_LABEL, _QUALIFIED, _VALUE, _CONFIG_KEY, _ENV)
}


def _check(text: str, pattern: str, longest: int, words: str, unit: str = "bytes") -> list[str]:
    found = [f"must be no more than {longest} {unit}"] if len(text.encode()) > longest else []
    if _compiled[pattern].fullmatch(text) is None:
        found.append(words + f", regex used for validation is '{pattern}')")
    return found


def dns_label(text: str) -> list[str]:
    return _check(
        text,
        _LABEL,
        63,
        "a lowercase RFC 1123 label must consist of lower case alphanumeric "
        "characters or '-', "
        "and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc'",
    )


def dns_subdomain(text: str) -> list[str]:
    return _check(
        text,
        _SUBDOMAIN,
        253,
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric "
        "characters, '-' or '.', and must start and end with an alphanumeric character (e.g. "
        "'example.com'",
        unit="characters",
    )


def old_dns_label(text: str) -> list[str]:
    return _check(
        text,
        _OLD_LABEL,
        63,
        "a DNS-1035 label must consist of lower case alphanumeric characters or "
        "'-', start "
        "with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or "
        "'abc-123'",
    )


def path_segment(text: str) -> list[str]:
    if text in (".", ".."):
        return [f"may not be '{text}'"]
    return [f"may not contain '{part}'" for part in ("/", "%") if part in text]


def qualified_name(text: str) -> list[str]:
    prefix, slash, name = text.rpartition("/")
    if prefix.count("/"):
        return [
            "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with "
            "an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
            f"'{_QUALIFIED}') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    found = []
    if slash:
        found += (
            ["prefix part must be non-empty"] if not prefix else [f"prefix part {c}" for c in dns_subdomain(prefix)]
        )
    if not name:
        found.append("name part must be non-empty")
    return found + [
        f"name part {complaint}"
        for complaint in _check(
            name,
            _QUALIFIED,
            63,
            "must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
            "with an "
            "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc'",
        )
    ]


def label_value(text: str) -> list[str]:
    return _check(
        text,
        _VALUE,
        63,
        "a valid label must be an empty string or consist of alphanumeric "
        "characters, '-', '_' "
        "or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or "
        "'my_value',  or "
        "'12345'",
    )


def config_key(text: str) -> list[str]:
    if text in (".", "..") or text.startswith(".."):
        return ["must not be '.' or begin with '..'"]
    return _check(
        text,
        _CONFIG_KEY,
        253,
        "a valid config key must consist of alphanumeric characters, '-', '_' "
        "or '.' "
        "(e.g. 'key.name',  or 'KEY_NAME',  or 'key-name'",
    )


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
