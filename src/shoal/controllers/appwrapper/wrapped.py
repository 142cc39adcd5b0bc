"""The objects an AppWrapper wraps, as they are created: labels, owner, gang marks.

Pure. Names and contents follow from the AppWrapper alone, so creating twice makes the same object. The labels and
the merge into pod templates are MCAD's; marks under our own prefix are written by us only, whatever the user put
there.
"""

from __future__ import annotations

from typing import Any

from shoal.api import gang
from shoal.api.appwrapper import AppWrapper, GenericItem, PodSetInfo, wrapped_items
from shoal.api.codec import opened, plain
from shoal.api.meta import Json
from shoal.controllers.demand.app_wrapper import gang_size, queued_templates
from shoal.controllers.demand.templates import Path, templates
from shoal.errors import BadInput

WRAPPER_LABEL = "appwrapper.mcad.ibm.com"
NAME_LABEL = "resourceName"
LONGEST_NAME = 253
SERVER_OWNED = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "managedFields",
    "generation",
    "selfLink",
)


def gang_key(wrapper: AppWrapper) -> str:
    """`AppWrapper/namespace/name`, as the engine and people call it. The legacy group is a kind of its own."""
    legacy = "" if wrapper.api_version.startswith("workload.codeflare.dev/") or not wrapper.api_version else ".mcad"
    return f"AppWrapper{legacy}/{wrapper.metadata.namespace}/{wrapper.metadata.name}"


def wrapped_objects(wrapper: AppWrapper, *, bound_whole: bool = True) -> list[Json]:
    """Every wrapped object in list order, ready to create. Raises BadInput with the item and field at fault.

    `bound_whole`: the pods say how many they are, and our scheduler binds all of them or none.
    """
    marks = marks_of(wrapper, gang_size(wrapper) if bound_whole else 0)
    made: dict[tuple[str, str, str], Json] = {}
    for index, item in enumerate(wrapped_items(wrapper)):
        try:
            obj = _object(wrapper, item, marks)
            name = (obj["apiVersion"], obj["kind"], obj["metadata"]["name"])
            if name in made:
                raise BadInput(f"{name[1]} {name[2]} is wrapped twice; give each its own name")
            made[name] = obj
        except BadInput as error:
            raise BadInput(f"spec.resources.GenericItems[{index}].generictemplate: {error}") from error
    return list(made.values())


def templates_of(wrapper: AppWrapper) -> list[Json]:
    """The wrapped objects as the user wrote them, of either dialect, in list order."""
    if wrapper.spec.components is not None:
        return [opened(component.template) for component in wrapper.spec.components]
    return [opened(item.generic_template) for item in wrapped_items(wrapper)]


def wrapped_names(wrapper: AppWrapper) -> list[tuple[str, str, str]]:
    """apiVersion, kind and name of every wrapped object, as it will be created."""
    return [
        (str(obj.get("apiVersion") or ""), str(obj.get("kind") or ""), fixed_name(wrapper, index, obj))
        for index, obj in enumerate(templates_of(wrapper))
    ]


def fixed_name(wrapper: AppWrapper, index: int, template: Json) -> str:
    """The object's name; a component with only a generateName gets a fixed one: creating twice must make one object."""
    metadata = template.get("metadata")
    if not isinstance(metadata, dict):
        return ""
    name = str(metadata.get("name") or "")
    stem = str(metadata.get("generateName") or "") if wrapper.spec.components is not None else ""
    return f"{stem[:50]}{wrapper.metadata.uid[:8]}-{index}" if stem and not name else name


