"""Texts for people: bounded, printable, without secrets.

Messages of other components (webhooks, schedulers) end up in status and events, and from there in terminals and on web
pages; whatever they contain is made harmless here.
"""

from __future__ import annotations

from shoal.engine.model import Explanation

LONGEST = 1024
MOST_NAMED = 3


def printable(text: str, longest: int = LONGEST) -> str:
    """Control characters shown as `\\x1b`, not sent; cut with a mark where it is too long."""
    shown = "".join(char if char.isprintable() else _escaped(char) for char in text)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def why_waiting(explanation: Explanation) -> str:
    """What is short, where, whose turn it is, and who holds it: one line."""
    parts = [explanation.message]
    if explanation.position:
        parts.append(f"position {explanation.position} of {max(explanation.position, explanation.queue_length)}")
    if explanation.holders:
        named = ", ".join(explanation.holders[:MOST_NAMED])
        more = len(explanation.holders) - MOST_NAMED
        parts.append(f"held by {named}" + (f" and {more} more" if more > 0 else ""))
    return printable("; ".join(part for part in parts if part))


def _escaped(char: str) -> str:
    if char in "\n\r\t":
        return " "
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
