"""What the rows of a table are made of: columns, spans of time, selectors, and the parts of an object.

`table.py`, `built_in.py` and `pods.py` build their cells from these.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from shoal.api.times import parse_time
from shoal.errors import BadInput

Json = dict[str, Any]

_DAY = 86_400


class TableColumn(NamedTuple):
    name: str
    type: str = "string"
    format: str = ""
    priority: int = 0
    description: str = ""

    def definition(self) -> Json:
        return {"name": self.name, "type": self.type, "format": self.format, "description": self.description,
                "priority": self.priority}  # fmt: skip


def duration(seconds: int) -> str:
    """How kubectl shows a span: `45s`, `3m20s`, `5h`, `2d3h`, `400d`."""
    if seconds < -1:
        return "<invalid>"
    seconds = max(seconds, 0)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // _DAY
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 730:
        return f"{days}d"
    if days < 2920:
        return f"{days // 365}y{days % 365}d" if days % 365 else f"{days // 365}y"
    return f"{days // 365}y"


def age(moment: Any, now: int) -> str:
    if not moment:
        return "<unknown>"
    try:
        return duration((now - parse_time(str(moment))) // 1_000_000)
    except BadInput:
        return "<invalid>"


def selector(found: Json | None) -> str:
    """A label selector in one line."""
    if not found:
        return "<none>"
    words = [f"{key}={value}" for key, value in sorted((found.get("matchLabels") or {}).items())]
    for item in found.get("matchExpressions") or ():
        values = ",".join(sorted(item.get("values") or ()))
        key, operator = item.get("key"), item.get("operator")
        words.append({"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": f"{key}",
                      "DoesNotExist": f"!{key}"}.get(str(operator), str(key)))  # fmt: skip
    return ",".join(words) or "<none>"


def labels_line(found: Json | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((found or {}).items())) or "<none>"


def metadata_of(item: Json) -> Json:
    return item.get("metadata") or {}


def spec_of(item: Json) -> Json:
    return item.get("spec") or {}


def status_of(item: Json) -> Json:
    return item.get("status") or {}


def name_of(item: Json) -> str:
    return str(metadata_of(item).get("name") or "")


def age_of(item: Json, now: int) -> str:
    return age(metadata_of(item).get("creationTimestamp"), now)


def containers_of(item: Json) -> tuple[str, str]:
    containers = ((spec_of(item).get("template") or {}).get("spec") or {}).get("containers") or []
    return ",".join(str(c.get("name")) for c in containers), ",".join(str(c.get("image")) for c in containers)


def condition_of(item: Json, name: str) -> Json:
    return next((c for c in status_of(item).get("conditions") or () if c.get("type") == name), {})
