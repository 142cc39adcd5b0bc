"""Are a Workload's requests legal at all? Its own limits, and the namespace's LimitRanges.

Called while reading Workloads. The texts are those Kueue puts into the `QuotaReserved` condition. Nothing is changed
here: defaults are the API server's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shoal.api.kueue_workload import PodSet
from shoal.api.quantity import amounts
from shoal.engine.facts import pod_requests

Json = Mapping[str, Any]


def check_requests(pod_sets: Sequence[PodSet]) -> str:
    """Empty, or which container, or pod as a whole, asks for more than its own limit."""
    faults = []
    for path, container in (*_containers(pod_sets), *_pods(pod_sets)):
        resources = container.get("resources") or {}
        limits = amounts(resources.get("limits"))
        requests = amounts(resources.get("requests"))
        above = sorted(name for name, wanted in requests.items() if name in limits and wanted > limits[name])
        if above:
            faults.append(_invalid(path, above, "requests must not exceed its limits"))
    return f"resources validation failed: {_joined(faults)}" if faults else ""


def check_limit_ranges(pod_sets: Sequence[PodSet], ranges: Sequence[Json]) -> str:
    """Empty, or what lies outside the namespace's LimitRanges."""
    bounds = {kind: _bounds(ranges, kind) for kind in ("Container", "Pod")}
    faults = []
    for path, container in _containers(pod_sets):
        resources = container.get("resources") or {}
        asked = [amounts(resources.get("requests")), amounts(resources.get("limits"))]
        faults += _outside(path, asked, bounds["Container"])
    for index, entry in enumerate(pod_sets):
        pod = entry.template.get("spec") or {}
        faults += _outside(f"spec.podSets[{index}].template.spec", [pod_requests(pod)], bounds["Pod"])
    return f"resources didn't satisfy LimitRange constraints: {_joined(faults)}" if faults else ""


def _bounds(ranges: Sequence[Json], kind: str) -> tuple[dict[str, int], dict[str, int]]:
    """The lowest maximum and the highest minimum over all ranges."""
    highest: dict[str, int] = {}
    lowest: dict[str, int] = {}
    for entry in ranges:
        for item in (entry.get("spec") or {}).get("limits") or []:
            if item.get("type") != kind:
                continue
            for name, value in amounts(item.get("max")).items():
                highest[name] = min(value, highest.get(name, value))
            for name, value in amounts(item.get("min")).items():
                lowest[name] = max(value, lowest.get(name, value))
    return highest, lowest


def _outside(path: str, asked: list[dict[str, int]], bounds: tuple[dict[str, int], dict[str, int]]) -> list[str]:
    highest, lowest = bounds
    above = sorted(
        {name for each in asked for name, value in each.items() if name in highest and value > highest[name]}
    )
    below = sorted({name for each in asked for name, value in each.items() if name in lowest and value < lowest[name]})
    faults = []
    if above:
        faults.append(_invalid(path, above, "requests must not be above the limitRange max"))
    if below:
        faults.append(_invalid(path, below, "requests must not be below the limitRange min"))
    return faults


def _containers(pod_sets: Sequence[PodSet]) -> Iterator[tuple[str, Json]]:
    for index, entry in enumerate(pod_sets):
        pod = entry.template.get("spec") or {}
        for field in ("initContainers", "containers"):
            for position, container in enumerate(pod.get(field) or []):
                yield f"spec.podSets[{index}].template.spec.{field}[{position}]", container


def _pods(pod_sets: Sequence[PodSet]) -> Iterator[tuple[str, Json]]:
    """What pods say about themselves as a whole (`spec.resources`)."""
    for index, entry in enumerate(pod_sets):
        yield f"spec.podSets[{index}].template.spec.resources", entry.template.get("spec") or {}


def _invalid(path: str, names: list[str], rule: str) -> str:
    listed = ",".join(f'"{name}"' for name in names)
    return f"{path}: Invalid value: [{listed}]: {rule}"


def _joined(faults: list[str]) -> str:
    return faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
