"""The syntaxes that Kubernetes gives to names, labels and annotation keys, with its wording for what is wrong.

Each `check_…` returns an empty string when the text is legal, else the message.
"""

from __future__ import annotations

import re

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)

_TOO_LONG = "must be no more than {} characters"
_BAD_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_BAD_LABEL_1035 = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_BAD_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_BAD_QUALIFIED = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_BAD_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def check_label(text: str) -> str:
    """DNS-1123 label: a pod set, a container, a namespace."""
    if len(text) > 63:
        return _TOO_LONG.format(63)
    return "" if _LABEL.fullmatch(text) else _BAD_LABEL


def check_label_1035(text: str, longest: int = 63) -> str:
    """DNS-1035 label: what a Service may be called, therefore a RayCluster."""
    if len(text) > longest:
        return _TOO_LONG.format(longest)
    return "" if _LABEL_1035.fullmatch(text) else _BAD_LABEL_1035


def check_subdomain(text: str) -> str:
    """DNS-1123 subdomain: most object names."""
    if len(text) > 253:
        return _TOO_LONG.format(253)
    return "" if _SUBDOMAIN.fullmatch(text) else _BAD_SUBDOMAIN


def check_qualified(text: str) -> str:
    """`prefix/name`: keys of labels and annotations, names of resources."""
    prefix, slash, name = text.rpartition("/")
    if slash:
        if not prefix:
            return "prefix part must be non-empty"
        if "/" in prefix:
            return (
                "a valid label key must consist of alphanumeric characters, '-', '_' or '.', with an optional DNS "
                "subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )
        wrong = check_subdomain(prefix)
        if wrong:
            return f"prefix part {wrong}"
    if not name:
        return "name part must be non-empty"
    if len(name) > 63:
        return "name part must be no more than 63 characters"
    return "" if _QUALIFIED.fullmatch(name) else _BAD_QUALIFIED


def check_label_value(text: str) -> str:
    if len(text) > 63:
        return _TOO_LONG.format(63)
    return "" if not text or _QUALIFIED.fullmatch(text) else _BAD_VALUE
