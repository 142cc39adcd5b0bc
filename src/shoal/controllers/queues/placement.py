"""What users may ask of a queue about where pods go, and that these queues do not do: it is said, never passed over.

Called by admission. A gang that must be kept together by topology would start anywhere, so it is refused; what was only
preferred, and claims on devices that no quota counts, draw a warning that kubectl prints.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.api.meta import Json

_PREFIX = "kueue.x-k8s.io/podset-"
REQUIRED = tuple(
    f"{_PREFIX}{name}"
    for name in ("required-topology", "slice-required-topology", "slice-required-topology-constraints", "slice-size")
)
WISHED = (f"{_PREFIX}preferred-topology", f"{_PREFIX}unconstrained-topology")
_IN_WORKLOADS = ("required", "preferred", "podSetSliceRequiredTopology", "podsetSliceRequiredTopologyConstraints")
_UNDONE = "these queues do not place pods by topology"


def problems(templates: Iterable[Json]) -> list[str]:
    """Annotations of pod templates that demand a topology."""
    asked = {name for template in templates for name in _annotations(template)}
    return [f"annotation {name}: {_UNDONE} yet; remove it" for name in REQUIRED if name in asked]


def warnings(templates: Iterable[Json]) -> tuple[str, ...]:
    """Wishes and claims that have no effect."""
    templates = list(templates)
    asked = {name for template in templates for name in _annotations(template)}
    found = [f"annotation {name} has no effect: {_UNDONE} yet" for name in WISHED if name in asked]
    if any((template.get("spec") or {}).get("resourceClaims") for template in templates):
        found.append("spec.resourceClaims: devices claimed this way are not counted against quota yet")
    return tuple(found)


def warnings_of_object(obj: Json) -> tuple[str, ...]:
    """The same of a Workload that a user made, and of a flavor that names a topology."""
    spec = obj.get("spec") or {}
    if obj.get("kind") == "ResourceFlavor" and spec.get("topologyName"):
        return (f"spec.topologyName has no effect: {_UNDONE} yet",)
    if obj.get("kind") != "Workload":
        return ()
    pod_sets = spec.get("podSets") or []
    asked = sorted({name for one in pod_sets for name in _IN_WORKLOADS if (one.get("topologyRequest") or {}).get(name)})
    found = [f"topologyRequest.{name} has no effect: {_UNDONE} yet" for name in asked]
    claims = warnings({"spec": (one.get("template") or {}).get("spec")} for one in pod_sets)
    return (*found, *claims)


def _annotations(template: Json) -> Json:
    found: Json = (template.get("metadata") or {}).get("annotations") or {}
    return found
