"""What gangs are called where people read of them: by the object they made, and only to those of its namespace.

The engine knows a gang by its key, `Kind/namespace/name`. A queued job stands in it as its Workload, whose name
no user chose; and a key of another namespace may be a secret. Both dialects pass what they tell through here.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_KEY = re.compile(r"\b[A-Z][A-Za-z]*(?:\.[a-z]+)?/([a-z0-9-]+)/[a-z0-9][a-z0-9.-]*(?:#[0-9a-f-]+)?")
_AMOUNT = re.compile(r"\d+(\.\d+)?[A-Za-z]{0,2}\b")
STRANGER = "a gang of another namespace"

KnownAs = Callable[[str], str]
"""From a gang's key to the one that people know it by."""


def discreet(text: str, namespace: str) -> str:
    """The text without the names of gangs of other namespaces: its reader may not be allowed to read those."""
    return _KEY.sub(lambda found: found[0] if found[1] == namespace else STRANGER, text)


def without_names(text: str, may: Callable[[str], bool]) -> str:
    """The text with every gang for which `may` is false left unnamed."""
    return _KEY.sub(lambda found: found[0] if may(found[0]) else STRANGER, text)


def keys_in(text: str) -> list[str]:
    """The gangs that a text names."""
    return [found[0] for found in _KEY.finditer(text)]


def namespace_of(key: str) -> str:
    return key.split("/")[1] if key.count("/") == 2 else ""


def in_plain_words(text: str, known_as: KnownAs) -> str:
    """The text with every gang called as people know it."""
    return _KEY.sub(lambda found: plain_key(known_as(found[0])), text)


def plain_key(key: str) -> str:
    """A gang's key for people: one that was deleted and still holds its room carries its UID behind a `#`."""
    return key.partition("#")[0]


def is_same_cause(before: str, after: str) -> bool:
    """Do two reasons differ in amounts alone?"""
    return _AMOUNT.sub("#", before) == _AMOUNT.sub("#", after)
