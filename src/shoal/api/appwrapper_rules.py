"""What an AppWrapper or a QuotaSubtree must satisfy beyond its schema.

Called at admission, by the command line, and by the controller on objects that came in without admission. Whether the
creator may make the wrapped objects is not judged here: that needs the API server.
"""

from __future__ import annotations

import re
from typing import Any

from shoal.api.appwrapper_paths import resolve
from shoal.api.meta import Json
from shoal.api.problems import FieldError, check_amounts
from shoal.errors import BadInput

MOST_POD_SETS = 8
USER_LABELS = ("workload.codeflare.dev/user", "workload.codeflare.dev/userid")
LONGEST_LABEL = 63
_IMMUTABLE = "attempt to change immutable field"
_BOTH = "exactly one of spec.resources (v1beta1) and spec.components (v1beta2) must be set"


def validate_app_wrapper(obj: Json, old: Json | None = None) -> list[FieldError]:
    """All problems of an AppWrapper of either dialect."""
    spec = obj.get("spec") or {}
    if ("resources" in spec) == ("components" in spec):
        return [FieldError("spec", _BOTH)]
    metadata = obj.get("metadata") or {}
    namespace = metadata.get("namespace", "")
    errors = _check_name("metadata.name", metadata.get("name"))
    errors += _check_twins(spec)
    if "resources" in spec:
        return errors + _check_items(spec["resources"] or {}, namespace)
    errors += _check_components(spec["components"] or [], namespace)
    return errors + (_check_unchanged(obj, old) if old is not None else [])


def is_left_to_creation(error: FieldError, *, literally: bool = False) -> bool:
    """As MCAD: an item without an object, or whose object has no name, gets in and fails when it would be created.

    Its users' own suites submit such items and watch them fail, so admission warns and does not refuse. `literally`:
    where MCAD's cluster-wide sums decide, an object for another namespace gets in and fails as well.
    """
    if not error.path.startswith("spec.resources."):
        return False
    if error.type == "Forbidden":
        return literally and error.path.endswith(".metadata.namespace")
    return error.type == "Required" and error.path.endswith((".generictemplate", ".template", ".metadata.name"))


def wrapped_templates(obj: Json) -> list[tuple[str, Json]]:
    """Path and content of every wrapped object of a plain AppWrapper, whatever its dialect."""
    spec = obj.get("spec") or {}
    resources = spec.get("resources") or {}
    lists = (
        ("spec.resources.GenericItems", resources.get("GenericItems"), "generictemplate"),
        ("spec.resources.Items", resources.get("Items"), "template"),
        ("spec.components", spec.get("components"), "template"),
    )
    return [
        (f"{path}[{index}].{field}", item[field])
        for path, items, field in lists
        for index, item in enumerate(items or ())
        if isinstance(item, dict) and isinstance(item.get(field), dict)
    ]


def user_labels(name: str, uid: str) -> dict[str, str]:
    """The labels that name who created a v1beta2 AppWrapper; texts that leave nothing of a label have none."""
    found = zip(USER_LABELS, (sanitised(name), sanitised(uid)), strict=True)
    return {label: text for label, text in found if text}


