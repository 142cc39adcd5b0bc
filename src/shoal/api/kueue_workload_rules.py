"""Kueue's admission rules for Workloads: what may be asked for, and what stays once quota is reserved.

Called by the webhook with the gates of its configuration. Field paths and types are Kueue's, down to `spec.podSets.0`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shoal.api.kueue_rules import check_labels, check_tolerations
from shoal.api.labels import KUEUE_ELASTIC_JOB, KUEUE_GATED_BY, KUEUE_PRIORITY_BOOST, KUEUE_SLICE_REPLACES
from shoal.api.meta import Json
from shoal.api.names import check_qualified, check_subdomain
from shoal.api.problems import FieldError, check_amount
from shoal.api.quantity import amount
from shoal.errors import BadInput

DEFAULT_GATES = {
    "AdmissionGatedBy": True,
    "ElasticJobsViaWorkloadSlices": True,
    "PriorityBoost": False,
    "TASValidateWorkloadSliceSize": True,
    "WorkloadValidateResourcesAreNonNegative": True,
    "WorkloadValidationForPodSetMetadata": True,
}

_IMMUTABLE = "field is immutable"
_PATH = re.compile(r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+", re.ASCII)


def validate_workload(obj: Json, old: Json | None = None, gates: Mapping[str, bool] | None = None) -> list[FieldError]:
    on = {**DEFAULT_GATES, **(gates or {})}
    errors = _check_pod_sets(obj, on)
    errors += _check_annotations(obj, old, on)
    errors += _check_updates(obj)
    errors += _check_reclaimable(obj, old, on)
    errors += _check_admission(obj, old)
    return errors + (_check_frozen(obj, old, on) if old is not None else [])


def is_elastic(obj: Json, gates: Mapping[str, bool]) -> bool:
    return gates["ElasticJobsViaWorkloadSlices"] and _annotations(obj).get(KUEUE_ELASTIC_JOB) == "true"


# --- what is asked for


def _check_pod_sets(obj: Json, gates: Mapping[str, bool]) -> list[FieldError]:
    errors: list[FieldError] = []
    pod_sets = _pod_sets(obj)
    partial = [pod_set for pod_set in pod_sets if pod_set.get("minCount") is not None]
    if len(partial) > 1:
        errors.append(FieldError("spec.podSets", "at most one podSet can use minCount"))
    if partial and is_elastic(obj, gates):
        errors.append(FieldError("spec.podSets", "partial admission and elastic job cannot be used together"))
    for index, pod_set in enumerate(pod_sets):
        path = f"spec.podSets[{index}]"
        template = pod_set.get("template") or {}
        if gates["WorkloadValidationForPodSetMetadata"]:
            metadata = template.get("metadata") or {}
            errors += check_labels(metadata.get("labels"), f"{path}.template.metadata.labels")
            errors += _check_keys(metadata.get("annotations"), f"{path}.template.metadata.annotations")
        errors += _check_resources(template.get("spec") or {}, f"{path}.template.spec", gates)
        if gates["TASValidateWorkloadSliceSize"]:
            errors += _check_slices(pod_set.get("topologyRequest") or {}, f"{path}.topologyRequest")
    return errors


def _check_resources(spec: Json, path: str, gates: Mapping[str, bool]) -> list[FieldError]:
    holders = [(spec, f"{path}")]
    for group in ("initContainers", "containers"):
        holders += [(container, f"{path}.{group}[{index}]") for index, container in enumerate(spec.get(group) or ())]
    errors: list[FieldError] = []
    for holder, where in holders:
        for part in ("requests", "limits"):
            for name, text in ((holder.get("resources") or {}).get(part) or {}).items():
                at = f"{where}.resources.{part}[{name}]"
                if name == "pods":
                    errors.append(FieldError(at, "the key is reserved for internal kueue use"))
                if gates["WorkloadValidateResourcesAreNonNegative"]:
                    errors += check_amount(at, text)
    return errors


def _check_slices(request: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    size, topology = request.get("podSetSliceSize"), request.get("podSetSliceRequiredTopology")
    if size is not None and topology is None:
        message = "may not be set when podSetSliceRequiredTopology is not specified"
        errors.append(FieldError(f"{path}.podSetSliceSize", message, "Forbidden"))
    elif size is None and topology is not None:
        message = "must be set when podSetSliceRequiredTopology is specified"
        errors.append(FieldError(f"{path}.podSetSliceSize", message, "Required"))
    elif size is not None and size <= 0:
        errors.append(FieldError(f"{path}.podSetSliceSize", "must be greater than 0"))
    for index, constraint in enumerate(request.get("podsetSliceRequiredTopologyConstraints") or ()):
        if (constraint.get("size") or 0) <= 0:
            where = f"{path}.podsetSliceRequiredTopologyConstraints[{index}].size"
            errors.append(FieldError(where, "must be greater than 0"))
    return errors


def _check_annotations(obj: Json, old: Json | None, gates: Mapping[str, bool]) -> list[FieldError]:
    annotations = _annotations(obj)
    errors: list[FieldError] = []
    boost = annotations.get(KUEUE_PRIORITY_BOOST)
    if gates["PriorityBoost"] and boost is not None and not re.fullmatch(r"[+-]?[0-9]{1,10}", boost, re.ASCII):
        hint = "" if boost else '; use "0" explicitly, empty string is not allowed'
        errors.append(
            FieldError(f"metadata.annotations[{KUEUE_PRIORITY_BOOST}]", f"must be a valid signed integer{hint}")
        )
    if not gates["AdmissionGatedBy"]:
        return errors
    path = f"metadata.annotations[{KUEUE_GATED_BY}]"
    names = _gate_names(obj)
    errors += _check_gate_names(names, path)
    if old is not None and names:
        before = _gate_names(old)
        if not before:
            errors.append(FieldError(path, "cannot add admission gate after creation", "Forbidden"))
        elif not set(names) <= set(before):
            errors.append(FieldError(path, "can only remove gates, not add new ones", "Forbidden"))
    return errors


def _check_gate_names(names: list[str], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, name in enumerate(names):
        domain, slash, rest = name.partition("/")
        if name in names[:index]:
            errors.append(FieldError(path, f"duplicate gate name: {name}"))
        elif not slash or not domain or not rest:
            errors.append(FieldError(path, 'must be a domain-prefixed path (such as "acme.io/foo")'))
        elif wrong := check_subdomain(domain):
            errors.append(FieldError(path, wrong))
        elif not _PATH.fullmatch(rest):
            errors.append(FieldError(path, f"Invalid path (regex used for validation is '{_PATH.pattern}')"))
    return errors


def _check_updates(obj: Json) -> list[FieldError]:
    """What admission checks want to add to templates."""
    names = [pod_set.get("name", "main") for pod_set in _pod_sets(obj)]
    errors: list[FieldError] = []
    for index, check in enumerate(_status(obj).get("admissionChecks") or ()):
        for position, update in enumerate(check.get("podSetUpdates") or ()):
            path = f"status.admissionChecks[{index}].podSetUpdates[{position}]"
            if update.get("name") not in names:
                errors.append(FieldError(f"{path}.name", _supported(names), "NotSupported"))
            errors += check_labels(update.get("labels"), f"{path}.labels")
            errors += check_labels(update.get("nodeSelector"), f"{path}.nodeSelector")
            errors += _check_keys(update.get("annotations"), f"{path}.annotations")
            errors += check_tolerations(update.get("tolerations"), f"{path}.tolerations")
    return errors


# --- what was given


def _check_admission(obj: Json, old: Json | None) -> list[FieldError]:
    admission = _status(obj).get("admission")
    if not _holds(obj, "QuotaReserved"):
        return []
    if admission is None:
        if old is not None and _holds(old, "QuotaReserved") and _status(old).get("admission") is None:
            return []  # stored so before this rule; do not block other changes
        message = "must be set while the QuotaReserved condition is true"
        return [FieldError("status.admission", message, "Required")]
    names = [pod_set.get("name", "main") for pod_set in _pod_sets(obj)]
    errors: list[FieldError] = []
    for index, assignment in enumerate(admission.get("podSetAssignments") or ()):
        path = f"status.admission.podSetAssignments[{index}]"
        if assignment.get("name", "main") not in names:
            errors.append(FieldError(f"{path}.name", f"no pod set {assignment.get('name')!r}", "NotFound"))
        count = assignment.get("count") or 0
        for name, text in (assignment.get("resourceUsage") or {}).items():
            if count > 0 and _value(name, text) % count:
                errors.append(FieldError(f"{path}.resourceUsage[{name}]", f"is not a multiple of {count}"))
    return errors


def _check_reclaimable(obj: Json, old: Json | None, gates: Mapping[str, bool]) -> list[FieldError]:
    counts = {pod_set.get("name", "main"): pod_set.get("count", 1) for pod_set in _pod_sets(obj)}
    given, before = _reclaimable(obj), _reclaimable(old) if old is not None else {}
    shrunk = _shrunk(obj, old) if old is not None and is_elastic(obj, gates) else set()
    errors: list[FieldError] = []
    for name, count in given.items():
        if name not in counts:
            errors.append(FieldError(f"status.reclaimablePods[{name}].name", _supported(counts), "NotSupported"))
        elif count > counts[name] and not (name in shrunk and before.get(name) == count):
            errors.append(
                FieldError(f"status.reclaimablePods[{name}].count", f"should be less or equal to {counts[name]}")
            )
    if old is None or not (_holds(obj, "QuotaReserved") and _holds(old, "QuotaReserved")):
        return errors
    for name, count in before.items():
        if name in shrunk:
            continue
        if name not in given:
            errors.append(FieldError(f"status.reclaimablePods[{name}]", "cannot be removed", "Required"))
        elif given[name] < count:
            errors.append(FieldError(f"status.reclaimablePods[{name}].count", f"cannot be less than {count}"))
    return errors


def _shrunk(obj: Json, old: Json) -> set[str]:
    """Pod sets of an elastic workload that want fewer pods than before, or than they were given."""
    before = {pod_set.get("name", "main"): pod_set.get("count", 1) for pod_set in _pod_sets(old)}
    admission = _status(obj).get("admission") or {}
    assigned = {given.get("name", "main"): given.get("count") for given in admission.get("podSetAssignments") or ()}
    found = set()
    for pod_set in _pod_sets(obj):
        name, count = pod_set.get("name", "main"), pod_set.get("count", 1)
        if count < before.get(name, count) or count < (assigned.get(name) or 0):
            found.add(name)
    return found


# --- what stays


def _check_frozen(obj: Json, old: Json, gates: Mapping[str, bool]) -> list[FieldError]:
    errors: list[FieldError] = []
    if _holds(obj, "QuotaReserved") and _holds(old, "QuotaReserved"):
        errors += _check_same_pod_sets(obj, old, gates)
        errors += _check_same_spec(obj.get("spec") or {}, old.get("spec") or {})
    if _holds(obj, "Admitted") and _holds(old, "Admitted"):
        field = "maximumExecutionTimeSeconds"
        if (obj.get("spec") or {}).get(field) != (old.get("spec") or {}).get(field):
            errors.append(FieldError(f"spec.{field}", _IMMUTABLE))
    given, before = _status(obj).get("admission"), _status(old).get("admission")
    if given is not None and before is not None and _settled(given) != _settled(before):
        errors.append(FieldError("status.admission", _IMMUTABLE))
    return errors + _check_ready_checks(obj, old) + _check_cluster(obj, old)


def _check_same_pod_sets(obj: Json, old: Json, gates: Mapping[str, bool]) -> list[FieldError]:
    ours, theirs = _pod_sets(obj), _pod_sets(old)
    if len(ours) != len(theirs):
        return [FieldError("spec.podSets", _IMMUTABLE)]
    errors: list[FieldError] = []
    for index, (new, was) in enumerate(zip(ours, theirs, strict=True)):
        if gates["ElasticJobsViaWorkloadSlices"] and new.get("count", 1) < was.get("count", 1):
            new = {**new, "count": was.get("count", 1)}
        if new != was:
            errors.append(FieldError(f"spec.podSets.{index}", _IMMUTABLE))
    return errors


def _check_same_spec(spec: Json, before: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    if spec.get("queueName", "") != before.get("queueName", ""):
        errors.append(FieldError("spec.queueName", _IMMUTABLE))
    ours, theirs = spec.get("priorityClassRef") or {}, before.get("priorityClassRef") or {}
    for name in ("group", "kind", "name"):
        if name == "name" and theirs.get("kind") == "WorkloadPriorityClass":
            continue  # a workload may move to another class of its own kind
        if ours.get(name) != theirs.get(name):
            errors.append(FieldError(f"spec.priorityClassRef.{name}", _IMMUTABLE))
    return errors


def _check_ready_checks(obj: Json, old: Json) -> list[FieldError]:
    before = {check.get("name", ""): check for check in _status(old).get("admissionChecks") or ()}
    errors: list[FieldError] = []
    for index, check in enumerate(_status(obj).get("admissionChecks") or ()):
        was = before.get(check.get("name", "")) or {}
        ready = check.get("state") == was.get("state") == "Ready"
        if ready and check.get("podSetUpdates") != was.get("podSetUpdates"):
            errors.append(FieldError(f"status.admissionChecks[{index}].podSetUpdates", _IMMUTABLE))
    return errors


def _check_cluster(obj: Json, old: Json) -> list[FieldError]:
    name, before = _status(obj).get("clusterName"), _status(old).get("clusterName")
    if not name or name == before or KUEUE_SLICE_REPLACES in _annotations(obj):
        return []
    if before:
        return [FieldError("status.clusterName", _IMMUTABLE)]
    if name not in (_status(old).get("nominatedClusterNames") or ()):
        return [FieldError("status.clusterName", "must be one of the nominatedClusterNames")]
    return []


# --- reading


def _settled(admission: Json) -> Json:
    """The admission without what topology placement may still change."""
    open_fields = ("topologyAssignment", "delayedTopologyRequest")
    assignments = [
        {name: value for name, value in given.items() if name not in open_fields}
        for given in admission.get("podSetAssignments") or ()
    ]
    return {**admission, "podSetAssignments": assignments}


def _check_keys(entries: Json | None, path: str) -> list[FieldError]:
    return [FieldError(path, wrong) for name in entries or {} if (wrong := check_qualified(name.lower()))]


def _gate_names(obj: Json) -> list[str]:
    text = _annotations(obj).get(KUEUE_GATED_BY) or ""
    return [name.strip() for name in text.split(",")] if text else []


def _reclaimable(obj: Json) -> dict[str, int]:
    return {entry.get("name", ""): entry.get("count", 0) for entry in _status(obj).get("reclaimablePods") or ()}


def _holds(obj: Json, condition: str) -> bool:
    conditions = _status(obj).get("conditions") or ()
    return any(entry.get("type") == condition and entry.get("status") == "True" for entry in conditions)


def _value(resource: str, text: Any) -> int:
    try:
        return amount(resource, text)
    except BadInput:
        return 0


def _annotations(obj: Json) -> Json:
    found: Json = (obj.get("metadata") or {}).get("annotations") or {}
    return found


def _pod_sets(obj: Json) -> list[Json]:
    found: list[Json] = (obj.get("spec") or {}).get("podSets") or []
    return found


def _status(obj: Json) -> Json:
    found: Json = obj.get("status") or {}
    return found


def _supported(values: Any) -> str:
    return "supported values: " + ", ".join(f'"{value}"' for value in values)
