"""Text of programs inside messages: what fits into a line of a table, and the last lines for users that ask why.

Ray puts the end of a driver's log into a job's message, and a container may leave its own. Tables and events get one
plain line of it; terminal codes are taken out, not shown. Pure.
"""

from __future__ import annotations

import re

LONGEST_LINE = 200
MOST_LINES = 10
_CODES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]")
_LOG_FOLLOWS = re.compile(r",? ?last available logs \(truncated to [^)]*\):?", re.IGNORECASE)


def without_codes(text: str) -> str:
    """The text without colours, cursor movements and titles of terminals; lines that were overwritten are left out."""
    lines = _CODES.sub("", text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def in_one_line(text: str) -> str:
    """All of it, for an event."""
    return " ".join(without_codes(text).split("\n")).strip() if "\n" in text or "\x1b" in text else text


def headline(text: str, longest: int = LONGEST_LINE) -> str:
    """The first line, without the log that follows it."""
    if text.isprintable() and "(truncated to " not in text.lower():  # one plain line, as nearly all are
        plain = text.strip()
        return plain if len(plain) <= longest else plain[: longest - 1] + "…"
    before = _LOG_FOLLOWS.split(without_codes(text).strip(), maxsplit=1)[0]
    line = next((one.strip() for one in before.split("\n") if one.strip()), "")
    return line if len(line) <= longest else line[: longest - 1] + "…"


def last_lines(text: str, most: int = MOST_LINES) -> list[str]:
    """The last lines of the log that a message carries; none where it carries none."""
    plain = without_codes(text).strip()
    parts = _LOG_FOLLOWS.split(plain, maxsplit=1)
    log = parts[1] if len(parts) > 1 else plain.partition("\n")[2]
    return [line[: 2 * LONGEST_LINE] for line in log.split("\n") if line.strip()][-most:]