def owner_reference(wrapper: AppWrapper) -> Json:
    return {
        "apiVersion": wrapper.api_version or "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "name": wrapper.metadata.name,
        "uid": wrapper.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _object(wrapper: AppWrapper, item: GenericItem, marks: dict[str, str]) -> Json:
    obj = opened(item.generic_template)
    if not obj.get("apiVersion") or not obj.get("kind"):
        raise BadInput("apiVersion and kind are required")
    metadata = obj.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise BadInput("metadata must be an object")
    metadata = dict(metadata)
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        raise BadInput("metadata.name is required")
    if len(name) > LONGEST_NAME:
        raise BadInput(f"metadata.name is longer than {LONGEST_NAME} characters")
    namespace = metadata.get("namespace") or wrapper.metadata.namespace
    if namespace != wrapper.metadata.namespace:
        raise BadInput(
            f'resource namespace "{namespace}" is different from AppWrapper namespace "{wrapper.metadata.namespace}"'
        )
    own = {WRAPPER_LABEL: wrapper.metadata.name, NAME_LABEL: name}
    for label, value in own.items():
        if len(value) > 63:
            raise BadInput(f"metadata.name: {value[:20]}… is longer than 63 characters and cannot be a label ({label})")
    labels = {**without_reserved(metadata.get("labels")), **own}
    metadata.update(
        namespace=namespace,
        labels=labels,
        annotations=marked(metadata.get("annotations"), marks),
        ownerReferences=[owner_reference(wrapper)],
    )
    for server_owned in SERVER_OWNED:
        metadata.pop(server_owned, None)
    made = {**obj, "metadata": metadata}
    made.pop("status", None)
    for template in templates(made):
        if template.path and template.is_inside:
            made = changed_at(made, template.path, lambda content: _template(content, own, marks))
    return _with_infos(_merged_template_labels(made, labels), item.pod_set_infos or (), own, marks)


def _with_infos(obj: Json, infos: tuple[PodSetInfo, ...], own: dict[str, str], marks: dict[str, str]) -> Json:
    """With what a queue gave to each pod set of the object, in the order of its templates."""
    for template, info in zip(queued_templates(obj), infos, strict=False):
        if template.is_inside:
            obj = changed_at(obj, template.path, lambda content, info=info: with_info(content, own, marks, info))
    return obj


def _template(content: Json, own: dict[str, str], marks: dict[str, str]) -> Json:
    """The two labels and the gang marks on a pod template, never the user's own labels of the outer object."""
    metadata = dict(content.get("metadata") or {})
    metadata["labels"] = {**without_reserved(metadata.get("labels")), **own}
    metadata["annotations"] = marked(metadata.get("annotations"), marks)
    return {**content, "metadata": metadata}


def _merged_template_labels(obj: Json, labels: dict[str, str]) -> Json:
    """As MCAD: all labels of the object win over those of `spec.template`, where that has a label map.

    Published manifests depend on it: a selector that matches only because the template's label is overwritten.
    """
    spec = obj.get("spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    if not isinstance(template, dict) or not (template.get("metadata") or {}).get("labels"):
        return obj
    merged: Json = changed_at(obj, ("spec", "template", "metadata", "labels"), lambda known: {**known, **labels})
    return merged


def with_info(content: Json, own: dict[str, str], marks: dict[str, str], info: PodSetInfo) -> Json:
    """A pod template with our labels and marks and what a queue's admission adds. Raises BadInput where that
    contradicts it."""
    metadata, spec = dict(content.get("metadata") or {}), dict(content.get("spec") or {})
    labels = merged_texts(without_reserved(metadata.get("labels")), {**own, **(info.labels or {})}, "label")
    annotations = merged_texts(marked(metadata.get("annotations"), marks), info.annotations or {}, "annotation")
    metadata.update(labels=labels, annotations=annotations)
    if info.node_selector:
        spec["nodeSelector"] = merged_texts(spec.get("nodeSelector") or {}, info.node_selector, "node selector")
    if info.tolerations:
        spec["tolerations"] = [*(spec.get("tolerations") or []), *plain(info.tolerations)]
    if info.scheduling_gates:
        known = {gate.get("name") for gate in spec.get("schedulingGates") or []}
        fresh = [{"name": gate.name} for gate in info.scheduling_gates if gate.name not in known]
        spec["schedulingGates"] = [*(spec.get("schedulingGates") or []), *fresh]
    return {**content, "metadata": metadata, "spec": spec}


def merged_texts(known: dict[str, Any], more: dict[str, str], what: str) -> dict[str, Any]:
    for name, value in more.items():
        if known.get(name, value) != value:
            raise BadInput(f"conflict: {what} {name} is {known[name]!r} in the template and should become {value!r}")
    return {**known, **more}


def marks_of(wrapper: AppWrapper, size: int) -> dict[str, str]:
    """What ties pods to this gang; the scheduler binds them whole or not at all."""
    marks = {gang.GANG_NAME: gang_key(wrapper), gang.GANG_UID: wrapper.metadata.uid}
    return {**marks, gang.GANG_SIZE: str(size)} if size else marks


def marked(annotations: Any, marks: dict[str, str]) -> dict[str, str]:
    return {**without_reserved(annotations), **marks}


def without_reserved(texts: Any) -> dict[str, str]:
    """Labels or annotations of a user, without those under our own prefix: these we alone write."""
    if not isinstance(texts, dict):
        return {}
    return {name: value for name, value in texts.items() if not str(name).startswith(gang.PREFIX)}


def changed_at(value: Any, path: Path, change: Any) -> Any:
    """A copy with the value at `path` changed; nothing else is copied."""
    if not path:
        return change(value)
    step, rest = path[0], path[1:]
    copied: Any = list(value) if isinstance(value, list) else dict(value)
    copied[step] = changed_at(copied[step], rest, change)
    return copied
