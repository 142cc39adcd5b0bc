"""Between kueue.x-k8s.io/v1beta1 and v1beta2, both ways, on plain JSON.

Called by the conversion webhook, by the embedded server in-process, and by controllers on servers without a webhook
(`upgrade`, which is safe on any object). What a rule does not name passes through untouched, unknown fields included;
the input is never changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.api.kueue_topology import to_domains, to_slices
from shoal.api.labels import KUEUE_WORKLOAD_PRIORITY, POD_PRIORITY
from shoal.api.meta import Json
from shoal.errors import BadInput

GROUP = "kueue.x-k8s.io"
V1BETA1 = f"{GROUP}/v1beta1"
V1BETA2 = f"{GROUP}/v1beta2"

PRIORITY_SOURCES = {
    KUEUE_WORKLOAD_PRIORITY: ("kueue.x-k8s.io", "WorkloadPriorityClass"),
    POD_PRIORITY: ("scheduling.k8s.io", "PriorityClass"),
}
_SOURCE_OF = {pair: source for source, pair in PRIORITY_SOURCES.items()}
_MAY_STOP = {"Borrow": "MayStopSearch", "Preempt": "MayStopSearch"}


def convert(obj: Json, api_version: str) -> Json:
    """The same object at another version. Raises BadInput for a version that is not ours."""
    if api_version == V1BETA2:
        return upgrade(obj)
    if api_version == V1BETA1:
        return _with(_downgrades.get(obj.get("kind", ""), _same)(obj), apiVersion=V1BETA1)
    raise BadInput(f"cannot convert {obj.get('kind')} to {api_version}; {V1BETA1} and {V1BETA2} are served")


def upgrade(obj: Json) -> Json:
    """The object in v1beta2 spelling, whichever it came in. Doing it twice changes nothing."""
    return _with(_upgrades.get(obj.get("kind", ""), _same)(obj), apiVersion=V1BETA2)


def review(request: Json) -> Json:
    """Answer an apiextensions.k8s.io/v1 ConversionReview; one object that fails refuses the whole review."""
    asked = request.get("request") or {}
    answer: Json = {"uid": asked.get("uid", "")}
    try:
        objects = [convert(obj, asked.get("desiredAPIVersion", "")) for obj in asked.get("objects") or ()]
        answer.update(result={"status": "Success"}, convertedObjects=objects)
    except (BadInput, TypeError, ValueError, AttributeError, KeyError) as error:
        answer.update(result={"status": "Failed", "message": f"conversion failed: {error}"})
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": answer}


# --- ClusterQueue


def _upgrade_cluster_queue(obj: Json) -> Json:
    spec = dict(obj.get("spec") or {})
    _rename(spec, "cohort", "cohortName")
    checks = spec.pop("admissionChecks", None)
    if checks:
        spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": name} for name in checks]}
    fungibility = spec.get("flavorFungibility")
    if isinstance(fungibility, dict):
        spec["flavorFungibility"] = {
            name: _MAY_STOP.get(value, value) if isinstance(value, str) else value
            for name, value in fungibility.items()
        }
    return _parts(obj, spec, _upgrade_shares(_without(obj.get("status"), "pendingWorkloadsStatus")))


def _downgrade_cluster_queue(obj: Json) -> Json:
    spec = dict(obj.get("spec") or {})
    _rename(spec, "cohortName", "cohort")
    return _parts(obj, spec, obj.get("status"))


# --- LocalQueue, Cohort


def _upgrade_local_queue(obj: Json) -> Json:
    status = _without(obj.get("status"), "flavors")
    if status is not None:
        _rename(status, "flavorUsage", "flavorsUsage")
    return _parts(obj, obj.get("spec"), status)


def _downgrade_local_queue(obj: Json) -> Json:
    status = dict(obj["status"]) if isinstance(obj.get("status"), dict) else None
    if status is not None:
        _rename(status, "flavorsUsage", "flavorUsage")
    return _parts(obj, obj.get("spec"), status)


def _upgrade_cohort(obj: Json) -> Json:
    spec = dict(obj.get("spec") or {})
    _rename(spec, "parent", "parentName")
    return _parts(obj, spec, _upgrade_shares(obj.get("status")))


# --- Workload


def _upgrade_workload(obj: Json) -> Json:
    spec = dict(obj.get("spec") or {})
    name, source = spec.pop("priorityClassName", ""), spec.pop("priorityClassSource", "")
    if name and source in PRIORITY_SOURCES:
        group, kind = PRIORITY_SOURCES[source]
        spec["priorityClassRef"] = {"group": group, "kind": kind, "name": name}
    return _parts(obj, spec, _workload_status(obj.get("status"), _TIME_V1BETA1, _TIME_V1BETA2, to_slices))


def _downgrade_workload(obj: Json) -> Json:
    spec = dict(obj.get("spec") or {})
    reference = spec.pop("priorityClassRef", None) or {}
    source = _SOURCE_OF.get((reference.get("group", ""), reference.get("kind", "")))
    if source:
        spec.update(priorityClassName=reference.get("name", ""), priorityClassSource=source)
    return _parts(obj, spec, _workload_status(obj.get("status"), _TIME_V1BETA2, _TIME_V1BETA1, to_domains))


_TIME_V1BETA1 = "accumulatedPastExexcutionTimeSeconds"  # the spelling that was released
_TIME_V1BETA2 = "accumulatedPastExecutionTimeSeconds"


def _workload_status(status: Any, time_from: str, time_to: str, topology: Callable[[Json], Json]) -> Any:
    if not isinstance(status, dict):
        return status
    status = dict(status)
    _rename(status, time_from, time_to)
    admission = status.get("admission")
    if isinstance(admission, dict) and admission.get("podSetAssignments"):
        assignments = [
            _with(given, topologyAssignment=topology(given["topologyAssignment"]))
            if isinstance(given.get("topologyAssignment"), dict)
            else given
            for given in admission["podSetAssignments"]
        ]
        status["admission"] = _with(admission, podSetAssignments=assignments)
    return status


# --- MultiKueueCluster


def _upgrade_member(obj: Json) -> Json:
    spec = dict(obj.get("spec") or {})
    kube_config, profile = spec.pop("kubeConfig", None) or {}, spec.pop("clusterProfileRef", None)
    if profile:
        spec["clusterSource"] = {"clusterProfileRef": profile}
    elif kube_config.get("location"):
        spec["clusterSource"] = {"kubeConfig": kube_config}
    return _parts(obj, spec or None, obj.get("status"))


def _downgrade_member(obj: Json) -> Json:
    spec = dict(obj.get("spec") or {})
    source = spec.pop("clusterSource", None) or {}
    spec["kubeConfig"] = source.get("kubeConfig") or {"location": "", "locationType": ""}
    if source.get("clusterProfileRef"):
        spec["clusterProfileRef"] = source["clusterProfileRef"]
    return _parts(obj, spec, obj.get("status"))


def _same(obj: Json) -> Json:
    return obj


_upgrades: dict[str, Callable[[Json], Json]] = {
    "ClusterQueue": _upgrade_cluster_queue,
    "LocalQueue": _upgrade_local_queue,
    "Cohort": _upgrade_cohort,
    "Workload": _upgrade_workload,
    "MultiKueueCluster": _upgrade_member,
}
_downgrades: dict[str, Callable[[Json], Json]] = {
    "ClusterQueue": _downgrade_cluster_queue,
    "LocalQueue": _downgrade_local_queue,
    "Workload": _downgrade_workload,
    "MultiKueueCluster": _downgrade_member,
}


def _parts(obj: Json, spec: Any, status: Any) -> Json:
    """The object with another spec and status; a part that was absent and is empty stays absent."""
    changed = dict(obj)
    for name, value in (("spec", spec), ("status", status)):
        if value is None or (not value and name not in obj):
            changed.pop(name, None)
        else:
            changed[name] = value
    return changed


def _rename(fields: Json, old: str, new: str) -> None:
    if old in fields:
        value = fields.pop(old)
        fields.setdefault(new, value)


def _without(fields: Any, name: str) -> Any:
    return {key: value for key, value in fields.items() if key != name} if isinstance(fields, dict) else fields


def _upgrade_shares(status: Any) -> Any:
    """Only a LocalQueue keeps admission fair sharing in v1beta2."""
    if not isinstance(status, dict) or not isinstance(status.get("fairSharing"), dict):
        return status
    return _with(status, fairSharing=_without(status["fairSharing"], "admissionFairSharingStatus"))


def _with(obj: Json, **changes: Any) -> Json:
    return {**obj, **changes}
