"""Tolerations that pods get by themselves for the devices they ask for.

Many clusters taint device nodes and let the API server add the matching toleration to every pod that asks for such a
device (the admission plug-in ExtendedResourceToleration; the embedded server always does). A controller that
judges pods before they exist must add it, too: AppWrappers and queues by the same rule. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shoal.api.meta import Json
from shoal.engine.model import Gang, Toleration
from shoal.engine.nodes import is_accelerator


def tolerating(gang: Gang) -> Gang:
    """The gang as its pods will be stored."""
    pod_sets = tuple(
        msgspec.structs.replace(
            one,
            tolerations=(*one.tolerations, *(Toleration(name, "Exists") for name in devices(one.requests))),
        )
        for one in gang.pod_sets
    )
    return msgspec.structs.replace(gang, pod_sets=pod_sets)


def tolerating_template(template: Json) -> None:
    """Add the tolerations to a template that stands for pods to come."""
    spec = template["spec"]
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    asked = [
        name
        for one in containers
        for part in ("requests", "limits")
        for name in (one.get("resources") or {}).get(part) or ()
    ]
    extra = [{"key": name, "operator": "Exists"} for name in devices(asked)]
    missing = [one for one in extra if one not in (spec.get("tolerations") or ())]
    if missing:
        spec["tolerations"] = [*(spec.get("tolerations") or ()), *missing]


def devices(names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if is_accelerator(name)})
