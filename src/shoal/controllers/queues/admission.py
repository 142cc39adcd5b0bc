"""Admission for queues: jobs with a queue label begin suspended, and what can never be queued is refused.

`QueueAdmission` answers the webhooks of any cluster and the embedded server itself. It reads the owner and the queue
that a job names, and the request, nothing else; it never stands in the way of a deletion or of a finalizer, and changes
an object the same way every time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable

import msgspec

from shoal.api import kinds, kueue_names, rules
from shoal.api.gang import SUBMITTED_BY
from shoal.api.kind import Kind
from shoal.api.kueue_convert import PRIORITY_SOURCES
from shoal.api.labels import KUEUE_MULTIKUEUE
from shoal.api.meta import Json
from shoal.api.names import check_subdomain
from shoal.api.objects import label
from shoal.api.problems import joined
from shoal.controllers.queues import placement
from shoal.controllers.queues.jobs import BY_NAME, GangJob
from shoal.controllers.queues.jobs.blueprint import has_blueprint
from shoal.controllers.queues.jobs.pod import CARRIERS, carrying
from shoal.controllers.queues.managing import DEFAULT
from shoal.controllers.queues.reapplied import as_before
from shoal.controllers.queues.settings import QueueSettings
from shoal.controllers.queues.surroundings import JobSurroundings, SurroundingsReader, fresh
from shoal.errors import BadInput
from shoal.kube.admission_review import AdmissionRequest, AdmissionVerdict
from shoal.kube.client import Client

PREPARE_PATH = "/queues/prepare"
VALIDATE_PATH = "/queues/validate"
_CARRIERS = frozenset((kind.group, kind.kind) for kind in CARRIERS)
_FINALIZED = ("ClusterQueue", "ResourceFlavor")

RIGID = (
    f"metadata.annotations[{kueue_names.ELASTIC}]: has no effect on a {{}} here: RayClusters and RayJobs grow and "
    "shrink in a queue"
)
JUDGED = ("clusterqueues", "cohorts", "resourceflavors", "workloads")
STATUS_JUDGED = ("workloads",)
"""Whose status is judged too: what was given to a Workload stays until it is taken back."""
QUEUE_RULES: list[Json] = [
    {
        "apiGroups": [kueue_names.GROUP],
        "apiVersions": ["v1beta1", "v1beta2"],
        "resources": list(JUDGED),
        "operations": ["CREATE", "UPDATE"],
        "scope": "*",
    }
]
STATUS_RULES: list[Json] = [
    {
        "apiGroups": [kueue_names.GROUP],
        "apiVersions": ["v1beta1", "v1beta2"],
        "resources": [f"{name}/status" for name in STATUS_JUDGED],
        "operations": ["UPDATE"],
        "scope": "Namespaced",
    }
]
OLD_WORKLOAD_RULES: list[Json] = [
    {
        "apiGroups": [kueue_names.GROUP],
        "apiVersions": ["v1beta1"],
        "resources": ["workloads"],
        "operations": ["UPDATE"],
        "scope": "Namespaced",
    }
]


def prepared() -> list[tuple[str, str]]:
    """Group and resource of what `prepare` may change."""
    jobs = [(one.kind.group, one.kind.plural) for one in BY_NAME.values()]
    jobs += [(kind.group, kind.plural) for kind in CARRIERS]
    return [*jobs, (kueue_names.GROUP, "clusterqueues"), (kueue_names.GROUP, "resourceflavors")]


def job_rules() -> list[Json]:
    """Which jobs the webhooks are shown, whether they name a queue or not."""
    return [_rule(one.kind, "CREATE", "UPDATE") for one in BY_NAME.values() if one.kind != kinds.POD]


def pod_rules() -> list[Json]:
    """Pods, and what is held through its pods: shown where they name a queue."""
    return [_rule(kinds.POD, "CREATE"), *(_rule(kind, "CREATE", "UPDATE") for kind in CARRIERS)]


def _rule(kind: Kind, *operations: str) -> Json:
    return {
        "apiGroups": [kind.group],
        "apiVersions": [kind.version],
        "resources": [kind.plural],
        "operations": list(operations),
        "scope": "Namespaced",
    }


class QueueAdmission:
    """`client` reads the owners, namespaces and queues of jobs."""

    def __init__(self, client: Client, settings: QueueSettings | None = None) -> None:
        self._surroundings = SurroundingsReader(client, settings or QueueSettings())

    async def prepare(self, request: AdmissionRequest) -> AdmissionVerdict:
        around = await self._around(request)
        return signed(request, prepare(request, around), around)

    async def validate(self, request: AdmissionRequest) -> AdmissionVerdict:
        return validate(request, await self._around(request))

    async def _around(self, request: AdmissionRequest) -> JobSurroundings:
        kind, obj = _job_kind(request), request.object
        if obj is None or kind is None or request.sub_resource:
            return JobSurroundings(managing=self._surroundings.managing)
        return await self._surroundings.of(kind, obj, request)


def prepare(request: AdmissionRequest, around: JobSurroundings = JobSurroundings()) -> AdmissionVerdict:  # noqa: B008 - immutable
    """Name the default queue, suspend a new job that a queue is to start; keep queues and flavors in place while they
    are in use."""
    obj = request.object
    if obj is None or request.sub_resource:
        return AdmissionVerdict()
    if (request.kind.group, request.kind.kind) in _CARRIERS:
        carried = carrying(obj)
        return AdmissionVerdict(changed=carried) if carried is not obj else AdmissionVerdict()
    if request.operation != "CREATE":
        return _with_kept_reference(obj, request.old_object)
    if request.kind.group == kueue_names.GROUP and request.kind.kind in _FINALIZED:
        held = obj["metadata"].get("finalizers") or []
        if kueue_names.IN_USE in held:
            return AdmissionVerdict()
        return AdmissionVerdict(
            changed={**obj, "metadata": {**obj["metadata"], "finalizers": [*held, kueue_names.IN_USE]}}
        )
    kind = _informed_kind(request, around)
    if kind is None or not around.has_part or around.child or kind.is_skipped(fresh(obj)):
        return AdmissionVerdict()
    made = obj
    if around.default_queue and not label(made, kueue_names.QUEUE):
        made = _labelled(made, kueue_names.QUEUE)
    if not around.managing.is_queued(kind, fresh(made)):
        return AdmissionVerdict()
    if around.default_class and not label(made, kueue_names.PRIORITY_CLASS):
        made = _labelled(made, kueue_names.PRIORITY_CLASS)
    made = as_before(kind, made)
    for completes in ("elastic", "prepared"):
        made = getattr(kind, completes, lambda job: job)(made)
    if not kind.is_suspended(made):
        made = kind.suspended(made)
    if kind.is_half_stopped(made):  # created again from one that was started: nothing of it runs
        made = kind.restored(made, ())
    if around.elsewhere:
        made = {**made, "spec": {**(made.get("spec") or {}), "managedBy": KUEUE_MULTIKUEUE}}
    return AdmissionVerdict(changed=made) if made is not obj else AdmissionVerdict()


def _labelled(job: Json, name: str) -> Json:
    """The job with the default of this label."""
    labels = {**(job["metadata"].get("labels") or {}), name: DEFAULT}
    return {**job, "metadata": {**job["metadata"], "labels": labels}}


def signed(request: AdmissionRequest, verdict: AdmissionVerdict, around: JobSurroundings) -> AdmissionVerdict:
    """With the name of the user who creates a queued job or a Ray object, whatever was written there: for history."""
    kind, obj = _job_kind(request), verdict.changed or request.object
    if kind is None or obj is None or around.child or request.operation != "CREATE" or request.sub_resource:
        return verdict
    metadata = obj["metadata"]
    made_by_another = any(one.get("controller") for one in metadata.get("ownerReferences") or ())
    if made_by_another or not (kind.kind.group == "ray.io" or around.managing.is_queued(kind, obj)):
        return verdict
    annotations = {**(metadata.get("annotations") or {}), SUBMITTED_BY: request.user_info.username}
    changed = {**obj, "metadata": {**metadata, "annotations": annotations}}
    return msgspec.structs.replace(verdict, changed=changed)


def _with_kept_reference(obj: Json, old: Json | None) -> AdmissionVerdict:
    """A typed client of v1beta1 does not know `priorityClassRef` and would lose it with any update.

    Its own two fields change what was there, each where it is set.
    """
    if old is None or obj.get("kind") != "Workload" or not str(obj.get("apiVersion")).endswith("/v1beta1"):
        return AdmissionVerdict()
    spec, before = dict(obj.get("spec") or {}), (old.get("spec") or {}).get("priorityClassRef")
    if not before or spec.get("priorityClassRef"):
        return AdmissionVerdict()
    name, source = spec.pop("priorityClassName", ""), spec.pop("priorityClassSource", "")
    group, kind = PRIORITY_SOURCES.get(source, (before.get("group"), before.get("kind")))
    spec["priorityClassRef"] = {"group": group, "kind": kind, "name": name or before.get("name")}
    return AdmissionVerdict(changed={**obj, "spec": spec})


def validate(request: AdmissionRequest, around: JobSurroundings = JobSurroundings()) -> AdmissionVerdict:  # noqa: B008 - immutable
    """Refusals are 403, as those of Kueue's webhooks; 422 is what a schema says."""
    obj, old = request.object, request.old_object
    if obj is None or (obj.get("metadata") or {}).get("deletionTimestamp"):
        return AdmissionVerdict()
    if request.sub_resource and (request.sub_resource != "status" or request.kind.kind != "Workload"):
        return AdmissionVerdict()
    warnings: tuple[str, ...] = ()
    if request.kind.group == kueue_names.GROUP:
        problems = joined(rules.validate(obj, old))
        warnings = placement.warnings_of_object(obj) if old is None else ()
    else:
        kind = _informed_kind(request, around)
        judged = around.has_part and not around.child
        problems = "; ".join(problems_of(kind, obj, old, around)) if kind is not None and judged else ""
        warnings = warnings_of(kind, obj, old) if kind is not None and judged else ()
    if not problems:
        return AdmissionVerdict(warnings=warnings)
    return AdmissionVerdict(False, f"{request.kind.kind} {request.name!r} is invalid: {problems}", 403, "Forbidden")


