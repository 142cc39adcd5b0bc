"""Patterns written for Go's RE2, matched in Python.

Schemas and rules carry RE2 syntax. Most of it means the same to Python's `re`; what does not is rewritten, and what
cannot be is left to the RE2 inside the CEL library. Callers get one function: does this text match?
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from shoal.errors import BadInput

_POSIX = {
    "alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z", "space": r"\s",
    "punct": r"!-/:-@\[-`{-~", "xdigit": "0-9A-Fa-f", "word": r"\w", "blank": r" \t", "cntrl": r"\x00-\x1f\x7f",
    "print": " -~", "graph": "!-~",
}  # fmt: skip


@cache
def matcher(pattern: str) -> Callable[[str], bool]:
    """A function that says whether `pattern` matches anywhere in a text. Raises BadInput for what RE2 refuses too."""
    try:
        found = compiled(pattern).search
    except (re.error, ValueError, OverflowError):
        return _by_re2(pattern)
    return lambda text: found(text) is not None


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(_translated(pattern), re.ASCII)


def _translated(pattern: str) -> str:
    """`$` and `\\z` mean the very end in RE2; POSIX classes and Unicode classes are spelt differently in Python."""
    out: list[str] = []
    i, inside = 0, False
    while i < len(pattern):
        char = pattern[i]
        if char == "\\" and i + 1 < len(pattern):
            following = pattern[i + 1]
            if following in "pPQCX":
                raise ValueError("left to RE2")
            out.append(r"\Z" if following == "z" else char + following)
            i += 2
            continue
        if inside and pattern.startswith("[:", i):
            end = pattern.find(":]", i)
            name = pattern[i + 2 : end]
            if end < 0 or name not in _POSIX:
                raise ValueError("left to RE2")
            out.append(_POSIX[name])
            i = end + 2
            continue
        if char == "[" and not inside:
            inside = True
            out.append(char)
            i += 1
            if pattern[i : i + 1] == "^":
                out.append("^")
                i += 1
            if pattern[i : i + 1] == "]":  # a bracket in first place is itself
                out.append(r"\]")
                i += 1
            continue
        if inside and char == "[":
            char = r"\["
        elif char == "]":
            inside = False
        elif char == "$" and not inside:
            char = r"\Z"
        out.append(char)
        i += 1
    return "".join(out)


def _by_re2(pattern: str) -> Callable[[str], bool]:
    from cel_expr_python import cel  # only for the rare pattern that Python cannot read

    environment = cel.NewEnv(variables={"text": cel.Type.STRING, "pattern": cel.Type.STRING})
    expression = environment.compile("text.matches(pattern)")

    def match(text: str) -> bool:
        return expression.eval(data={"text": text, "pattern": pattern}).value() is True

    if expression.eval(data={"text": "", "pattern": pattern}).type() != cel.Type.BOOL:
        raise BadInput(f"{pattern!r} is not a regular expression that RE2 accepts")
    return match
