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
    return _at(moment).isoformat(timespec="seconds") + "Z"


def micro_text(moment: int) -> str:
    """`2023-08-29T02:50:18.829462Z`: metav1.MicroTime, always six digits."""
    return _at(moment).isoformat(timespec="microseconds") + "Z"


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
        moment = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone in 'Zz' else zone}")
    except ValueError:
        raise BadInput(f"{text[:40]!r} is not an RFC 3339 time such as 2023-08-29T02:50:18Z") from None
    whole = (moment - _EPOCH) // timedelta(seconds=1)
    return whole * 1_000_000 + int((fraction or "0").ljust(6, "0")[:6])


def _at(moment: int) -> datetime:
    return (_EPOCH + timedelta(microseconds=moment)).replace(tzinfo=None)
