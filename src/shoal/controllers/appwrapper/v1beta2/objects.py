"""A v1beta2 AppWrapper's components as they are created: label, owner, gang marks, and what a queue injected.

Pure. A label, annotation or node selector that a template sets differently from what must be injected is a conflict
and fails the start; nothing of the user's is overwritten.
"""

from __future__ import annotations

from shoal.api.appwrapper import AppWrapper, Component, PodSetInfo
from shoal.api.codec import opened
from shoal.api.meta import Json
from shoal.controllers.appwrapper.wrapped import (
    SERVER_OWNED,
    changed_at,
    fixed_name,
    marked,
    marks_of,
    merged_texts,
    owner_reference,
    with_info,
    without_reserved,
)
from shoal.controllers.demand.app_wrapper import component_templates, gang_size
from shoal.controllers.planning.node_health import NodeHealth, avoiding
from shoal.errors import BadInput

LABEL = "workload.codeflare.dev/appwrapper"


def component_objects(wrapper: AppWrapper, health: NodeHealth, *, bound_whole: bool = True) -> list[Json]:
    """Every component in list order, ready to create. Raises BadInput with the component at fault."""
    components = wrapper.spec.components or ()
    size = gang_size(wrapper) if bound_whole else 0
    made = []
    for index, component in enumerate(components):
        try:
            made.append(_object(wrapper, component, index, marks_of(wrapper, size), health))
        except BadInput as error:
            raise BadInput(f"spec.components[{index}].template: {error}") from error
    return made


def expected_pods(wrapper: AppWrapper) -> int:
    return sum(
        template.count for component in wrapper.spec.components or () for template in component_templates(component)
    )


def _object(wrapper: AppWrapper, component: Component, index: int, marks: dict[str, str], health: NodeHealth) -> Json:
    obj = opened(component.template)
    if not obj.get("apiVersion") or not obj.get("kind"):
        raise BadInput("apiVersion and kind are required")
    metadata = dict(obj.get("metadata") or {})
    name = fixed_name(wrapper, index, obj)
    if not name:
        raise BadInput("metadata.name or metadata.generateName is required")
    namespace = metadata.get("namespace") or wrapper.metadata.namespace
    if namespace != wrapper.metadata.namespace:
        raise BadInput(f"AppWrappers can not create objects in other namespaces: {namespace}")
    own = {LABEL: wrapper.metadata.name}
    for server_owned in (*SERVER_OWNED, "generateName"):
        metadata.pop(server_owned, None)
    metadata.update(
        name=name,
        namespace=namespace,
        labels=merged_texts(without_reserved(metadata.get("labels")), own, "label"),
        annotations=marked(metadata.get("annotations"), marks),
        ownerReferences=[owner_reference(wrapper)],
    )
    made = {**obj, "metadata": metadata}
    made.pop("status", None)
    infos = component.pod_set_infos or ()
    for number, template in enumerate(component_templates(component)):
        info = infos[number] if number < len(infos) else PodSetInfo()
        if template.is_inside:
            made = changed_at(
                made,
                template.path,
                lambda content, info=info: avoiding(with_info(content, own, marks, info), health),
            )
    return made
