"""Shapes within a launcher configuration: numbers, whole Pods, node types. Pure; every complaint names its line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from shoal.api import quantity
from shoal.controllers.ray import names
from shoal.controllers.ray.guarded_yaml import Document, Path
from shoal.errors import BadInput

MOST_WORKERS = 2**31 - 1
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
_GROUP_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


def problems_of_number(document: Document, path: Path, *, whole: bool) -> Iterator[str]:
    value = _reached(document.data, path)
    if value is None:
        return
    right = isinstance(value, int) if whole else isinstance(value, (int, float)) and math.isfinite(value)
    if isinstance(value, bool) or not right or value < 0:
        kind = "a whole number" if whole else "a number"
        yield f"{document.at(*path)}: {'.'.join(path)} must be {kind} of at least 0, not {value!r:.60}"
    elif value > MOST_WORKERS:
        yield f"{document.at(*path)}: {'.'.join(path)} must be at most {MOST_WORKERS}"


def problems_of_named(document: Document, path: Path, value: Any) -> Iterator[str]:
    """An object of which only the name counts."""
    if not isinstance(value, dict) or not isinstance(value.get("metadata") or {}, dict):
        yield f"{document.at(*path)}: {'.'.join(path)} must be a mapping with metadata.name"
        return
    name = (value.get("metadata") or {}).get("name")
    if name is not None and not (isinstance(name, str) and _OBJECT_NAME.fullmatch(name)):
        yield f"{document.at(*path, 'metadata', 'name')}: {'.'.join(path)}: {name!r:.60} is not a name"


def problems_of_types(document: Document, types: Any, head_type: Any) -> Iterator[str]:
    if not isinstance(types, dict):
        yield f"{document.at('available_node_types')}: available_node_types must be a mapping"
        return
    if not isinstance(head_type, str) or head_type not in types:
        yield f"{document.at('head_node_type')}: head_node_type {head_type!r} is not one of available_node_types"
    taken: dict[str, str] = {}
    for name, kind in types.items():
        path = ("available_node_types", str(name))
        if not isinstance(kind, dict):
            yield f"{document.at(*path)}: {name} must be a mapping"
            continue
        for key in ("min_workers", "max_workers"):
            yield from problems_of_number(document, (*path, key), whole=True)
        yield from problems_of_pod(document, (*path, "node_config"))
        yield from _amounts(document, (*path, "resources"), kind.get("resources"))
        if name != head_type:
            yield from _group(document, path, str(name), taken)


def group_name(node_type: str) -> str:
    """A node type as the name of a worker group."""
    return node_type.lower().replace("_", "-").replace(".", "-")


def _group(document: Document, path: Path, name: str, taken: dict[str, str]) -> Iterator[str]:
    group = group_name(name)
    if not _GROUP_NAME.fullmatch(group) or group == names.HEAD_GROUP:
        yield f"{document.at(*path)}: {name!r:.80} cannot name a group of pods; use letters, digits and '-'"
    elif group in taken:
        yield f"{document.at(*path)}: {name} and {taken[group]} both become group {group}; rename one"
    taken.setdefault(group, name)


def problems_of_pod(document: Document, path: Path) -> Iterator[str]:
    """A whole Pod of the historic schema; one that is left out or empty means the built-in template."""
    pod = _reached(document.data, path)
    if not pod:
        return
    where = ".".join(path)
    if not isinstance(pod, dict):
        yield f"{document.at(*path)}: {where} must be a mapping"
        return
    yield from _texts(document, (*path, "metadata"), pod.get("metadata"))
    spec = pod.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    if not isinstance(containers, list) or not containers:
        yield f"{document.at(*path, 'spec', 'containers')}: {where}.spec.containers must be a list of containers"
        return
    for index, container in enumerate(containers):
        yield from _container(document, (*path, "spec", "containers", str(index)), container)


def _container(document: Document, path: Path, container: Any) -> Iterator[str]:
    if not isinstance(container, dict):
        yield f"{document.at(*path)}: a container must be a mapping, not {container!r:.60}"
        return
    for key in ("command", "args"):
        words = container.get(key)
        if words is not None and not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            yield f"{document.at(*path, key)}: {key} must be a list of texts; put numbers and yes/no into quotes"
    if container.get("image") is not None and not isinstance(container["image"], str):
        yield f"{document.at(*path, 'image')}: image must be a text"
    resources = container.get("resources")
    if resources is not None and not isinstance(resources, dict):
        yield f"{document.at(*path, 'resources')}: resources must be a mapping of limits and requests"
        return
    for side in ("limits", "requests"):
        yield from _amounts(document, (*path, "resources", side), (resources or {}).get(side))


def _texts(document: Document, path: Path, metadata: Any) -> Iterator[str]:
    if metadata is None:
        return
    if not isinstance(metadata, dict):
        yield f"{document.at(*path)}: metadata must be a mapping"
        return
    for key in ("labels", "annotations"):
        held = metadata.get(key)
        if held is not None and not isinstance(held, dict):
            yield f"{document.at(*path, key)}: {key} must be a mapping"
            continue
        for name, value in (held or {}).items():
            if not isinstance(name, str) or not isinstance(value, str):
                yield f"{document.at(*path, key, name)}: {key}.{name} must be a text; put {value!r:.60} into quotes"


def _amounts(document: Document, path: Path, amounts: Any) -> Iterator[str]:
    if amounts is None:
        return
    if not isinstance(amounts, dict):
        yield f"{document.at(*path)}: {path[-1]} must be a mapping of amounts"
        return
    for name, amount in amounts.items():
        try:
            quantity.parse(amount if isinstance(amount, (int, float)) else str(amount))
        except BadInput as error:
            yield f"{document.at(*path, name)}: {path[-1]}.{name}: {error}"


def _reached(data: Any, path: Path) -> Any:
    for key in path:
        if not isinstance(data, dict):
            return None
        data = data.get(key)
    return data
