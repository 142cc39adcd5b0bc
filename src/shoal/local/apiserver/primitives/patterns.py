"""Patterns written for Go's RE2, matched by RE2 itself: in time that grows with the text, whatever the pattern.

Schemas and CEL rules carry patterns, users send the texts; a matcher that goes back and tries again would let one text
stop the server. What all matches of one object may cost together is bounded, too: `metered` sets the account.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from shoal.errors import BadInput, ShoalError

MOST_STEPS = 100_000_000
"""Of one object: instructions of a pattern times letters of a text. About half a second at the very worst."""
_MOST_KEPT = 1024
_MOST_MEMORY = 1 << 20
_left: list[int] = []


class TooCostly(ShoalError):
    """The patterns that apply to one object take more time than any object may."""


@contextmanager
def metered() -> Iterator[None]:
    """What is matched inside counts together. Not for code that awaits."""
    _left.append(MOST_STEPS)
    try:
        yield
    finally:
        _left.pop()


def _charge(steps: int) -> None:
    if _left:
        _left[-1] -= steps
        if _left[-1] < 0:
            raise TooCostly("the patterns take too long to match; send less text")


@lru_cache(_MOST_KEPT)
def matcher(pattern: str) -> Callable[[str], bool]:
    """A function that says whether `pattern` matches anywhere in a text. Raises BadInput for what RE2 refuses."""
    try:
        found = compiled(pattern)
    except ModuleNotFoundError:
        return _by_cel(pattern)
    search, size = found.search, found.programsize

    def match(text: str) -> bool:
        _charge(size * len(text))
        return search(text) is not None

    return match


@lru_cache(_MOST_KEPT)
def compiled(pattern: str) -> Any:
    """The pattern itself: `search` and `finditer` as Python's own have them. Raises BadInput."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MOST_MEMORY
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        words = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise BadInput(f"{pattern!r} is not a regular expression that RE2 accepts: {words}") from None


def find(pattern: str, text: str, most: int = 1) -> list[str]:
    """What matches, from the left; all of it when `most` is negative."""
    found = compiled(pattern)
    _charge(found.programsize * len(text))
    matches: list[str] = []
    for match in found.finditer(text):
        if most >= 0 and len(matches) >= most:
            break
        matches.append(match[0])
    return matches


def _by_cel(pattern: str) -> Callable[[str], bool]:
    """The same engine as the CEL library brings it, where its own package is not installed."""
    from cel_expr_python import cel

    environment = cel.NewEnv(variables={"text": cel.Type.STRING, "pattern": cel.Type.STRING})
    expression = environment.compile("text.matches(pattern)")

    def match(text: str) -> bool:
        _charge(len(text) * len(pattern))
        return expression.eval(data={"text": text, "pattern": pattern}).value() is True

    if expression.eval(data={"text": "", "pattern": pattern}).type() != cel.Type.BOOL:
        raise BadInput(f"{pattern!r} is not a regular expression that RE2 accepts")
    return match
