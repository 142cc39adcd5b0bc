"""What a namespace adds to pods that do not say what they need: the defaults of its LimitRanges. Pure.

The API server fills them in when a pod is created, so a gang whose templates leave amounts out is as large as they
make it. Asked for each template before its demand is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoal.api.meta import Json

Defaults = tuple[dict[str, Any], ...]
"""Of each LimitRange, in the order of their names, the requests that it gives a container without any."""


def defaults_of(ranges: Iterable[Json]) -> Defaults:
    found = []
    for one in sorted(ranges, key=lambda one: str(one["metadata"].get("name"))):
        requests: dict[str, Any] = {}
        limits = (one.get("spec") or {}).get("limits")
        for item in limits if isinstance(limits, list) else ():
            if isinstance(item, dict) and item.get("type") == "Container":
                requests.update(_requests(item))
        if requests:
            found.append(requests)
    return tuple(found)


def _requests(item: Json) -> dict[str, Any]:
    """As the server completes a LimitRange: the default limit is the maximum, the default request is that or the
    minimum, where nothing else is said."""
    parts = {name: item.get(name) for name in ("min", "max", "default", "defaultRequest")}
    known: dict[str, Mapping[str, Any]] = {name: part if isinstance(part, dict) else {} for name, part in parts.items()}
    limits = {**known["max"], **known["default"]}
    return {**known["min"], **limits, **known["defaultRequest"]}


def completed(template: Json, defaults: Defaults) -> Json:
    """The template as its pods will be stored; the same object where nothing is added."""
    spec = template.get("spec")
    if not defaults or not isinstance(spec, dict):
        return template
    changed: Json = {}
    for part in ("containers", "initContainers"):
        listed = spec.get(part)
        if isinstance(listed, list):
            changed[part] = [_container(one, defaults) if isinstance(one, dict) else one for one in listed]
    return {**template, "spec": {**spec, **changed}}


def _container(container: Json, defaults: Sequence[Mapping[str, Any]]) -> Json:
    resources = container.get("resources") or {}
    if not isinstance(resources, dict):
        return container
    stated = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    for one in defaults:  # what an earlier LimitRange gave, a later one does not change
        stated = {**one, **stated}
    return {**container, "resources": {**resources, "requests": stated}}
