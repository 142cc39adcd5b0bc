"""Texts for people: bounded, printable, without secrets.

Messages of other components (webhooks, schedulers) end up in status and events, and from there in terminals and on web
pages; whatever they contain is made harmless here.
"""

from __future__ import annotations

from shoal.controllers.planning.naming import KnownAs, discreet, in_plain_words, plain_key
from shoal.engine.model import Explanation

LONGEST = 1024


def printable(text: str, longest: int = LONGEST) -> str:
    """Control characters shown as `\\x1b`, not sent; cut with a mark where it is too long."""
    shown = "".join(char if char.isprintable() else _escaped(char) for char in text)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def holder(key: str) -> str:
    """A gang that holds room; one that was deleted and whose pods are still ending says so."""
    return plain_key(key) + (" (deleted, its pods are ending)" if "#" in key else "")


def why_waiting(explanation: Explanation, namespace: str, known_as: KnownAs = str) -> str:
    """What is short, and where: one line, for readers of one namespace."""
    return printable(discreet(in_plain_words(explanation.message, known_as), namespace))


def _escaped(char: str) -> str:
    if char in "\n\r\t":
        return " "
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
