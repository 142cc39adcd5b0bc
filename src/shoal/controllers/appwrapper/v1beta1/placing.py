"""Help for pod schedulers that are not ours: a PodGroup per gang, and pods pinned to the node that was planned.

Pure. Both are off unless the installation asks for them; what a user wrote about placement is never overwritten.
"""

from __future__ import annotations

from shoal.api.appwrapper import AppWrapper
from shoal.api.labels import HOSTNAME
from shoal.api.meta import Json
from shoal.api.scheduling import POD_GROUP_LABEL
from shoal.controllers.appwrapper.settings import AppWrapperSettings
from shoal.controllers.appwrapper.status.admission import Name, StoredAdmission
from shoal.controllers.appwrapper.wrapped import changed_at, owner_reference
from shoal.controllers.demand.app_wrapper import gang_size
from shoal.controllers.demand.templates import Template, templates

POD_GROUP = ("scheduling.x-k8s.io/v1alpha1", "PodGroup")


def added_names(wrapper: AppWrapper, settings: AppWrapperSettings) -> tuple[Name, ...]:
    """Objects beyond the wrapped ones that a start will create."""
    return ((*POD_GROUP, wrapper.metadata.name),) if settings.pod_groups and gang_size(wrapper) else ()


def placed(
    wrapper: AppWrapper, objects: list[Json], admission: StoredAdmission, settings: AppWrapperSettings
) -> list[Json]:
    """The objects of a start, with a PodGroup in front and pins in their pod templates, as far as asked for."""
    if settings.pin_nodes:
        objects = [_pinned(obj, index, admission) for index, obj in enumerate(objects)]
    size = gang_size(wrapper)
    if not settings.pod_groups or not size:
        return objects
    grouped = [_labelled(obj, wrapper.metadata.name) for obj in objects]
    return [_pod_group(wrapper, size), *grouped]


def _pinned(obj: Json, index: int, admission: StoredAdmission) -> Json:
    """Templates all of whose pods were planned on one node get that node; others keep their freedom."""
    for number, template in enumerate(templates(obj)):
        given = admission.sets.get(f"{index}.{template.name}") or admission.sets.get(f"{index}.{number}")
        nodes = list(given.nodes) if given is not None else []
        if len(nodes) == 1 and template.is_inside:
            obj = _with_spec(obj, template, "nodeSelector", {HOSTNAME: nodes[0]})
    return obj


def _labelled(obj: Json, group: str) -> Json:
    def labelled(metadata: Json) -> Json:
        return {**metadata, "labels": {POD_GROUP_LABEL: group, **(metadata.get("labels") or {})}}

    for template in templates(obj):
        if template.is_inside:
            obj = changed_at(obj, (*template.path, "metadata"), labelled)
    return obj


def _with_spec(obj: Json, template: Template, field: str, values: dict[str, str]) -> Json:
    changed: Json = changed_at(
        obj, (*template.path, "spec"), lambda spec: {**spec, field: {**values, **(spec.get(field) or {})}}
    )
    return changed


def _pod_group(wrapper: AppWrapper, size: int) -> Json:
    return {
        "apiVersion": POD_GROUP[0],
        "kind": POD_GROUP[1],
        "metadata": {
            "name": wrapper.metadata.name,
            "namespace": wrapper.metadata.namespace,
            "ownerReferences": [owner_reference(wrapper)],
        },
        "spec": {"minMember": size},
    }
