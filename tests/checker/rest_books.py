"""Books and finalizers at rest: I10, what queues publish is what stored Workloads hold; I37, no finalizer of ours is
left without a reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.api.gang import GANG_UID
from tests.checker.rest_gangs import Gangs, check_rules, flavors_of, has_ended, is_suspended
from tests.checker.rest_objects import (
    SECOND,
    Json,
    Rules,
    Stored,
    annotation,
    is_leaving,
    is_true,
    label,
    moment,
    name_of,
    owner_uid,
    sums,
    uid_of,
)
from tests.checker.rest_quota import Quota, Usage, charge_of, describe, holds_quota, queue_charged

IN_USE = "kueue.x-k8s.io/resource-in-use"
TRACKING = "batch.kubernetes.io/job-tracking"
RAY_JOB = "ray.io/rayjob-finalizer"
IDLE = "ray.io/idle-termination-cleanup-finalizer"
REDIS = "ray.io/gcs-ft-redis-cleanup-finalizer"
WRAPPER = "workload.codeflare.dev/finalizer"
ELASTIC = "kueue.x-k8s.io/elastic-job"
POD_SET = "kueue.x-k8s.io/podset"
FAREWELL = 60 * SECOND
"""So long a deleted Workload waits for pods that do not go, and a RayJob for a cluster that does not answer."""


# --- I10


def books(stored: Stored, rules: Rules) -> Iterator[str]:
    yield from _charged(stored)
    yield from _given_back(stored)
    gangs, quota = Gangs(stored, rules), Quota(stored)
    for queue in stored.all("clusterqueues"):
        if not (queue.get("status") or {}).get("conditions"):
            continue  # no controller publishes here
        name = queue["metadata"]["name"]
        mine = [one for one in quota.holding if queue_charged(one) == name]
        waiting = [
            one
            for one in stored.all("workloads")
            if ((gangs.local_queue(one) or {}).get("spec") or {}).get("clusterQueue") == name
        ]
        yield from _published(stored, f"ClusterQueue {name}", queue, queue, mine, waiting)
    for local in stored.all("localqueues"):
        if not (local.get("status") or {}).get("conditions"):
            continue
        metadata = local["metadata"]
        mine = [
            one
            for one in stored.all("workloads")
            if one["metadata"].get("namespace") == metadata.get("namespace")
            and (one.get("spec") or {}).get("queueName") == metadata["name"]
        ]
        above = stored.get("clusterqueues", str((local.get("spec") or {}).get("clusterQueue") or ""))
        holding = [one for one in mine if holds_quota(one)]
        yield from _published(stored, f"LocalQueue {name_of(local)}", local, above or {}, holding, mine)


def _charged(stored: Stored) -> Iterator[str]:
    """Admitted and charged are one."""
    for workload in stored.all("workloads"):
        if is_true(workload, "Finished"):
            continue
        admission = (workload.get("status") or {}).get("admission") or {}
        if is_true(workload, "Admitted") and not (is_true(workload, "QuotaReserved") and admission):
            yield f"I10: {describe(workload)} is admitted and charged nowhere"
        if admission and not is_true(workload, "QuotaReserved"):
            yield f"I10: {describe(workload)} is charged and has no quota reserved"
        if is_true(workload, "QuotaReserved") and not admission.get("clusterQueue"):
            yield f"I10: {describe(workload)} has quota of no queue"
        given = {one.get("name") for one in admission.get("podSetAssignments") or ()}
        sets = {one.get("name") for one in (workload.get("spec") or {}).get("podSets") or ()}
        if admission and sets - given:
            yield f"I10: {describe(workload)} is charged nothing for {', '.join(sorted(sets - given))}"


def _given_back(stored: Stored) -> Iterator[str]:
    """Pods of a Job that are done, and that its controller never starts again, need no quota, evicted or not."""
    for workload in stored.all("workloads"):
        job = stored.by_uid.get(owner_uid(workload)) or {}
        if job.get("kind") != "Job" or is_true(workload, "Finished") or is_leaving(workload) or is_leaving(job):
            continue
        spec, done = job.get("spec") or {}, int((job.get("status") or {}).get("succeeded") or 0)
        parallel, completions = int(spec.get("parallelism") or 1), spec.get("completions")
        if completions is None or parallel == 1 or not done or has_ended(job):
            continue
        spare = parallel - (int(completions) - done)
        told = sum(int(one.get("count") or 0) for one in (workload.get("status") or {}).get("reclaimablePods") or ())
        if spare > 0 and told < spare:
            yield f"I10: {spare} pods of {describe(workload)} are done and will not run again, and {told} are told so"


def _grown(stored: Stored, workload: Json) -> Usage:
    """What an elastic job is charged beyond its admission: pods of it that no gate holds and that it has on top."""
    total: Usage = {}
    if annotation(workload, ELASTIC) != "true":
        return total
    below = stored.owned.get(owner_uid(workload), [])
    for part in ((workload.get("status") or {}).get("admission") or {}).get("podSetAssignments") or ():
        mine = [
            pod
            for pod in below
            if label(pod, POD_SET) == part.get("name") and not (pod.get("spec") or {}).get("schedulingGates")
        ]
        for pod in mine[int(part.get("count", 1)) :]:
            for resource, value in stored.requests_of(pod["spec"]).items():
                flavor = (part.get("flavors") or {}).get(resource)
                if flavor is not None:
                    total[flavor, resource] = total.get((flavor, resource), 0) + value
    return total


def _published(
    stored: Stored, what: str, obj: Json, queue: Json, holding: list[Json], all_of_it: list[Json]
) -> Iterator[str]:
    status = obj["status"]
    admitted = [one for one in holding if is_true(one, "Admitted")]
    pending = [
        one
        for one in all_of_it
        if (one.get("spec") or {}).get("active") is not False
        and not is_true(one, "Finished")
        and not is_true(one, "QuotaReserved")
    ]
    for name, told, counted in (
        ("waiting", "pendingWorkloads", pending),
        ("with quota", "reservingWorkloads", holding),
        ("admitted", "admittedWorkloads", admitted),
    ):
        if int(status.get(told) or 0) != len(counted):
            yield f"I10: {what} says {status.get(told) or 0} {name} and there are {len(counted)}"
    for told, counted in (("flavorsReservation", holding), ("flavorsUsage", admitted)):
        offered = {
            (flavor["name"], one["name"])
            for group in (queue.get("spec") or {}).get("resourceGroups") or ()
            for flavor in group.get("flavors") or ()
            for one in flavor.get("resources") or ()
        }
        expected: Usage = {}
        for workload in counted:
            for at, value in (*charge_of(workload).items(), *_grown(stored, workload).items()):
                if at in offered:
                    expected[at] = expected.get(at, 0) + value
        shown: Usage = {}
        for flavor in status.get(told) or ():
            for one in flavor.get("resources") or ():
                value = sums({one["name"]: one.get("total", 0)})[one["name"]]
                shown[flavor["name"], one["name"]] = value
        if {at: value for at, value in shown.items() if value} != {
            at: value for at, value in expected.items() if value
        }:
            yield f"I10: {what} says {told} {_plain(shown)} and {_plain(expected)} is charged"


def _plain(usage: Usage) -> str:
    return (
        ", ".join(f"{value} {resource} of {flavor}" for (flavor, resource), value in sorted(usage.items()) if value)
        or "nothing"
    )


# --- I37


def finalizers(stored: Stored, rules: Rules) -> Iterator[str]:
    if rules.queues:
        yield from _in_use(stored, rules)
    if rules.jobs:
        yield from _tracked(stored)
    if rules.ray:
        for plural, names in (("rayjobs", (RAY_JOB,)), ("rayclusters", (IDLE, REDIS))):
            for obj in stored.all(plural):
                left = [name for name in names if name in _held(obj)]
                if left and is_leaving(obj) and _is_late(obj, rules) and not _is_cleaning(stored, obj):
                    yield f"I37: {obj['kind']} {name_of(obj)} is deleted and keeps {', '.join(left)}"
    if rules.wrappers:
        for obj in stored.all("appwrappers"):
            if is_leaving(obj) and WRAPPER in _held(obj) and not _has_objects(stored, obj):
                yield f"I37: AppWrapper {name_of(obj)} is deleted, has nothing left and keeps {WRAPPER}"


def _in_use(stored: Stored, rules: Rules) -> Iterator[str]:
    charged = {queue_charged(one) for one in stored.all("workloads") if holds_quota(one)}
    queues = stored.all("clusterqueues")
    flavors = {name for one in queues for name in flavors_of(one)}
    checks = {name for one in queues for name in check_rules(one)}
    for plural, used, by in (
        ("clusterqueues", charged, "no gang has quota of it"),
        ("resourceflavors", flavors, "no ClusterQueue names it"),
        ("admissionchecks", checks, "no ClusterQueue names it"),
    ):
        for obj in stored.all(plural):
            if is_leaving(obj) and IN_USE in _held(obj) and obj["metadata"]["name"] not in used:
                yield f"I37: {obj['kind']} {name_of(obj)} is deleted, {by}, and it keeps {IN_USE}"
    gangs = Gangs(stored, rules)
    for workload in stored.all("workloads"):
        if IN_USE not in _held(workload):
            continue
        job = gangs.job_of(workload)
        if is_true(workload, "Finished"):
            if not gangs.is_elsewhere(workload):
                yield f"I37: {describe(workload)} has finished and its Workload keeps {IN_USE}"
        elif is_leaving(workload) and not gangs.is_elsewhere(workload):
            pods = stored.owned.get(uid_of(job), []) if job is not None else []
            if not pods and (job is None or is_suspended(job) or has_ended(job)):
                yield f"I37: the Workload of {describe(workload)} is deleted, has nothing left and keeps {IN_USE}"


def _tracked(stored: Stored) -> Iterator[str]:
    """A pod is tracked for its Job; without that Job no controller counts it any more."""
    for pod in stored.all("pods"):
        if TRACKING in _held(pod) and (stored.by_uid.get(owner_uid(pod)) or {}).get("kind") != "Job":
            yield f"I37: pod {name_of(pod)} keeps {TRACKING} and its Job is gone"


def _is_cleaning(stored: Stored, cluster: Json) -> bool:
    """A Job that empties its Redis has not ended."""
    return any(owner_uid(job) == uid_of(cluster) and not has_ended(job) for job in stored.all("jobs"))


def _has_objects(stored: Stored, wrapper: Json) -> bool:
    uid = uid_of(wrapper)
    return any(
        annotation(obj, GANG_UID) == uid
        or any(one.get("uid") == uid for one in obj["metadata"].get("ownerReferences") or ())
        for found in stored.objects.values()
        for obj in found
    )


def _is_late(obj: Json, rules: Rules) -> bool:
    return not rules.now or rules.now - moment(obj["metadata"]["deletionTimestamp"]) > FAREWELL


def _held(obj: Json) -> list[str]:
    return obj["metadata"].get("finalizers") or []
