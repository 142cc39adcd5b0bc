"""What the API server adds to pods that do not say it themselves: the defaults of the namespace's LimitRanges, and the
overhead and places of the RuntimeClass that a pod names. Pure.

It is filled in when a pod is created, so a gang whose templates leave it out is as large as that makes it. Asked for
each template before its demand is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from shoal.api.meta import Json
from shoal.controllers.ray.settings import RaySidecars


class Defaults(msgspec.Struct, frozen=True):
    """What pods of one namespace are given."""

    requests: tuple[dict[str, Any], ...] = ()
    """Of each LimitRange, in the order of their names, the requests that it gives a container without any."""
    classes: dict[str, Json] = {}
    """RuntimeClasses by name, as far as they add something: `overhead`, `nodeSelector`, `tolerations`."""
    sidecars: RaySidecars = RaySidecars()
    """What our Ray operator adds to its pods, in every namespace alike."""


NOTHING = Defaults()


def defaults_of(ranges: Iterable[Json], classes: Iterable[Json] = ()) -> Defaults:
    added = {str(one["metadata"].get("name")): _added_by(one) for one in classes}
    return Defaults(_requests_of(ranges), {name: one for name, one in sorted(added.items()) if one})


def _added_by(runtime_class: Json) -> Json:
    scheduling = runtime_class.get("scheduling") or {}
    found = {
        "overhead": (runtime_class.get("overhead") or {}).get("podFixed"),
        "nodeSelector": scheduling.get("nodeSelector"),
        "tolerations": scheduling.get("tolerations"),
    }
    return {name: value for name, value in found.items() if value}


def _requests_of(ranges: Iterable[Json]) -> tuple[dict[str, Any], ...]:
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
    if defaults == NOTHING or not isinstance(spec, dict):
        return template
    changed: Json = {}
    for part in ("containers", "initContainers") if defaults.requests else ():
        listed = spec.get(part)
        if isinstance(listed, list):
            changed[part] = [_container(one, defaults.requests) if isinstance(one, dict) else one for one in listed]
    return {**template, "spec": in_its_class({**spec, **changed}, defaults.classes)}


def in_its_class(spec: Json, classes: Mapping[str, Json]) -> Json:
    """A pod's spec with what the RuntimeClass that it names adds to it."""
    added = classes.get(str(spec.get("runtimeClassName") or ""))
    if added is None:
        return spec
    merged = {**spec}
    if "overhead" in added:
        merged["overhead"] = added["overhead"]
    if "nodeSelector" in added and isinstance(spec.get("nodeSelector") or {}, dict):
        merged["nodeSelector"] = {**added["nodeSelector"], **(spec.get("nodeSelector") or {})}
    if "tolerations" in added and isinstance(spec.get("tolerations") or [], list):
        merged["tolerations"] = [*(spec.get("tolerations") or []), *added["tolerations"]]
    return merged


def _container(container: Json, defaults: Sequence[Mapping[str, Any]]) -> Json:
    resources = container.get("resources") or {}
    if not isinstance(resources, dict):
        return container
    stated = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    for one in defaults:  # what an earlier LimitRange gave, a later one does not change
        stated = {**one, **stated}
    return {**container, "resources": {**resources, "requests": stated}}
