"""Checks of the annotation `ray.io/ippr`: how far Ray's autoscaler may resize pods in place.

Ray's autoscaler does the work (`pods/resize`) and stops scaling at all when it cannot read its settings, so what it
would stumble over is refused here. The operator never looks at the size of a pod that runs, so it does not fight it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from shoal.api import quantity
from shoal.api.labels import KUEUE_QUEUE
from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.settings import RaySettings
from shoal.errors import BadInput

_HEAD = "headgroup"


class _Bounds(msgspec.Struct, rename="kebab"):
    max_cpu: str | int | float
    max_memory: str | int
    resize_timeout: Annotated[int, msgspec.Meta(gt=0)]


class _Resizes(msgspec.Struct):
    groups: dict[str, _Bounds] = {}


def problems_of_resize(cluster: Json, settings: RaySettings) -> Iterator[str]:
    annotation = f"annotation {names.RESIZE}"
    if not settings.pod_resize:
        yield f"{annotation}: the nodes of this cluster do not resize pods in place; remove it"
        return
    if KUEUE_QUEUE in view.labels(cluster):
        yield f"{annotation}: a queue admits pods with the size of their templates; remove it, or the queue's label"
    if not (view.autoscaling(cluster) and view.uses_autoscaler_v2(cluster)):
        yield f"{annotation} needs spec.enableInTreeAutoscaling: true and spec.autoscalerOptions.version: v2"
    try:
        asked = msgspec.json.decode(view.annotations_of(cluster)[names.RESIZE], type=_Resizes)
    except (msgspec.MsgspecError, UnicodeError) as error:
        yield f'{annotation}: {error}; write {{"groups": {{NAME: {{"max-cpu", "max-memory", "resize-timeout"}}}}}}'
        return
    shapes = {_HEAD: view.head(cluster), **{view.group_name(group): group for group in view.groups(cluster)}}
    for name, bounds in asked.groups.items():
        if name not in shapes:
            yield f"{annotation} names group {name!r}, which is not one of {', '.join(shapes)}"
            continue
        for problem in (*_misread(bounds), *_unfit(shapes[name])):
            yield f"{annotation}, group {name}: {problem}"


def _misread(bounds: _Bounds) -> Iterator[str]:
    for field, value in (("max-cpu", bounds.max_cpu), ("max-memory", bounds.max_memory)):
        try:
            quantity.parse(value)
        except BadInput as error:
            yield f"{field}: {error}"


def _unfit(group: Json) -> Iterator[str]:
    """What Ray's autoscaler refuses about the pods of a group."""
    for parameter in ("num-cpus", "memory"):
        if parameter in view.start_params(group):
            yield f"rayStartParams.{parameter} fixes what a resize changes; remove it"
    container = view.ray_container(group)
    requests = (container.get("resources") or {}).get("requests") or {}
    if not {"cpu", "memory"} <= set(requests):
        yield "its Ray container must request cpu and memory, from which resizes start"
    for policy in container.get("resizePolicy") or []:
        if policy.get("resourceName") in ("cpu", "memory") and policy.get("restartPolicy") == "RestartContainer":
            yield f"resizePolicy of {policy['resourceName']} restarts the container; use NotRequired"