def first_refusal(
    *judges: Callable[[AdmissionRequest], AdmissionVerdict | Awaitable[AdmissionVerdict]],
) -> Callable[[AdmissionRequest], Awaitable[AdmissionVerdict]]:
    """Several judges of one kind: the first refusal counts, all warnings are passed on."""

    async def judged(request: AdmissionRequest) -> AdmissionVerdict:
        warnings: tuple[str, ...] = ()
        for judge in judges:
            answer = judge(request)
            verdict = await answer if isawaitable(answer) else answer
            if not verdict.allowed:
                return verdict
            warnings += verdict.warnings
        return AdmissionVerdict(warnings=warnings)

    return judged


def one_after_another(
    *preparers: Callable[[AdmissionRequest], AdmissionVerdict | Awaitable[AdmissionVerdict]],
) -> Callable[[AdmissionRequest], Awaitable[AdmissionVerdict]]:
    """Several that complete one kind: each sees what the one before it made; all warnings are passed on."""

    async def prepared(request: AdmissionRequest) -> AdmissionVerdict:
        warnings: tuple[str, ...] = ()
        changed: Json | None = None
        for preparer in preparers:
            answer = preparer(request)
            verdict = await answer if isawaitable(answer) else answer
            if not verdict.allowed:
                return verdict
            warnings += verdict.warnings
            if verdict.changed is not None:
                changed = verdict.changed
                request = msgspec.structs.replace(request, object=changed)
        return AdmissionVerdict(changed=changed, warnings=warnings)

    return prepared


