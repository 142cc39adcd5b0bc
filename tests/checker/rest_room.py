"""Room on nodes at one moment: does a gang certainly find places, certainly not, or is that too costly to decide?

Pods that admitted gangs still have to get may have been planned on any node. A gang certainly fits where it does so
wherever they go, in whatever order its pods are placed; it certainly does not where even sums are too small.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

from tests.checker.rest_match import fits_node
from tests.checker.rest_objects import (
    Json,
    Stored,
    Sums,
    add,
    annotation,
    is_bound,
    is_live,
    is_true,
    plus,
    sums,
    times,
)

MOST_SHAPES = 3
BROUGHT_FOR = "shoal.dev/brought-for"


@dataclass(frozen=True)
class Part:
    """So many equal pods."""

    spec: Json
    requests: Sums
    count: int


class Room:
    def __init__(self, stored: Stored, promised: list[Part], selector: dict[str, str] | None = None) -> None:
        """`promised`: pods of admitted gangs that are not bound, whether they exist or not."""
        self.nodes = [
            one for one in stored.all("nodes") if is_true(one, "Ready") and not one["metadata"].get("deletionTimestamp")
        ]
        if selector:
            labels = [(one, one["metadata"].get("labels") or {}) for one in self.nodes]
            self.nodes = [one for one, own in labels if all(own.get(name) == value for name, value in selector.items())]
        self.free: dict[str, Sums] = {one["metadata"]["name"]: allocatable(one) for one in self.nodes}
        self.uncertain = bool(stored.all("resourceslices"))
        for pod in stored.all("pods"):
            at = self.free.get((pod.get("spec") or {}).get("nodeName") or "")
            if at is not None and is_live(pod):
                add(at, times(plus(stored.requests_of(pod["spec"]), {"pods": 1}), -1))
            affinity = (pod.get("spec") or {}).get("affinity") or {}
            self.uncertain |= is_live(pod) and is_bound(pod) and bool(affinity.get("podAntiAffinity"))
        self.promised: Sums = {}
        for part in promised:
            add(self.promised, times(plus(part.requests, {"pods": 1}), part.count))

    def total(self, resource: str) -> int:
        return sum(max(0, one.get(resource, 0)) for one in self.free.values())

    def fits(self, parts: list[Part]) -> bool | None:
        """True and False are certain."""
        parts = [part for part in parts if part.count > 0]
        if not parts:
            return True
        demand: Sums = {}
        for part in parts:
            add(demand, times(plus(part.requests, {"pods": 1}), part.count))
        if any(self.total(name) - self.promised.get(name, 0) < value for name, value in demand.items() if value > 0):
            return False
        able = [self._able(part) for part in parts]
        for part, names in zip(parts, able, strict=True):
            if (
                sum(_holds(self.free[name], part) for name, verdict in names.items() if verdict is not False)
                < part.count
            ):
                return False
        if self.uncertain or any(verdict is None for names in able for verdict in names.values()):
            return None
        shapes = self._shapes(parts, able)
        left = {name: plus(free, times(self.promised, -1)) for name, free in self.free.items()}
        if len(shapes) > MOST_SHAPES or not all(
            _packs([shapes[index] for index in order], left, largest)
            for order in permutations(range(len(shapes)))
            for largest in (False, True)
        ):
            single = len(shapes) == 1 and not self.promised
            return False if single else None
        return True

    def fits_in_sums(self, parts: list[Part]) -> bool | None:
        """As MCAD: whatever is free anywhere, added up."""
        demand: Sums = {}
        for part in parts:
            add(demand, times(part.requests, part.count))
        fits = all(self.total(name) - self.promised.get(name, 0) >= value for name, value in demand.items())
        plain = all(verdict for part in parts for verdict in self._able(part).values())
        return fits if plain or not fits else None

    def _able(self, part: Part) -> dict[str, bool | None]:
        found: dict[str, bool | None] = {}
        for node in self.nodes:
            verdict = fits_node(part.spec, node)
            if verdict and annotation(node, BROUGHT_FOR):
                verdict = None  # it came for one gang, and is that one's for a while
            found[node["metadata"]["name"]] = verdict
        return found

    @staticmethod
    def _shapes(parts: list[Part], able: list[dict[str, bool | None]]) -> list[tuple[Part, list[str]]]:
        found: dict[object, tuple[Part, list[str]]] = {}
        for part, names in zip(parts, able, strict=True):
            nodes = sorted(name for name, verdict in names.items() if verdict)
            key = (tuple(sorted(part.requests.items())), tuple(nodes))
            before = found[key][0].count if key in found else 0
            found[key] = (Part(part.spec, part.requests, part.count + before), nodes)
        return list(found.values())


def allocatable(node: Json) -> Sums:
    found = sums((node.get("status") or {}).get("allocatable"))
    return {"pods": 2**62, **found}


def _holds(free: Sums, part: Part) -> int:
    asked = plus(part.requests, {"pods": 1})
    return min((max(0, free.get(name, 0)) // value for name, value in asked.items() if value > 0), default=part.count)


def _packs(order: list[tuple[Part, list[str]]], free: dict[str, Sums], largest: bool) -> bool:
    """Pod set by pod set, each node filled before the next: the fullest first, or the emptiest."""
    left = {name: dict(one) for name, one in free.items()}
    for part, names in order:
        missing = part.count
        asked = plus(part.requests, {"pods": 1})
        for name in sorted(names, key=lambda one: (left[one].get("cpu", 0), one), reverse=largest):
            taken = min(missing, _holds(left[name], part))
            add(left[name], times(asked, -taken))
            missing -= taken
        if missing:
            return False
    return True
