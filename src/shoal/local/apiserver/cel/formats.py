"""CEL's `format` library as Kubernetes has it: `format.dns1123Label().validate(text)`, an optional list of complaints.

The CEL library cannot carry optional results of functions of ours, so the call is rewritten in the rule's text before
it is compiled: the complaints come from a plain function, and CEL itself makes them optional. Used by `rules.py` only.
"""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from collections.abc import Callable
from urllib.parse import urlsplit

from shoal.api.times import parse_time
from shoal.errors import BadInput
from shoal.local.apiserver.primitives import names

FUNCTION = "formatComplaints"
_CALL = re.compile(
    r"""\bformat\s*\.\s*(?:named\s*\(\s*(?:"(\w+)"|'(\w+)')\s*\)\s*\.\s*value\s*\(\s*\)|(\w+)\s*\(\s*\))\s*\.\s*validate\s*\("""
)
_TEXT = re.compile(r"""r?("([^"\\]|\\.)*"|'([^'\\]|\\.)*')""")


def rewritten(source: str) -> str:
    """The rule with every check of a format as CEL can run it."""
    while (call := _CALL.search(source)) is not None:
        end = _closing(source, call.end())
        name = call[1] or call[2] or call[3]
        argument = source[call.end() : end]
        source = f'{source[: call.start()]}optional.ofNonZeroValue({FUNCTION}("{name}", {argument})){source[end + 1 :]}'
    return source


def _closing(source: str, start: int) -> int:
    """Where the parenthesis that was opened before `start` closes, or the end of the text: the compiler says so."""
    depth, at = 1, start
    while at < len(source):
        literal = _TEXT.match(source, at)
        if literal is not None:
            at = literal.end()
            continue
        depth += {"(": 1, ")": -1}.get(source[at], 0)
        if not depth:
            return at
        at += 1
    return len(source)


def complaints(name: str, text: str) -> list[str]:
    """What is wrong with a text by the format of that name. Raises ValueError for an unknown format."""
    check = _FORMATS.get(name)
    if check is None:
        raise ValueError(f"no such format: {name}")
    return check(text)


def _prefix(check: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """A name that is still to be completed may end with a hyphen."""
    return lambda text: check(text[:-1] + "a" if text.endswith("-") else text)


def _parsed(what: str, parse: Callable[[str], object]) -> Callable[[str], list[str]]:
    def check(text: str) -> list[str]:
        try:
            return [] if parse(text) else [f"invalid {what}"]
        except (ValueError, BadInput, binascii.Error):
            return [f"invalid {what}"]

    return check


def _date(text: str) -> bool:
    return re.fullmatch(r"\d{4}-\d\d-\d\d", text) is not None and bool(parse_time(f"{text}T00:00:00Z") is not None)


_FORMATS: dict[str, Callable[[str], list[str]]] = {
    "dns1123Label": names.dns_label,
    "dns1123Subdomain": names.dns_subdomain,
    "dns1035Label": names.old_dns_label,
    "qualifiedName": names.qualified_name,
    "labelValue": names.label_value,
    "dns1123LabelPrefix": _prefix(names.dns_label),
    "dns1123SubdomainPrefix": _prefix(names.dns_subdomain),
    "dns1035LabelPrefix": _prefix(names.old_dns_label),
    "uri": _parsed("URL", lambda text: urlsplit(text).scheme or text.startswith("/")),
    "uuid": _parsed("UUID", lambda text: uuid.UUID(text)),
    "byte": _parsed("base64", lambda text: base64.b64decode(text, validate=True) is not None),
    "date": _parsed("date", _date),
    "datetime": _parsed("datetime", lambda text: parse_time(text) is not None),
}
