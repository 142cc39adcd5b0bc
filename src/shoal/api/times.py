"""Times as Kubernetes writes them: RFC 3339 in UTC, whole seconds (`Time`) or exactly six digits (`MicroTime`).

In Shoal a moment is an integer of microseconds since the epoch; it becomes text only at the edge.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from shoal.errors import BadInput

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PATTERN = re.compile(r"(\d{4}-\d{2}-\d{2})[Tt](\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)


def seconds_text(moment: int) -> str:
    """`2023-08-29T02:50:18Z`: metav1.Time."""
    return f"{_second_text(moment // 1_000_000)}Z"


def micro_text(moment: int) -> str:
    """`2023-08-29T02:50:18.829462Z`: metav1.MicroTime, always six digits."""
    second, rest = divmod(moment, 1_000_000)
    return f"{_second_text(second)}.{rest:06}Z"


@lru_cache(maxsize=1 << 14)
def parse_time(text: str) -> int:
    """Microseconds since the epoch from any RFC 3339 text; digits past the sixth are dropped.

    Kept for a while: the same few moments of an object are read at every look at it.
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise BadInput(f"{text[:40]!r} is not an RFC 3339 time such as 2023-08-29T02:50:18Z")
    day, clock, fraction, zone = match.groups()
    try:
        second = _second_of(f"{day}T{clock}{'+00:00' if zone in 'Zz' else zone}")
    except ValueError:
        raise BadInput(f"{text[:40]!r} is not an RFC 3339 time such as 2023-08-29T02:50:18Z") from None
    return second * 1_000_000 + int((fraction or "0").ljust(6, "0")[:6])


@lru_cache(maxsize=1 << 10)
def _second_text(second: int) -> str:
    """Much is written within one second."""
    return (_EPOCH + timedelta(seconds=second)).replace(tzinfo=None).isoformat(timespec="seconds")


@lru_cache(maxsize=1 << 10)
def _second_of(text: str) -> int:
    """And read."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(seconds=1)