def sanitised(text: str) -> str:
    """A user's name as a label value: at most 63 letters, digits, `-`, `_` and `.`, none of these three at an end."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:LONGEST_LABEL].strip("._-")


def wraps_the_same(obj: Json, old: Json) -> bool:
    """Are the wrapped objects unchanged? A user that changes them answers for them from then on, as the creator did."""
    return _wrapped(obj) == _wrapped(old)


def _wrapped(obj: Json) -> list[Any]:
    spec = obj.get("spec") or {}
    if not isinstance(spec, dict):
        return [spec]
    resources, components = spec.get("resources") or {}, spec.get("components") or []
    if not isinstance(resources, dict) or not isinstance(components, list):
        return [resources, components]
    listed = [*(resources.get("GenericItems") or ()), *(resources.get("Items") or ()), *components]
    return [item.get("generictemplate", item.get("template")) if isinstance(item, dict) else item for item in listed]


def _check_items(resources: Json, namespace: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for listed, field in (("GenericItems", "generictemplate"), ("Items", "template")):
        for index, item in enumerate(resources.get(listed) or ()):
            path = f"spec.resources.{listed}[{index}]"
            if field not in item:
                errors.append(FieldError(f"{path}.{field}", "the object to create is missing", "Required"))
            else:
                errors += _check_template(item[field], namespace, f"{path}.{field}")
                errors += _check_item_name(item[field], f"{path}.{field}.metadata.name")
            for position, pods in enumerate(item.get("custompodresources") or ()):
                where = f"{path}.custompodresources[{position}]"
                errors += check_amounts(f"{where}.requests", pods.get("requests"))
                errors += check_amounts(f"{where}.limits", pods.get("limits"))
                if not isinstance(pods.get("replicas", 0), int) or pods.get("replicas", 0) < 0:
                    errors.append(FieldError(f"{where}.replicas", "must be greater than or equal to 0"))
    return errors


def _check_twins(spec: Json) -> list[FieldError]:
    """One object stands in the list twice: only one of them could ever be made, and nothing says which."""
    errors, seen = [], set[tuple[str, str, str]]()
    resources = spec.get("resources") or {}
    lists = (
        ("spec.resources.GenericItems", resources.get("GenericItems"), "generictemplate"),
        ("spec.resources.Items", resources.get("Items"), "template"),
        ("spec.components", spec.get("components"), "template"),
    )
    for path, items, field in lists:
        for index, item in enumerate(items or ()):
            template = item.get(field) if isinstance(item, dict) else None
            metadata = template.get("metadata") if isinstance(template, dict) else None
            if not isinstance(template, dict) or not isinstance(metadata, dict) or not metadata.get("name"):
                continue
            name = (str(template.get("apiVersion")), _kind(template), str(metadata["name"]))
            if name in seen:
                words = f"{name[1]} {name[2]!r} is wrapped twice; give each its own name"
                errors.append(FieldError(f"{path}[{index}].{field}.metadata.name", words, "Duplicate"))
            seen.add(name)
    return errors


def _check_item_name(template: Any, path: str) -> list[FieldError]:
    """The name becomes a label of every pod."""
    metadata = template.get("metadata") if isinstance(template, dict) else {}
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not name:
        return [FieldError(path, "is required", "Required")]
    return _check_name(path, name)


def _check_name(path: str, name: Any) -> list[FieldError]:
    if isinstance(name, str) and len(name) > LONGEST_LABEL:
        return [FieldError(path, f"is longer than {LONGEST_LABEL} characters, and becomes a label of what is created")]
    return []


def _check_components(components: list[Json], namespace: str) -> list[FieldError]:
    errors: list[FieldError] = []
    declared = 0
    for index, component in enumerate(components):
        path = f"spec.components[{index}]"
        template = component.get("template")
        if not isinstance(template, dict):
            errors.append(FieldError(f"{path}.template", "the object to create is missing", "Required"))
            continue
        errors += _check_template(template, namespace, f"{path}.template")
        if (
            str(template.get("apiVersion", "")).startswith("workload.codeflare.dev/")
            and _kind(template) == "AppWrapper"
        ):
            errors.append(FieldError(f"{path}.template", "Nested AppWrappers are forbidden", "Forbidden"))
        pod_sets = component.get("podSets") or []
        declared += len(pod_sets)
        errors += _check_paths(pod_sets, template, path)
    if not components:
        errors.append(FieldError("spec.components", "at least one component is needed", "Required"))
    if declared > MOST_POD_SETS:
        errors.append(FieldError("spec.components", f"more than {MOST_POD_SETS} pod sets", "TooMany"))
    return errors


def _check_paths(pod_sets: list[Json], template: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, pod_set in enumerate(pod_sets):
        where = f"{path}.podSets[{index}].path"
        text = str(pod_set.get("path", ""))
        if text in seen:
            errors.append(FieldError(where, f"{text!r} is given twice", "Duplicate"))
        seen.add(text)
        try:
            found = resolve(template, text)
        except BadInput as error:
            errors.append(FieldError(where, str(error)))
            continue
        if not isinstance(found, dict) or not isinstance(found.get("spec"), dict):
            errors.append(FieldError(where, f"{text!r} does not point at a pod template with a spec"))
    return errors


def _check_template(template: Any, namespace: str, path: str) -> list[FieldError]:
    if not isinstance(template, dict):
        return [FieldError(path, "must be an object")]
    errors = [
        FieldError(f"{path}.{name}", "is required", "Required")
        for name in ("apiVersion", "kind")
        if not isinstance(template.get(name), str) or not template[name]
    ]
    metadata = template.get("metadata") or {}
    if not isinstance(metadata, dict):
        return [*errors, FieldError(f"{path}.metadata", "must be an object")]
    own = metadata.get("namespace", "")
    if namespace and own and own != namespace:
        errors.append(
            FieldError(
                f"{path}.metadata.namespace",
                f"AppWrappers can not create objects in other namespaces: write {namespace!r} or leave it out",
                "Forbidden",
            )
        )
    return errors


def _check_unchanged(obj: Json, old: Json) -> list[FieldError]:
    """What may not change after creation; `suspend`, annotations and podSetInfos may."""
    errors: list[FieldError] = []
    spec, before = obj.get("spec") or {}, old.get("spec") or {}
    ours, theirs = spec.get("components") or [], before.get("components") or []
    if len(ours) != len(theirs):
        return [FieldError("spec.components", _IMMUTABLE, "Forbidden")]
    for index, (new, was) in enumerate(zip(ours, theirs, strict=True)):
        if new.get("template") != was.get("template"):
            errors.append(FieldError(f"spec.components[{index}].template", _IMMUTABLE, "Forbidden"))
        if _counted(new) != _counted(was):
            errors.append(FieldError(f"spec.components[{index}].podSets", _IMMUTABLE, "Forbidden"))
    if spec.get("managedBy") != before.get("managedBy"):
        errors.append(FieldError("spec.managedBy", _IMMUTABLE, "Forbidden"))
    labels, labelled = _labels(obj), _labels(old)
    errors += [
        FieldError(f"metadata.labels[{name}]", _IMMUTABLE, "Forbidden")
        for name in USER_LABELS
        if labels.get(name) != labelled.get(name)
    ]
    return errors


def validate_quota_subtree(obj: Json) -> list[FieldError]:
    """A tree label, and children with distinct names and sound amounts."""
    errors: list[FieldError] = []
    if not _labels(obj).get("tree"):
        errors.append(FieldError("metadata.labels[tree]", "the name of the quota tree is missing", "Required"))
    seen: set[str] = set()
    for index, child in enumerate((obj.get("spec") or {}).get("children") or ()):
        path = f"spec.children[{index}]"
        name = child.get("name", "")
        if not name:
            errors.append(FieldError(f"{path}.name", "is required", "Required"))
        elif name in seen:
            errors.append(FieldError(f"{path}.name", f"{name!r} is given twice", "Duplicate"))
        seen.add(name)
        errors += check_amounts(f"{path}.quotas.requests", (child.get("quotas") or {}).get("requests"))
    return errors


def _counted(component: Json) -> list[tuple[Any, Any]]:
    return [(pod_set.get("path"), pod_set.get("replicas", 1)) for pod_set in component.get("podSets") or ()]


def _kind(template: Json) -> str:
    return str(template.get("kind", ""))


def _labels(obj: Json) -> Json:
    labels: Json = (obj.get("metadata") or {}).get("labels") or {}
    return labels
