"""Admission for queues: jobs with a queue label begin suspended, and what can never be queued is refused.

`QueueAdmission` answers the webhooks of any cluster and the embedded server itself. It reads the owner and the queue
that a job names, and the request, nothing else; it never stands in the way of a deletion or of a finalizer, and changes
an object the same way every time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable

from shoal.api import kueue_names, rules
from shoal.api.kueue import MULTIKUEUE_CONTROLLER
from shoal.api.kueue_convert import PRIORITY_SOURCES
from shoal.api.meta import Json
from shoal.api.names import check_subdomain
from shoal.api.objects import label
from shoal.api.problems import joined
from shoal.controllers.queues import placement
from shoal.controllers.queues.elsewhere import Elsewhere
from shoal.controllers.queues.jobs import BY_NAME, GangJob
from shoal.controllers.queues.owners import NEVER_QUEUED, Owners
from shoal.errors import BadInput
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.kube.webhooks import AdmissionRequest, AdmissionVerdict

PREPARE_PATH = "/queues/prepare"
VALIDATE_PATH = "/queues/validate"
_FINALIZED = ("ClusterQueue", "ResourceFlavor")

JUDGED = ("clusterqueues", "cohorts", "resourceflavors", "workloads")
STATUS_JUDGED = ("workloads",)
"""Whose status is judged too: what was given to a Workload stays until it is taken back."""
PREPARED = (
    *((one.kind.group, one.kind.plural) for one in BY_NAME.values()),
    (kueue_names.GROUP, "clusterqueues"),
    (kueue_names.GROUP, "resourceflavors"),
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


class QueueAdmission:
    """`client` reads the owners and the queues that jobs name."""

    def __init__(self, client: Client) -> None:
        self._owners = Owners(client)
        self._elsewhere = Elsewhere(client)

    async def prepare(self, request: AdmissionRequest) -> AdmissionVerdict:
        child = await self._is_child(request)
        return prepare(request, child=child, elsewhere=not child and await self._goes_elsewhere(request))

    async def validate(self, request: AdmissionRequest) -> AdmissionVerdict:
        return validate(request, child=await self._is_child(request))

    async def _is_child(self, request: AdmissionRequest) -> bool:
        """Where that cannot be known now the job gets in as it is: the controller stops it if it should wait."""
        if request.object is None or request.sub_resource or _job_kind(request) is None:
            return False
        try:
            return await self._owners.hold(request.object, request.namespace)
        except KubeError:
            return True

    async def _goes_elsewhere(self, request: AdmissionRequest) -> bool:
        kind, obj = _job_kind(request), request.object
        if obj is None or kind is None or request.operation != "CREATE" or not is_queued(kind, obj, request.namespace):
            return False
        return await self._elsewhere.takes(kind, obj, request.namespace)


def prepare(request: AdmissionRequest, *, child: bool = False, elsewhere: bool = False) -> AdmissionVerdict:
    """Suspend a new job that a queue is to start; keep queues and flavors in place while they are in use.

    `child`: another job that is held already made it. `elsewhere`: its queue gives it to another cluster.
    """
    obj = request.object
    if obj is None or request.sub_resource:
        return AdmissionVerdict()
    if request.operation != "CREATE":
        return _with_kept_reference(obj, request.old_object)
    if request.kind.group == kueue_names.GROUP and request.kind.kind in _FINALIZED:
        held = obj["metadata"].get("finalizers") or []
        if kueue_names.IN_USE in held:
            return AdmissionVerdict()
        return AdmissionVerdict(
            changed={**obj, "metadata": {**obj["metadata"], "finalizers": [*held, kueue_names.IN_USE]}}
        )
    kind = _job_kind(request)
    if kind is None or not is_queued(kind, obj, request.namespace, child=child):
        return AdmissionVerdict()
    made = obj if kind.is_suspended(obj) else kind.suspended(obj)
    if elsewhere:
        made = {**made, "spec": {**(made.get("spec") or {}), "managedBy": MULTIKUEUE_CONTROLLER}}
    return AdmissionVerdict(changed=made) if made is not obj else AdmissionVerdict()


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


def validate(request: AdmissionRequest, *, child: bool = False) -> AdmissionVerdict:
    """Kueue's webhooks refuse with 403, what a schema says is 422; Ray kinds and AppWrappers are refused with 422."""
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
        kind = _job_kind(request)
        judged = kind is not None and not child
        problems = "; ".join(problems_of(kind, obj, old)) if kind is not None and judged else ""
        warnings = warnings_of(kind, obj, old) if kind is not None and judged else ()
    if not problems:
        return AdmissionVerdict(warnings=warnings)
    code, reason = (403, "Forbidden") if request.kind.group in (kueue_names.GROUP, "batch") else (422, "Invalid")
    return AdmissionVerdict(False, f"{request.kind.kind} {request.name!r} is invalid: {problems}", code, reason)


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


def is_queued(kind: GangJob, job: Json, namespace: str = "", *, child: bool = False) -> bool:
    """Is it for a queue to start this job? Not what another job that is held made, nor what no queue can hold."""
    where = namespace or job["metadata"].get("namespace", "")
    return bool(label(job, kueue_names.QUEUE)) and where not in NEVER_QUEUED and not child and not kind.is_skipped(job)


def problems_of(kind: GangJob, job: Json, old: Json | None) -> list[str]:
    """Why this job cannot be queued as it is, or why it may not be changed like that."""
    found = []
    queue, before = label(job, kueue_names.QUEUE), label(old, kueue_names.QUEUE) if old is not None else ""
    running = old is not None and not kind.is_suspended(old) and kind.end(old) is None
    if running and before and queue != before:
        found.append(f"metadata.labels[{kueue_names.QUEUE}]: field is immutable while the job is not suspended")
    if not queue:
        return found
    if problem := check_subdomain(queue):
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
    return placement.warnings(_templates(kind, job))


def _templates(kind: GangJob, job: Json) -> list[Json]:
    try:
        return [entry.get("template") or {} for entry in kind.pod_sets(job)]
    except (BadInput, TypeError, ValueError, AttributeError, KeyError, IndexError):
        return []  # the check of its shape says so


def _job_kind(request: AdmissionRequest) -> GangJob | None:
    return BY_NAME.get((request.kind.group, request.kind.kind))
