"""What the annotations of a pod template ask of a topology: read, and checked.

Called by the kinds of jobs for their pod sets, and by admission. Field paths are Kueue's, because users and tools read
them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from shoal.api.labels import (
    KUEUE_POD_SET_GROUP,
    KUEUE_PREFERRED_TOPOLOGY,
    KUEUE_REQUIRED_TOPOLOGY,
    KUEUE_SLICE_SIZE,
    KUEUE_SLICE_TOPOLOGIES,
    KUEUE_SLICE_TOPOLOGY,
    KUEUE_TOPOLOGY_ANNOTATIONS,
    KUEUE_UNCONSTRAINED_TOPOLOGY,
)
from shoal.api.meta import Json
from shoal.api.names import check_qualified

MOST_LAYERS = 3
_TRUE, _FALSE = ("1", "t", "T", "TRUE", "true", "True"), ("0", "f", "F", "FALSE", "false", "False")


def asks_for_topology(template: Mapping[str, Any]) -> bool:
    return not KUEUE_TOPOLOGY_ANNOTATIONS.isdisjoint(_annotations(template))


def topology_request(template: Mapping[str, Any], **ranks: Any) -> Json | None:
    """The `topologyRequest` of a pod set with this template; `ranks` name the label that tells pods apart. None where
    it asks for nothing. What cannot be read is left out: admission has said so."""
    given = _annotations(template)
    made: Json = {}
    if KUEUE_REQUIRED_TOPOLOGY in given:
        made["required"] = given[KUEUE_REQUIRED_TOPOLOGY]
    elif KUEUE_PREFERRED_TOPOLOGY in given:
        made["preferred"] = given[KUEUE_PREFERRED_TOPOLOGY]
    elif given.get(KUEUE_UNCONSTRAINED_TOPOLOGY) in (*_TRUE, *_FALSE):
        made["unconstrained"] = given[KUEUE_UNCONSTRAINED_TOPOLOGY] in _TRUE
    layers = _layers(given)
    if isinstance(layers, list):
        made["podsetSliceRequiredTopologyConstraints"] = layers
    elif KUEUE_SLICE_TOPOLOGY in given and _number(given.get(KUEUE_SLICE_SIZE)):
        made["podSetSliceRequiredTopology"] = given[KUEUE_SLICE_TOPOLOGY]
        made["podSetSliceSize"] = _number(given[KUEUE_SLICE_SIZE])
    if not made:
        return None
    if KUEUE_POD_SET_GROUP in given and ("required" in made or "preferred" in made):
        made["podSetGroupName"] = given[KUEUE_POD_SET_GROUP]
    return {**made, **ranks}


class TemplateOf(msgspec.Struct, frozen=True):
    """A pod template of a job: where its annotations stand, and how many pods it makes."""

    path: str
    """Of the annotations: `spec.template.metadata.annotations`."""
    template: Json
    count: int


def topology_problems(templates: Sequence[TemplateOf]) -> list[str]:
    """What is wrong with the topology annotations of a job, each with the field at fault."""
    found = [problem for one in templates for problem in _problems(one)]
    return found or [problem for one in templates for problem in _too_large(one)] + _groups(templates)


def _problems(one: TemplateOf) -> list[str]:
    given, path = _annotations(one.template), one.path
    chosen = (KUEUE_REQUIRED_TOPOLOGY, KUEUE_PREFERRED_TOPOLOGY, KUEUE_UNCONSTRAINED_TOPOLOGY)
    found = []
    if sum(name in given for name in chosen) > 1:
        found.append(f"{path}: must not contain more than one topology annotation: {', '.join(chosen)}")
    for name in (KUEUE_REQUIRED_TOPOLOGY, KUEUE_PREFERRED_TOPOLOGY, KUEUE_SLICE_TOPOLOGY):
        if name in given and (fault := check_qualified(given[name])):
            found.append(f"{path}[{name}]: {fault}")
    if given.get(KUEUE_UNCONSTRAINED_TOPOLOGY, "true") not in (*_TRUE, *_FALSE):
        found.append(f"{path}[{KUEUE_UNCONSTRAINED_TOPOLOGY}]: must be a boolean value")
    return found + _group_problems(given, path) + _slice_problems(given, path) + _layer_problems(given, path)


def _group_problems(given: Mapping[str, str], path: str) -> list[str]:
    if KUEUE_POD_SET_GROUP not in given:
        return []
    where = f"{path}[{KUEUE_POD_SET_GROUP}]"
    found = [f"{where}: must not be a number"] if given[KUEUE_POD_SET_GROUP].isdigit() else []
    for name in (KUEUE_SLICE_SIZE, KUEUE_SLICE_TOPOLOGY, KUEUE_SLICE_TOPOLOGIES):
        if name in given:
            found.append(f"{where}: may not be set when {name} is specified")
    if KUEUE_REQUIRED_TOPOLOGY not in given and KUEUE_PREFERRED_TOPOLOGY not in given:
        names = f"{KUEUE_PREFERRED_TOPOLOGY} nor {KUEUE_REQUIRED_TOPOLOGY}"
        found.append(f"{where}: may not be set when neither {names} is specified")
    return found


def _slice_problems(given: Mapping[str, str], path: str) -> list[str]:
    where, size = f"{path}[{KUEUE_SLICE_SIZE}]", given.get(KUEUE_SLICE_SIZE)
    if size is None:
        lacking = f"{where}: must be set when {KUEUE_SLICE_TOPOLOGY} is specified"
        return [lacking] if KUEUE_SLICE_TOPOLOGY in given else []
    found = [] if _number(size) else [f"{where}: must be a number greater than or equal to 1"]
    if KUEUE_SLICE_TOPOLOGY not in given:
        found.append(f"{where}: may not be set when {KUEUE_SLICE_TOPOLOGY} is not specified")
    return found


def _layer_problems(given: Mapping[str, str], path: str) -> list[str]:
    if KUEUE_SLICE_TOPOLOGIES not in given:
        return []
    where = f"{path}[{KUEUE_SLICE_TOPOLOGIES}]"
    found = [
        f"{where}: may not be set when {name} is specified"
        for name in (KUEUE_SLICE_TOPOLOGY, KUEUE_SLICE_SIZE)
        if name in given
    ]
    layers = _layers(given)
    if not isinstance(layers, list):
        return [*found, f"{where}: {layers}"]
    for index, layer in enumerate(layers):
        if fault := check_qualified(layer["topology"]):
            found.append(f"{where}[{index}].topology: {fault}")
        if layer["size"] < 1:
            found.append(f"{where}[{index}].size: must be greater than or equal to 1")
        if layer["topology"] in [other["topology"] for other in layers[:index]]:
            found.append(f"{where}[{index}].topology: is named twice")
    for index, (outer, inner) in enumerate(pairwise(layers), start=1):
        if inner["size"] > 0 and outer["size"] % inner["size"]:
            found.append(f"{where}[{index}].size: must evenly divide the parent layer size {outer['size']}")
    return found


def _layers(given: Mapping[str, str]) -> list[Json] | str | None:
    """The layers of slices; why they cannot be read; None without any."""
    text = given.get(KUEUE_SLICE_TOPOLOGIES)
    if text is None:
        return None
    try:
        layers = msgspec.json.decode(text, type=list[_Layer])
    except msgspec.MsgspecError as error:
        return f"must be a valid JSON array: {error}"
    if not 1 <= len(layers) <= MOST_LAYERS:
        return f"topology constraints must contain between 1 and {MOST_LAYERS} entries"
    return [{"topology": layer.topology, "size": layer.size} for layer in layers]


class _Layer(msgspec.Struct):
    topology: str = ""
    size: int = 0


def _too_large(one: TemplateOf) -> list[str]:
    given = _annotations(one.template)
    size, layers = _number(given.get(KUEUE_SLICE_SIZE)), _layers(given)
    if size and size > one.count:
        return [f"{one.path}[{KUEUE_SLICE_SIZE}]: must not be greater than pod set count {one.count}"]
    if isinstance(layers, list) and layers[0]["size"] > one.count:
        return [f"{one.path}[{KUEUE_SLICE_TOPOLOGIES}]: must not be greater than pod set count {one.count}"]
    return []


def _groups(templates: Sequence[TemplateOf]) -> list[str]:
    """Groups are a leader and its workers, and both want the same."""
    groups: dict[str, list[TemplateOf]] = {}
    for one in templates:
        name = (topology_request(one.template) or {}).get("podSetGroupName")
        if name is not None:
            groups.setdefault(name, []).append(one)
    found = []
    for name, members in groups.items():
        if len(members) != 2:
            text = f"can only define groups of exactly 2 pod sets, got: {len(members)} pod set(s)"
            found += [f"{one.path}[{KUEUE_POD_SET_GROUP}]: {text}" for one in members]
            continue
        first, second = members
        if first.count != 1 and second.count != 1:
            text = "can only define groups where at least one pod set has only 1 replica"
            sizes = f"{text}, got: {first.count} replica(s) and {second.count} replica(s) in the group"
            found += [f"{one.path}[{KUEUE_POD_SET_GROUP}]: {sizes}" for one in members]
        wishes = [
            {key: (topology_request(one.template) or {}).get(key) for key in ("required", "preferred")}
            for one in members
        ]
        if wishes[0] != wishes[1]:
            names = f"{KUEUE_REQUIRED_TOPOLOGY} or {KUEUE_PREFERRED_TOPOLOGY}"
            found += [
                f"{one.path}: must specify {names} consistent with {other.path} in group {name}"
                for one, other in ((first, second), (second, first))
            ]
    return found


def _number(text: str | None) -> int:
    """A count of at least one; 0 for what is none."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else 0


def _annotations(template: Mapping[str, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = (template.get("metadata") or {}).get("annotations") or {}
    return found
