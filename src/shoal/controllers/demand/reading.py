"""Reading manifests that may hold anything: a part that is not what it should be counts as absent. Pure."""

from __future__ import annotations

from typing import Any

from shoal.api.meta import Json


def count(value: Any, default: int) -> int:
    return max(0, value) if isinstance(value, int) and not isinstance(value, bool) else default


def mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def listing(value: Any) -> list[Json]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
