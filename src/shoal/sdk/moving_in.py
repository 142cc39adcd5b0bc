"""What becomes of the objects of MCAD, Kueue and KubeRay when Shoal takes their place, object by object.

Pure: `shoal import` reads them from a cluster or from a dump and prints what this says. Nothing here decides what a
controller does later; it names what is known to differ before anything is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from shoal.api import kinds, strict
from shoal.api.gang import CREATED_BY
from shoal.api.kind import Kind
from shoal.api.labels import RAY_OPERATOR
from shoal.api.meta import Json
from shoal.controllers.queues import jobs

Source = Literal["KubeRay", "Kueue", "MCAD"]
Verdict = Literal["same", "differs", "left alone"]
SOURCES: dict[str, Source] = {
    "ray.io": "KubeRay",
    "kueue.x-k8s.io": "Kueue",
    "workload.codeflare.dev": "MCAD",
    "mcad.ibm.com": "MCAD",
    "quota.codeflare.dev": "MCAD",
    "ibm.com": "MCAD",
}
READ: tuple[Kind, ...] = (
    kinds.RAY_CLUSTER, kinds.RAY_JOB, kinds.RAY_SERVICE, kinds.RAY_CRON_JOB,
    kinds.RESOURCE_FLAVOR, kinds.TOPOLOGY, kinds.COHORT, kinds.CLUSTER_QUEUE, kinds.LOCAL_QUEUE,
    kinds.ADMISSION_CHECK, kinds.WORKLOAD,
    kinds.APP_WRAPPER, kinds.APP_WRAPPER_LEGACY, kinds.QUOTA_SUBTREE, kinds.QUOTA_SUBTREE_LEGACY,
)  # fmt: skip
"""Kinds that are looked for; what is not installed is passed over."""
_RUNS = {"ready", "Running", "Initializing", "RunningHoldCompletion", "Resuming"}
_ENDED = {"Complete", "Failed", "Completed", "Deleted", "Succeeded", "Finished", "ValidationFailed"}
_MOST_NOTES = 3


class ImportRow(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one object."""

    source: Source
    kind: str
    namespace: str = ""
    name: str
    uid: str = ""
    state: str = ""
    verdict: Verdict = "same"
    notes: tuple[str, ...] = ()
    needs_creator: bool = False
    """An AppWrapper without a stamp: the record must name the user that answers for it."""


def rows(objects: Iterable[Json]) -> list[ImportRow]:
    """In the order of kinds as they are read, then by name. Objects of other groups are passed over."""
    order = {kind.kind: number for number, kind in enumerate(READ)}
    found = [row for obj in objects if (row := row_of(obj)) is not None]
    return sorted(found, key=lambda row: (order.get(row.kind, len(order)), row.namespace, row.name))


def row_of(obj: Json) -> ImportRow | None:
    group = str(obj.get("apiVersion") or "").rpartition("/")[0]
    source, metadata = SOURCES.get(group), obj.get("metadata") or {}
    if source is None or not metadata.get("name"):
        return None
    kind, state = str(obj.get("kind")), _state(obj)
    alone = _why_left_alone(obj, kind)
    notes = (alone,) if alone else tuple(_notes(obj, kind, state))
    verdict: Verdict = "left alone" if alone else "differs" if notes else "same"
    unstamped = kind == "AppWrapper" and CREATED_BY not in (metadata.get("annotations") or {})
    return ImportRow(
        source=source,
        kind=kind,
        namespace=str(metadata.get("namespace") or ""),
        name=str(metadata["name"]),
        uid=str(metadata.get("uid") or ""),
        state=state,
        verdict=verdict,
        notes=notes,
        needs_creator=unstamped and state not in _ENDED,
    )


def _state(obj: Json) -> str:
    status, spec = obj.get("status") or {}, obj.get("spec") or {}
    match obj.get("kind"):
        case "RayCluster":
            return str(status.get("state") or ("suspended" if spec.get("suspend") else "new"))
        case "RayJob":
            return str(status.get("jobDeploymentStatus") or "new")
        case "RayService":
            return "Running" if (status.get("activeServiceStatus") or {}).get("rayClusterName") else "starts"
        case "AppWrapper":
            return str(status.get("state") or status.get("phase") or "new")
        case "Workload":
            held = {one["type"] for one in status.get("conditions") or () if one.get("status") == "True"}
            order = ("Finished", "Evicted", "Admitted", "QuotaReserved")
            return next((one for one in order if one in held), "waits")
    return ""


def _notes(obj: Json, kind: str, state: str) -> Iterator[str]:
    ended = state in _ENDED
    if not ended:  # what has ended is only kept
        mistakes = [str(error) for error in strict.check({key: obj[key] for key in obj if key != "status"})]
        yield from mistakes[:_MOST_NOTES]
        if len(mistakes) > _MOST_NOTES:
            yield f"and {len(mistakes) - _MOST_NOTES} more fields"
    spec = obj.get("spec") or {}
    match kind:
        case "RayService" if state == "Running" and (obj["status"].get("pendingServiceStatus") or {}).get(
            "rayClusterName"
        ):
            yield "an upgrade is under way: Shoal goes on with it"
        case "AppWrapper" if state in _RUNS and not (obj.get("status") or {}).get("admission"):
            yield "its objects go on; what it holds is counted from its templates, because MCAD stores no admission"
        case "ClusterQueue":
            checks = [*(spec.get("admissionChecks") or ()), *_strategy_checks(spec)]
            if checks:
                yield f"admission checks {', '.join(checks)} must have a controller here: see shoal get"


def _strategy_checks(spec: Json) -> list[str]:
    return [str(one.get("name")) for one in (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()]


def _why_left_alone(obj: Json, kind: str) -> str:
    manager = (obj.get("spec") or {}).get("managedBy")
    if manager not in (None, "", RAY_OPERATOR):
        return f"spec.managedBy names {manager}"
    owner = _foreign_job(obj) if kind == "Workload" else ""
    return f"Shoal has no controller for jobs of kind {owner}; it stays as it is" if owner else ""


def _foreign_job(workload: Json) -> str:
    """Kind of the job that a Workload is for, where it is none of ours."""
    owners = workload["metadata"].get("ownerReferences") or ()
    owner = next((one for one in owners if one.get("controller")), None)
    known = {one.kind.kind for one in jobs.ALL}
    return "" if owner is None or owner["kind"] in known else str(owner["kind"])
