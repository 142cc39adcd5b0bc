"""Nodes whose devices are reported unwell, by the labels that Autopilot writes.

Pure. Three things follow: such devices are no supply for gangs that wait, pods of v1beta2 AppWrappers keep away from
those nodes, and a gang that runs on devices to be vacated is reset. What a user wrote about placement stays.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from shoal.api.meta import Json

Effect = Literal["PreferNoSchedule", "NoSchedule", "NoExecute"]


class HealthMark(msgspec.Struct, frozen=True):
    """A label of a node that says something about one resource of it."""

    label: str
    value: str
    effect: Effect


GPU_HEALTH = "autopilot.ibm.com/gpuhealth"
MARKS: dict[str, tuple[HealthMark, ...]] = {
    "nvidia.com/gpu": (
        HealthMark(GPU_HEALTH, "WARN", "PreferNoSchedule"),
        HealthMark(GPU_HEALTH, "TESTING", "NoSchedule"),
        HealthMark(GPU_HEALTH, "EVICT", "NoExecute"),
    )
}


class NodeHealth(msgspec.Struct, frozen=True, kw_only=True):
    """`inject` keeps pods away by affinity; `monitor` resets gangs and takes the devices out of supply."""

    inject: bool = True
    """Keep pods of v1beta2 AppWrappers that ask for a device away from marked nodes, by affinity."""
    monitor: bool = True
    """Take marked devices out of supply, and reset gangs that run on devices to be vacated."""
    weight: int = 50
    """Of the preference against devices that only warn."""
    marks: dict[str, tuple[HealthMark, ...]] = msgspec.field(default_factory=lambda: MARKS)


def flagged(node: Json, health: NodeHealth, *effects: Effect) -> frozenset[str]:
    """Resources of this node that carry one of these effects."""
    labels = (node.get("metadata") or {}).get("labels") or {}
    return frozenset(
        resource
        for resource, marks in health.marks.items()
        if any(mark.effect in effects and labels.get(mark.label) == mark.value for mark in marks)
    )


def as_supply(node: Json, health: NodeHealth) -> Json:
    """The node as far as it may be counted on: devices that take no new pods are not there."""
    unwell = flagged(node, health, "NoSchedule", "NoExecute") if health.monitor else frozenset()
    status = node.get("status") or {}
    lost = unwell & set(status.get("allocatable") or {})
    if not lost:
        return node
    return {**node, "status": {**status, "allocatable": {**status["allocatable"], **dict.fromkeys(lost, "0")}}}


def avoiding(template: Json, health: NodeHealth) -> Json:
    """A pod template whose pods keep away from nodes where a device that they ask for is unwell."""
    if not health.inject:
        return template
    for resource, marks in health.marks.items():
        if not _asks_for(template, resource):
            continue
        never = _expressions(marks, "NoSchedule", "NoExecute")
        rather_not = _expressions(marks, "PreferNoSchedule")
        template = _with_affinity(template, never, rather_not, health.weight)
    return template


def _expressions(marks: tuple[HealthMark, ...], *effects: Effect) -> list[Json]:
    """One `NotIn` per label, over all its values with these effects."""
    values: dict[str, list[str]] = {}
    for mark in marks:
        if mark.effect in effects:
            values.setdefault(mark.label, []).append(mark.value)
    return [{"key": label, "operator": "NotIn", "values": found} for label, found in values.items()]


def _with_affinity(template: Json, never: list[Json], rather_not: list[Json], weight: int) -> Json:
    spec = dict(template.get("spec") or {})
    affinity = dict(spec.get("affinity") or {})
    node = dict(affinity.get("nodeAffinity") or {})
    if never:
        required = dict(node.get("requiredDuringSchedulingIgnoredDuringExecution") or {})
        terms = required.get("nodeSelectorTerms") or [{}]  # terms are alternatives: each of them must keep away
        required["nodeSelectorTerms"] = [
            {**term, "matchExpressions": [*(term.get("matchExpressions") or []), *never]} for term in terms
        ]
        node["requiredDuringSchedulingIgnoredDuringExecution"] = required
    if rather_not:
        preferred = node.get("preferredDuringSchedulingIgnoredDuringExecution") or []
        wish = {"weight": weight, "preference": {"matchExpressions": rather_not}}
        node["preferredDuringSchedulingIgnoredDuringExecution"] = [*preferred, wish]
    affinity["nodeAffinity"] = node
    spec["affinity"] = affinity
    return {**template, "spec": spec}


def _asks_for(template: Json, resource: str) -> bool:
    spec = template.get("spec") or {}
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    return any(_amount(one, sort, resource) for one in containers for sort in ("requests", "limits"))


def _amount(container: Any, sort: str, resource: str) -> bool:
    resources = container.get("resources") if isinstance(container, dict) else None
    return str(((resources or {}).get(sort) or {}).get(resource) or "0") not in ("0", "")
