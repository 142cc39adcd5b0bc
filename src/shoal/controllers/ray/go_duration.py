"""Durations as Go writes them, such as `1h30m`: in annotations and schedules that users bring from KubeRay. Pure."""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = {
    "ns": Fraction(1, 10**9), "us": Fraction(1, 10**6), "µs": Fraction(1, 10**6), "μs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600),
}  # fmt: skip
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)


def go_duration(text: str) -> float | None:
    """Seconds of a Go duration such as `1h30m`; None for what is none."""
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0.0
    total, at = Fraction(0), 0
    while at < len(rest):
        found = _PART.match(rest, at)
        if found is None:
            return None
        total, at = total + Fraction(found[1].rstrip(".")) * _UNITS[found[2]], found.end()
    return float(sign * total) if rest else None
