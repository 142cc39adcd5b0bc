"""Admission for queues: jobs with a queue label begin suspended, and what can never be queued is refused.

The same two functions answer the webhooks of any cluster and the embedded server itself. Pure: they read nothing but
the request, never stand in the way of a deletion or of a finalizer, and change an object the same way every time.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.api import rules
from shoal.api.meta import Json
from shoal.api.names import check_subdomain
from shoal.api.problems import joined
from shoal.controllers.queues import words
from shoal.controllers.queues.jobs import BY_NAME, GangJob
from shoal.controllers.queues.world import controller_of, group_of, label
from shoal.kube.webhooks import AdmissionRequest, Verdict

PREPARE_PATH = "/queues/prepare"
VALIDATE_PATH = "/queues/validate"
NEVER_QUEUED = ("kube-system",)
_FINALIZED = ("ClusterQueue", "ResourceFlavor")
_MAKERS = {*BY_NAME, ("ray.io", "RayService"), ("workload.codeflare.dev", "AppWrapper")}

JUDGED = ("clusterqueues", "cohorts", "resourceflavors", "workloads")
PREPARED = (
    *((one.kind.group, one.kind.plural) for one in BY_NAME.values()),
    (words.GROUP, "clusterqueues"),
    (words.GROUP, "resourceflavors"),
)
"""Group and resource of what `prepare` may change."""

JOB_RULES: list[Json] = [
    {
        "apiGroups": [kind.kind.group],
        "apiVersions": [kind.kind.version],
        "resources": [kind.kind.plural],
        "operations": ["CREATE", "UPDATE"],
        "scope": "Namespaced",
    }
    for kind in BY_NAME.values()
]
QUEUE_RULES: list[Json] = [
    {
        "apiGroups": [words.GROUP],
        "apiVersions": ["v1beta1", "v1beta2"],
        "resources": list(JUDGED),
        "operations": ["CREATE", "UPDATE"],
        "scope": "*",
    }
]


def prepare(request: AdmissionRequest) -> Verdict:
    """Suspend a new job that a queue is to start; keep queues and flavors in place while they are in use."""
    obj = request.object
    if obj is None or request.sub_resource or request.operation != "CREATE":
        return Verdict()
    if request.kind.group == words.GROUP and request.kind.kind in _FINALIZED:
        held = obj["metadata"].get("finalizers") or []
        if words.IN_USE in held:
            return Verdict()
        return Verdict(changed={**obj, "metadata": {**obj["metadata"], "finalizers": [*held, words.IN_USE]}})
    kind = _job_kind(request)
    if kind is None or not is_queued(kind, obj, request.namespace) or kind.is_suspended(obj):
        return Verdict()
    return Verdict(changed=kind.suspended(obj))


def validate(request: AdmissionRequest) -> Verdict:
    obj, old = request.object, request.old_object
    if obj is None or request.sub_resource or (obj.get("metadata") or {}).get("deletionTimestamp"):
        return Verdict()
    if request.kind.group == words.GROUP:
        problems = joined(rules.validate(obj, old))
    else:
        kind = _job_kind(request)
        problems = "; ".join(problems_of(kind, obj, old)) if kind is not None else ""
    if not problems:
        return Verdict()
    return Verdict(False, f"{request.kind.kind} {request.name!r} is invalid: {problems}", 422, "Invalid")


def first_refusal(*judges: Callable[[AdmissionRequest], Verdict]) -> Callable[[AdmissionRequest], Verdict]:
    """Several judges of one kind: the first refusal counts, all warnings are passed on."""

    def judged(request: AdmissionRequest) -> Verdict:
        warnings: tuple[str, ...] = ()
        for judge in judges:
            verdict = judge(request)
            if not verdict.allowed:
                return verdict
            warnings += verdict.warnings
        return Verdict(warnings=warnings)

    return judged


def is_queued(kind: GangJob, job: Json, namespace: str = "") -> bool:
    """Is it for a queue to start this job? Not what another queued job made, nor what no queue can hold."""
    where = namespace or job["metadata"].get("namespace", "")
    return (
        bool(label(job, words.QUEUE)) and where not in NEVER_QUEUED and not is_child(job) and not kind.is_skipped(job)
    )


def is_child(job: Json) -> bool:
    """Made by another job that a queue may hold: then that one counts, and this one never waits by itself."""
    owner = controller_of(job)
    return owner is not None and (group_of(owner), str(owner.get("kind"))) in _MAKERS


def problems_of(kind: GangJob, job: Json, old: Json | None) -> list[str]:
    """Why this job cannot be queued as it is, or why it may not be changed like that."""
    if is_child(job):
        return []
    found = []
    queue, before = label(job, words.QUEUE), label(old, words.QUEUE) if old is not None else ""
    running = old is not None and not kind.is_suspended(old) and kind.end(old) is None
    if running and before and queue != before:
        found.append(f"metadata.labels[{words.QUEUE}]: field is immutable while the job is not suspended")
    if not queue:
        return found
    if problem := check_subdomain(queue):
        found.append(f"metadata.labels[{words.QUEUE}]: {problem}")
    seconds = label(job, words.MAX_EXECUTION)
    if seconds and not (seconds.isascii() and seconds.isdigit() and int(seconds) > 0):
        found.append(f"metadata.labels[{words.MAX_EXECUTION}]: {seconds!r} must be a number above 0")
    if (
        old is not None
        and label(old, words.MAX_EXECUTION) != seconds
        and not (kind.is_suspended(old) and kind.is_suspended(job))
    ):
        found.append(f"metadata.labels[{words.MAX_EXECUTION}]: field is immutable unless the job is suspended")
    if running:
        priority, had = label(job, words.PRIORITY_CLASS), label(old or {"metadata": {}}, words.PRIORITY_CLASS)
        if bool(priority) != bool(had):
            found.append(f"metadata.labels[{words.PRIORITY_CLASS}]: may not be added or removed while the job runs")
    if old is None or old.get("spec") != job.get("spec"):
        found += kind.problems(job)
    return found


def _job_kind(request: AdmissionRequest) -> GangJob | None:
    return BY_NAME.get((request.kind.group, request.kind.kind))
