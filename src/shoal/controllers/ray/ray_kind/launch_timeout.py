"""How long the launch of a `Ray` may take, by its annotation. Pure: the launcher reads it, the translation checks."""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.controllers.ray import view

TIMEOUT = "ray.k8s.io/launch-timeout"
TIMEOUT_AS_PROPOSED = "ray.k8s.io/launchTimeout"
DEFAULT_TIMEOUT = 600
_UNITS = {"s": 1, "m": 60, "h": 3600}


def launch_timeout(ray: Json) -> int | None:
    """Seconds; None where nothing is said, or nothing that can be read."""
    text = _written(ray).lower()
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "s")
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        return None
    return max(1, int(number) * _UNITS[unit])


def problems_of_timeout(ray: Json) -> list[str]:
    text = _written(ray)
    if not text or launch_timeout(ray) is not None:
        return []
    return [f"annotation {TIMEOUT} {text!r} is not a time; write 600, 600s, 10m or 1h"]


def _written(ray: Json) -> str:
    marks = view.annotations_of(ray)
    return (marks.get(TIMEOUT) or marks.get(TIMEOUT_AS_PROPOSED) or "").strip()
