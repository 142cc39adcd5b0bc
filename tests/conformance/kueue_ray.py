"""Judge the `ray-…` cases: pod sets of RayJobs and RayClusters, their end, start and stop, defaults and admission."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from shoal.api.meta import Json
from shoal.controllers.queues import admission
from shoal.controllers.queues.inject import InjectedInfo, StartError
from shoal.controllers.queues.jobs import GangJob
from shoal.controllers.queues.jobs.ray import RayClusters, RayJobs
from shoal.controllers.queues.managing import Managing
from shoal.controllers.queues.settings import QueueSettings
from shoal.controllers.queues.surroundings import JobSurroundings
from shoal.controllers.queues.workloads import with_topology
from shoal.errors import BadInput
from shoal.kube.admission_review import AdmissionRequest, GroupVersionKind
from tests.conformance.kueue_api import filled
from tests.conformance.kueue_given import Case, compared

KINDS: dict[str, GangJob] = {"RayJob": RayJobs(), "RayCluster": RayClusters()}
PATH = re.compile(r"((?:spec|metadata)[^\s:,]*): (?:Invalid value|Forbidden|Required value|Too many|Duplicate value)")
OURS = re.compile(r"(?:^|; |: )((?:spec|metadata)[^\s:]*): ")


def podsets_differences(given: Case, expect: Case) -> list[str]:
    if "rayJob" in given:
        kind, job = KINDS["RayJob"], given["rayJob"]
    else:
        kind, job = KINDS["RayCluster"], {"metadata": {"name": "cluster"}, "spec": given["rayClusterSpec"]}
    job = {**job, "metadata": {**job["metadata"], "annotations": given["annotations"]}}
    try:
        found = kind.pod_sets(job)
    except BadInput as fault:
        return compared("error", bool(str(fault)), bool(expect["error"]))
    if (given["featureGates"] or {}).get("TopologyAwareScheduling", True):
        found = with_topology(found)
    return compared("error", "", expect["error"]) + compared("podSets", filled(found), filled(expect["podSets"]))


def finished_differences(given: Case, expect: Case) -> list[str]:
    end = RayJobs().end({"status": given["status"]})
    found = {"finished": end is not None, "success": end is not None and end.succeeded}
    return compared("end", found, {name: expect[name] for name in found})


def startstop_differences(given: Case, expect: Case) -> list[str]:
    kind = RayJobs()
    infos = _infos(given["runInfo"])
    try:
        started = kind.started(given["rayJob"], infos)
    except StartError:
        return compared("error", True, bool(expect["error"]))
    found = compared("error", "", expect["error"])
    found += compared("afterStart", _plain(started), _plain(expect["afterStart"]))
    recorded = [{"name": one["name"], "template": _template(one)} for one in given["restoreInfo"]]
    if recorded and len(recorded) == len(kind.pod_sets(started)):
        recorded[-1]["name"] = kind.pod_sets(started)[-1]["name"]
    return found + compared("afterStop", _plain(kind.stopped(started, recorded)), _plain(expect["afterStop"]))


def _infos(told: Sequence[Json]) -> list[InjectedInfo]:
    return [
        InjectedInfo(name=one["name"], count=one["count"], node_selector=one.get("nodeSelector") or {}) for one in told
    ]


def _template(told: Json) -> Json:
    selector = told.get("nodeSelector")
    return {"spec": {"nodeSelector": selector}} if selector else {"spec": {}}


def _plain(job: Json) -> Any:
    """Without the image that ours takes for the default submitter, and what says nothing."""
    return filled({**job, "status": None})


def not_queued_here(given: Case) -> str:
    """Why our queues do not take such a job as the reference does; empty where they do."""
    if (given.get("featureGates") or {}).get("ValidateRayAndSparkJobUpdates") is False:
        return "gates without a setting: ValidateRayAndSparkJobUpdates"
    return ""


def default_differences(given: Case, expect: Case) -> list[str]:
    verdict = admission.prepare(_request("CREATE", "RayJob", given["object"], None), _around(given))
    found = verdict.changed if verdict.changed is not None else given["object"]
    named = {"apiVersion": "ray.io/v1", "kind": "RayJob"}
    return compared("object", filled({**found, **named}), filled({**expect["object"], **named}))


def ray_webhook_differences(given: Case, expect: Case) -> list[str]:
    """Whether it is allowed, and which fields are at fault; the wording is our own."""
    request = _request(given["operation"], given["kind"], given["object"], given.get("oldObject"))
    verdict = admission.validate(request, _around(given))
    found = compared("allowed", verdict.allowed, expect["allowed"])
    if found or verdict.allowed:
        return found
    ours = sorted(OURS.findall(verdict.message))
    return compared("fields", ours, sorted(PATH.findall(expect["error"])))


def _around(given: Case) -> JobSurroundings:
    settings = QueueSettings(manage_jobs_without_queue_name=given["manageJobsWithoutQueueName"])
    return JobSurroundings(managing=Managing(settings), default_queue=given["defaultLocalQueueExists"])


def _request(operation: str, kind: str, obj: Json, old: Json | None) -> AdmissionRequest:
    made = {"apiVersion": "ray.io/v1", "kind": kind, **obj}
    before = None if old is None else {"apiVersion": "ray.io/v1", "kind": kind, **old}
    metadata = made["metadata"]
    return AdmissionRequest(
        uid="1",
        kind=GroupVersionKind(group="ray.io", version="v1", kind=kind),
        operation=operation,
        name=metadata.get("name", ""),
        namespace=metadata.get("namespace", "default"),
        object=made,
        old_object=before,
    )
