"""What users ask of a queue about where pods go: topology annotations that cannot be met are refused, and what has no
effect is said, never passed over. Called by admission."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from shoal.api.meta import Json
from shoal.api.topology_annotations import TemplateOf, topology_problems
from shoal.controllers.queues.jobs import GangJob
from shoal.errors import BadInput


@runtime_checkable
class WithTemplatePaths(Protocol):
    """A kind of job that says where its pod templates stand, in the order of its pod sets."""

    def template_paths(self, job: Json) -> list[str]: ...


def problems(kind: GangJob, job: Json) -> list[str]:
    """What is wrong with the topology annotations of its templates."""
    try:
        pod_sets = kind.pod_sets(job)
        paths = kind.template_paths(job) if isinstance(kind, WithTemplatePaths) else []
    except (BadInput, TypeError, ValueError, AttributeError, KeyError, IndexError):
        return []  # the check of its shape says so
    if len(paths) != len(pod_sets):
        paths = [f"podSets[{one['name']}].template" for one in pod_sets]
    return topology_problems(
        [
            TemplateOf(f"{path}.metadata.annotations", one.get("template") or {}, one["count"])
            for path, one in zip(paths, pod_sets, strict=True)
        ]
    )


def warnings(templates: Iterable[Json]) -> tuple[str, ...]:
    """Claims that have no effect."""
    if any((template.get("spec") or {}).get("resourceClaims") for template in templates):
        return ("spec.resourceClaims: devices claimed this way are not counted against quota yet",)
    return ()


CONCURRENT = (
    "spec.concurrentAdmissionPolicy: has no effect here: a gang is tried on one set of flavors, and stays there"
)


def warnings_of_object(obj: Json) -> tuple[str, ...]:
    """The same of a Workload or a ClusterQueue that a user made."""
    if obj.get("kind") == "ClusterQueue" and (obj.get("spec") or {}).get("concurrentAdmissionPolicy"):
        return (CONCURRENT,)
    if obj.get("kind") != "Workload":
        return ()
    pod_sets = (obj.get("spec") or {}).get("podSets") or []
    return warnings({"spec": (one.get("template") or {}).get("spec")} for one in pod_sets)
