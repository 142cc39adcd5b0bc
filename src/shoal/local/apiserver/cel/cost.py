"""What CEL rules may cost: as Kubernetes, one call and all calls for one object have a limit.

The CEL library bounds the rounds of loops, not what each round does, and counts nothing. So the cost of a call is
judged before it runs, from above: the rounds that its loops can make over the value that is there, times what one
round's functions can cost on the longest text that is there. A unit is about thirty nanoseconds here.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec

MOST_CALL = 1_000_000
MOST_OBJECT = 10_000_000
_MOST_ROUNDS = 10_000  # the library's own bound: it refuses what would make more
_EVERY_CALL = 200
_EVERY_NODE = 10
_EVERY_BYTE = 0.1
_LOOP = re.compile(r"\.\s*(?:all|exists|exists_one|existsOne|map|filter|transformList|transformMap)\s*\(")
_TEXT = re.compile(r"""r?("([^"\\]|\\.)*"|'([^'\\]|\\.)*')""")
_READS_TEXT = re.compile(
    r"\b(?:contains|matches|find|findAll|replace|split|join|indexOf|lastIndexOf|startsWith|endsWith|lowerAscii|"
    r"upperAscii|trim|substring|charAt|format|reverse|encode|decode|string|bytes|size|validate|quantity|isQuantity|ip|"
    r"isIP|cidr|isCIDR|url|isURL|semver|isSemver|duration|timestamp|int|double)\s*\(|\+|[=!<>]=|[<>]|\bin\b"
)


class Weight(msgspec.Struct, frozen=True):
    """Of a rule: how deep its loops lie in each other, and how many of its functions read whole texts."""

    loops: int
    readers: int


class Size(msgspec.Struct, frozen=True):
    """Of a value: all that is in it, the longest list or map, the longest text."""

    nodes: int
    widest: int
    longest: int


@lru_cache(4096)
def weigh(source: str) -> Weight:
    plain = _TEXT.sub("''", source)
    loops = [match.end() - 1 for match in _LOOP.finditer(plain)]
    deepest = 0
    for start in loops:
        deepest = max(deepest, 1 + sum(1 for other in loops if other < start < _end(plain, other)))
    return Weight(deepest, len(_READS_TEXT.findall(plain)))


def _end(source: str, start: int) -> int:
    """Where the parenthesis at `start` closes."""
    depth = 0
    for at in range(start, len(source)):
        depth += {"(": 1, ")": -1}.get(source[at], 0)
        if not depth:
            return at
    return len(source)


def measure(value: Any) -> Size:
    nodes = widest = longest = 0
    todo = [value]
    while todo:
        one = todo.pop()
        nodes += 1
        kind = type(one)
        if kind is str:
            longest = max(longest, len(one))
        elif kind is dict:
            widest = max(widest, len(one))
            todo += one.values()
            longest = max(longest, *map(len, one)) if one else longest
        elif kind is list:
            widest = max(widest, len(one))
            todo += one
    return Size(nodes, widest, longest)


def cost(weight: Weight, size: Size) -> int:
    """The most that one call can cost, without what it takes to hand the value over."""
    rounds = min(_MOST_ROUNDS, size.widest**weight.loops) if weight.loops else 1
    return int(_EVERY_CALL + rounds * (1 + weight.readers * (1 + _EVERY_BYTE * size.longest)))


class Budget:
    """What is left of one object's."""

    def __init__(self) -> None:
        self.left = MOST_OBJECT

    def spend(self, weight: Weight, size: Size) -> str:
        """Nothing, or why no further rule is run."""
        wanted = cost(weight, size)
        if wanted > MOST_CALL:
            return "call cost exceeds limit for rule"
        self.left -= wanted + _EVERY_NODE * size.nodes
        if self.left < 0:
            return "validation failed due to running out of cost budget, no further validation rules will be run"
        return ""
