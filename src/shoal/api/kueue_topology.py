"""A Workload's topology assignment: the flat list of domains (v1beta1) and the compressed slices (v1beta2).

A domain is a tuple of node-label values, widest level first, with a pod count. Slices store what all domains share
once: equal values, and a common beginning and end of differing ones.
"""

from __future__ import annotations

from typing import Any

from shoal.api.meta import Json
from shoal.errors import BadInput

Domain = tuple[tuple[str, ...], int]

_NONSENSE = (BadInput, TypeError, ValueError, AttributeError, IndexError)
MOST_DOMAINS = 100_000  # bounds what one assignment can make us allocate


def expand(slices: list[Json]) -> list[Domain]:
    """Every (values, count) pair of the slices, in order."""
    domains: list[Domain] = []
    for part in slices:
        size = int(part.get("domainCount") or 0)
        if size + len(domains) > MOST_DOMAINS:
            raise BadInput(f"topologyAssignment names more than {MOST_DOMAINS} domains; split the workload")
        columns = [_column(level, size) for level in part.get("valuesPerLevel") or ()]
        counts = _counts(part.get("podCounts") or {}, size)
        domains += [(tuple(column[index] for column in columns), counts[index]) for index in range(size)]
    return domains


def compress(domains: list[Domain]) -> list[Json]:
    """One slice that holds all domains; none for none."""
    if not domains:
        return []
    levels = [_shared([values[level] for values, _ in domains]) for level in range(len(domains[0][0]))]
    counts = [count for _, count in domains]
    pod_counts: Json = {"universal": counts[0]} if len(set(counts)) == 1 else {"individual": counts}
    return [{"domainCount": len(domains), "valuesPerLevel": levels, "podCounts": pod_counts}]


def to_slices(assignment: Json) -> Json:
    """v1beta1's `domains` as v1beta2's `slices`; an assignment without sensible domains stays as it is."""
    if "domains" not in assignment:
        return assignment
    try:
        return _with_slices(assignment)
    except _NONSENSE:
        return assignment


def _with_slices(assignment: Json) -> Json:
    rest = {name: value for name, value in assignment.items() if name != "domains"}
    domains = [
        (tuple(entry.get("values") or ()), int(entry.get("count") or 0)) for entry in assignment["domains"] or ()
    ]
    return {**rest, "slices": compress(domains)}


def to_domains(assignment: Json) -> Json:
    """v1beta2's `slices` as v1beta1's `domains`, with the same patience: one odd object must not fail a list."""
    if "slices" not in assignment:
        return assignment
    try:
        return _with_domains(assignment)
    except _NONSENSE:
        return assignment


def _with_domains(assignment: Json) -> Json:
    rest = {name: value for name, value in assignment.items() if name != "slices"}
    domains = [{"values": list(values), "count": count} for values, count in expand(assignment["slices"] or [])]
    return {**rest, "domains": domains}


def _beginning(values: list[str]) -> str:
    """What all values start with."""
    first, last = min(values), max(values)
    length = next((index for index, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:length]


def _column(level: Json, size: int) -> list[str]:
    if "universal" in level:
        return [str(level["universal"])] * size
    individual = level.get("individual") or {}
    prefix, suffix = individual.get("prefix") or "", individual.get("suffix") or ""
    roots = individual.get("roots") or []
    return [f"{prefix}{roots[index] if index < len(roots) else ''}{suffix}" for index in range(size)]


def _counts(pod_counts: Json, size: int) -> list[int]:
    if pod_counts.get("universal") is not None:
        return [int(pod_counts["universal"])] * size
    given: list[Any] = pod_counts.get("individual") or []
    return [int(given[index]) if index < len(given) else 0 for index in range(size)]


def _shared(values: list[str]) -> Json:
    if len(set(values)) == 1:
        return {"universal": values[0]}
    prefix = _beginning(values)
    rests = [value[len(prefix) :] for value in values]
    suffix = _beginning([rest[::-1] for rest in rests])[::-1]
    individual: Json = {"roots": [rest[: len(rest) - len(suffix)] for rest in rests]}
    if prefix:
        individual["prefix"] = prefix
    if suffix:
        individual["suffix"] = suffix
    return {"individual": individual}
