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

NATIVE = "scheduling.k8s.io"
"""Kubernetes' own group; pods name their PodGroup in their spec, not by a label."""
_VERSIONS = {"scheduling.x-k8s.io": "v1alpha1", NATIVE: "v1alpha2"}


def added_names(wrapper: AppWrapper, settings: AppWrapperSettings) -> tuple[Name, ...]:
    """Objects beyond the wrapped ones that a start will create."""
    added = settings.pod_groups and gang_size(wrapper)
    return ((*pod_group_kind(settings), wrapper.metadata.name),) if added else ()


def placed(
    wrapper: AppWrapper, objects: list[Json], admission: StoredAdmission, settings: AppWrapperSettings
) -> list[Json]:
    """The objects of a start, with a PodGroup in front and pins in their pod templates, as far as asked for."""
    if settings.pin_nodes:
        objects = [_pinned(obj, index, admission) for index, obj in enumerate(objects)]
    size = gang_size(wrapper)
    if not settings.pod_groups or not size:
        return objects
    join = _joined if settings.pod_group_api == NATIVE else _labelled
    grouped = [join(obj, wrapper.metadata.name) for obj in objects]
    return [_pod_group(wrapper, size, settings), *grouped]


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


def _joined(obj: Json, group: str) -> Json:
    for template in templates(obj):
        if template.is_inside:
            obj = _with_spec(obj, template, "schedulingGroup", {"podGroupName": group})
    return obj


def _with_spec(obj: Json, template: Template, field: str, values: dict[str, str]) -> Json:
    changed: Json = changed_at(
        obj, (*template.path, "spec"), lambda spec: {**spec, field: {**values, **(spec.get(field) or {})}}
    )
    return changed


def pod_group_kind(settings: AppWrapperSettings) -> tuple[str, str]:
    """API version and kind."""
    return f"{settings.pod_group_api}/{_VERSIONS[settings.pod_group_api]}", "PodGroup"


def _pod_group(wrapper: AppWrapper, size: int, settings: AppWrapperSettings) -> Json:
    api_version, kind = pod_group_kind(settings)
    native = settings.pod_group_api == NATIVE
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": wrapper.metadata.name,
            "namespace": wrapper.metadata.namespace,
            "ownerReferences": [owner_reference(wrapper)],
        },
        "spec": {"schedulingPolicy": {"gang": {"minCount": size}}} if native else {"minMember": size},
    }
