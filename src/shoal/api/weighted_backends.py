"""How a Service of one machine names what stands behind it by weight: the relay of a Gateway.

Written by the built-in Gateway controller, read by the node agent, which hands connections on in these proportions.
"""

from __future__ import annotations

import msgspec

from shoal.api.gang import PREFIX
from shoal.api.meta import Json

ANNOTATION = PREFIX + "weighted-backends"
"""JSON: a list of Services of the same namespace, each with a port and a weight."""


class WeightedBackend(msgspec.Struct, frozen=True):
    service: str
    port: int
    weight: int


def written(backends: tuple[WeightedBackend, ...]) -> str:
    return msgspec.json.encode(backends).decode()


def read(service: Json) -> tuple[WeightedBackend, ...] | None:
    """None for a Service without the annotation, or with one that cannot be read."""
    text = (service["metadata"].get("annotations") or {}).get(ANNOTATION)
    try:
        return msgspec.json.decode(text, type=tuple[WeightedBackend, ...]) if text else None
    except msgspec.DecodeError:
        return None
