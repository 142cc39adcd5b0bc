"""Texts for people: bounded, printable, without secrets.

Messages of other components (webhooks, schedulers) end up in status and events, and from there in terminals and on web
pages; whatever they contain is made harmless here.
"""

from __future__ import annotations

from shoal.controllers.naming import KnownAs, discreet, in_plain_words, plain_key
from shoal.engine.model import Explanation

LONGEST = 1024
MOST_NAMED = 3


def printable(text: str, longest: int = LONGEST) -> str:
    """Control characters shown as `\\x1b`, not sent; cut with a mark where it is too long."""
    shown = "".join(char if char.isprintable() else _escaped(char) for char in text)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def holder(key: str) -> str:
    """A gang that holds room; nobody looks in vain for one that was deleted and whose pods are still ending."""
    return plain_key(key) + (" (deleted, its pods are ending)" if "#" in key else "")


def why_waiting(explanation: Explanation, namespace: str, known_as: KnownAs = str) -> str:
    """What is short, where, whose turn it is, and who holds it: one line, for readers of one namespace."""
    parts = [discreet(in_plain_words(explanation.message, known_as), namespace)]
    if explanation.position:
        parts.append(f"position {explanation.position}")  # not "of so many": that changes with every arrival
    if explanation.holders:
        own = [holder(known_as(key)) for key in explanation.holders if key.split("/")[1:2] == [namespace]]
        more = len(explanation.holders) - len(own[:MOST_NAMED])
        rest = f"{more} more" if own else f"{more} gang{'s' if more > 1 else ''} of other namespaces"
        parts.append(
            "held by " + " and ".join([*filter(None, [", ".join(own[:MOST_NAMED])]), *([rest] if more else [])])
        )
    return printable("; ".join(part for part in parts if part))


def _escaped(char: str) -> str:
    if char in "\n\r\t":
        return " "
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