def problems_of(kind: GangJob, job: Json, old: Json | None, around: JobSurroundings) -> list[str]:
    """Why this job cannot be queued as it is, or why it may not be changed like that."""
    found = []
    queue, before = label(job, kueue_names.QUEUE), label(old, kueue_names.QUEUE) if old is not None else ""
    running = old is not None and not kind.is_suspended(old) and kind.end(old) is None
    starting = old is not None and not kind.is_suspended(job) and kind.end(old) is None
    if ((running and before) or starting) and queue != before:
        found.append(f"metadata.labels[{kueue_names.QUEUE}]: field is immutable while the job is not suspended")
    if before and not queue and around.default_queue:
        found.append(f"metadata.labels[{kueue_names.QUEUE}]: may not be removed where a LocalQueue is named {DEFAULT}")
    if not queue and not around.managing.waits_unnamed(kind):
        return found
    if queue and (problem := check_subdomain(queue)):
        found.append(f"metadata.labels[{kueue_names.QUEUE}]: {problem}")
    seconds = label(job, kueue_names.MAX_EXECUTION)
    if seconds and not (seconds.isascii() and seconds.isdigit() and int(seconds) > 0):
        found.append(f"metadata.labels[{kueue_names.MAX_EXECUTION}]: {seconds!r} must be a number above 0")
    if (
        old is not None
        and label(old, kueue_names.MAX_EXECUTION) != seconds
        and not (kind.is_suspended(old) and kind.is_suspended(job))
    ):
        found.append(f"metadata.labels[{kueue_names.MAX_EXECUTION}]: field is immutable unless the job is suspended")
    if old is not None:
        priority, had = label(job, kueue_names.PRIORITY_CLASS), label(old, kueue_names.PRIORITY_CLASS)
        if had and not priority:
            found.append(f"metadata.labels[{kueue_names.PRIORITY_CLASS}]: may be changed, not removed")
        elif running and priority and not had:
            found.append(f"metadata.labels[{kueue_names.PRIORITY_CLASS}]: may not be added while the job runs")
    if old is None or old.get("spec") != job.get("spec"):
        found += kind.problems(job) + placement.problems(kind, job)
    return found


def warnings_of(kind: GangJob, job: Json, old: Json | None) -> tuple[str, ...]:
    """What is asked for and will not be done, although the job can be queued."""
    if not label(job, kueue_names.QUEUE) or (old is not None and old.get("spec") == job.get("spec")):
        return ()
    annotations = job["metadata"].get("annotations") or {}
    rigid = annotations.get(kueue_names.ELASTIC) == "true" and not hasattr(kind, "elastic")
    return (*((RIGID.format(kind.kind.kind),) if rigid else ()), *placement.warnings(_templates(kind, job)))


def _templates(kind: GangJob, job: Json) -> list[Json]:
    try:
        return [entry.get("template") or {} for entry in kind.pod_sets(job)]
    except (BadInput, TypeError, ValueError, AttributeError, KeyError, IndexError):
        return []  # the check of its shape says so


def _job_kind(request: AdmissionRequest) -> GangJob | None:
    return BY_NAME.get((request.kind.group, request.kind.kind))


def _informed_kind(request: AdmissionRequest, around: JobSurroundings) -> GangJob | None:
    """The kind of job, knowing the object that describes its pods, where another one does."""
    kind = _job_kind(request)
    return kind.knowing(around.blueprint, ()) if kind is not None and has_blueprint(kind) else kind
