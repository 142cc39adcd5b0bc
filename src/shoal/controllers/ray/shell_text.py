"""How a shell would read a text: its words, and whether there is more to it than words.

The standard library's splitter takes time by the square of the longest word, and people write megabytes; this one looks
at every character once and gives the same words. Pure; called for start parameters, entrypoints and old launcher
commands.
"""

from __future__ import annotations

import re

import msgspec

from shoal.errors import BadInput

_PLAIN = re.compile(r"[^ \t\r\n'\"\\]+")
_IN_DOUBLE_QUOTES = re.compile(r'[^"\\]+')
_OPERATORS = re.compile(r"[;&|<>()]")
_SPACE = " \t\r\n"


class Reading(msgspec.Struct, frozen=True):
    """The words, unquoted, and whether an operator or the end of a line stands between or beside them."""

    words: list[str]
    has_operators: bool


def read(text: str) -> Reading:
    """Raises BadInput for a quotation or an escape that does not end."""
    words: list[str] = []
    parts: list[str] | None = None  # of the word under way; an empty quotation is a word too
    operators, position = False, 0
    while position < len(text):
        character = text[position]
        if character in _SPACE:
            if parts is not None:
                words.append("".join(parts))
                parts = None
            operators = operators or character == "\n"
            position += 1
            continue
        parts = [] if parts is None else parts
        if character == "\\":
            if position + 1 == len(text):
                raise BadInput("No escaped character")
            parts.append(text[position + 1])
            position += 2
        elif character == "'":
            end = text.find("'", position + 1)
            if end < 0:
                raise BadInput("No closing quotation")
            parts.append(text[position + 1 : end])
            position = end + 1
        elif character == '"':
            position = _double_quoted(text, position + 1, parts)
        else:
            found = _PLAIN.match(text, position)
            assert found is not None
            parts.append(found.group())
            operators = operators or _OPERATORS.search(found.group()) is not None
            position = found.end()
    if parts is not None:
        words.append("".join(parts))
    return Reading(words, operators)


def words_of(text: str) -> list[str]:
    """The words; none of a text that no shell could read."""
    try:
        return read(text).words
    except BadInput:
        return []


def _double_quoted(text: str, position: int, parts: list[str]) -> int:
    """Add what stands in double quotes from here; returns the place after them."""
    while position < len(text):
        found = _IN_DOUBLE_QUOTES.match(text, position)
        if found is not None:
            parts.append(found.group())
            position = found.end()
        elif text[position] == '"':
            return position + 1
        elif position + 1 == len(text):
            raise BadInput("No escaped character")
        else:
            escaped = text[position + 1]
            parts.append(escaped if escaped in '"\\' else "\\" + escaped)
            position += 2
    raise BadInput("No closing quotation")
