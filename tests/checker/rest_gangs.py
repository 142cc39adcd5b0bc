"""Queued gangs as stored: their pod sets, their jobs, what keeps them legally waiting, and who comes first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tests.checker.rest_match import matches_labels
from tests.checker.rest_objects import (
    SECOND,
    Json,
    Rules,
    Stored,
    annotation,
    condition,
    is_bound,
    is_leaving,
    is_true,
    label,
    moment,
    owner_of,
    owner_uid,
    sums,
    uid_of,
)
from tests.checker.rest_quota import holds_quota
from tests.checker.rest_room import Part

QUEUE = "kueue.x-k8s.io/queue-name"
GATED_BY = "kueue.x-k8s.io/admission-gated-by"
PREBUILT = "kueue.x-k8s.io/prebuilt-workload-name"
ELSEWHERE = "shoal.dev/elsewhere"
SLICE = "kueue.x-k8s.io/workload-slice-replacement-for"
HUB = "kueue.x-k8s.io/multikueue"
PLURALS = {"Job": "jobs", "RayJob": "rayjobs", "RayCluster": "rayclusters", "AppWrapper": "appwrappers"}
LATE = 60 * SECOND
"""So long after its moment a back-off that has ended may go unnoticed on a loaded machine."""


@dataclass(frozen=True)
class Demand:
    """One pod set of a gang that wants to start."""

    name: str
    count: int
    least: int
    spec: Json
    requests: dict[str, int]
    group: str = ""
    """Pod sets of one group share their flavors."""

    def part(self, count: int | None = None) -> Part:
        return Part(self.spec, self.requests, self.count if count is None else count)


class Gangs:
    """All Workloads of one moment."""

    def __init__(self, stored: Stored, rules: Rules) -> None:
        self.stored = stored
        self.rules = rules

    @cached_property
    def all(self) -> list[Json]:
        return [one for one in self.stored.all("workloads") if not is_true(one, "Finished") and not is_leaving(one)]

    @cached_property
    def of_job(self) -> dict[str, Json]:
        """UID of a job to its Workload, finished or not."""
        return {owner_uid(one): one for one in self.stored.all("workloads") if owner_uid(one)}

    def job_of(self, workload: Json) -> Json | None:
        return self.stored.by_uid.get(owner_uid(workload))

    # --- its queue

    def local_queue(self, workload: Json) -> Json | None:
        name = str((workload.get("spec") or {}).get("queueName") or "")
        return self.stored.get("localqueues", name, workload["metadata"].get("namespace", ""))

    def cluster_queue(self, workload: Json) -> Json | None:
        local = self.local_queue(workload)
        name = str(((local or {}).get("spec") or {}).get("clusterQueue") or "")
        return self.stored.get("clusterqueues", name)

    def problems(self, cluster_queue: Json) -> list[str]:
        """What keeps a queue from admitting anybody, each in a word or two that its conditions use as well."""
        found = []
        spec = cluster_queue.get("spec") or {}
        if (spec.get("stopPolicy") or "None") != "None":
            found.append("is stopped")
        if is_leaving(cluster_queue):
            found.append("is terminating")
        missing = [name for name in flavors_of(cluster_queue) if self.stored.get("resourceflavors", name) is None]
        if missing:
            found.append(f"missing ResourceFlavor(s): {','.join(sorted(missing))}")
        checks = {name: self.stored.get("admissionchecks", name) for name in check_rules(cluster_queue)}
        absent = sorted(name for name, one in checks.items() if one is None)
        if absent:
            found.append(f"missing AdmissionCheck(s): {','.join(absent)}")
        inactive = sorted(name for name, one in checks.items() if one is not None and not is_true(one, "Active"))
        if inactive:
            found.append(f"inactive AdmissionCheck(s): {','.join(inactive)}")
        return found + self._contradictions(cluster_queue)

    def _contradictions(self, cluster_queue: Json) -> list[str]:
        """Checks that send gangs to other clusters: one at most, for all flavors, and none for nodes beside it."""
        rules, by_controller = check_rules(cluster_queue), {"multikueue": [], "provisioning-request": []}
        for name in sorted(rules):
            spec = (self.stored.get("admissionchecks", name) or {}).get("spec") or {}
            by_controller.setdefault(str(spec.get("controllerName")).removeprefix("kueue.x-k8s.io/"), []).append(name)
        away = by_controller["multikueue"]
        partly = [name for name in away if rules[name] and set(rules[name]) != set(flavors_of(cluster_queue))]
        if len(away) > 1 or partly or (away and by_controller["provisioning-request"]):
            return ["MultiKueue"]
        return []

    def why_not_considered(self, workload: Json) -> str:
        """What keeps a gang without quota from being looked at at all; empty when nothing does."""
        spec, status = workload.get("spec") or {}, workload.get("status") or {}
        if spec.get("active") is False:
            return "inactive"
        if annotation(workload, GATED_BY):
            return "gated"
        local, queue = self.local_queue(workload), self.cluster_queue(workload)
        if local is None or queue is None:
            return "no queue"
        if is_leaving(local) or ((local.get("spec") or {}).get("stopPolicy") or "None") != "None":
            return "stopped"
        if self.problems(queue):
            return "stopped"
        if any(one.get("state") in ("Retry", "Rejected") for one in status.get("admissionChecks") or ()):
            return "checks"
        requeue_at = moment((status.get("requeueState") or {}).get("requeueAt"))
        now = self.rules.now
        if requeue_at and (not now or requeue_at > now - LATE):
            return "back-off"
        if condition(workload, "Requeued").get("status") == "False" and not requeue_at:
            return "back-off"
        if is_true(workload, "WaitingForReplacementPods"):
            return "held"
        namespace = workload["metadata"].get("namespace", "")
        home = self.stored.get("namespaces", namespace)
        labels = {
            "kubernetes.io/metadata.name": namespace,
            **(((home or {}).get("metadata") or {}).get("labels") or {}),
        }
        if matches_labels((queue.get("spec") or {}).get("namespaceSelector"), labels) is not True:
            return "namespace"
        job = self.job_of(workload)
        if job is None and (owner_of(workload) or {}).get("kind") in PLURALS:
            return "owner gone"
        if job is not None and (
            is_leaving(job) or is_on_hold(job) or label(job, PREBUILT) or annotation(job, PREBUILT)
        ):
            return "job"
        return ""

    # --- what it asks for

    def demands(self, workload: Json) -> list[Demand] | None:
        """None where this program cannot read what the pods will cost."""
        if annotation(workload, SLICE):
            return None
        home = workload["metadata"].get("namespace")
        limits = [
            limit
            for one in self.stored.all("limitranges")
            if one["metadata"].get("namespace") == home
            for limit in (one.get("spec") or {}).get("limits") or ()
        ]
        done = {
            one["name"]: int(one.get("count") or 0)
            for one in (workload.get("status") or {}).get("reclaimablePods") or ()
        }
        found = []
        for entry in (workload.get("spec") or {}).get("podSets") or ():
            spec = (entry.get("template") or {}).get("spec") or {}
            if _over_limits(spec):
                return None
            group = str((entry.get("topologyRequest") or {}).get("podSetGroupName") or "")
            if not all(leaves_alone(limit, spec) for limit in limits):
                return None
            name = str(entry.get("name") or "main")
            count = max(0, int(entry.get("count", 1)) - done.get(name, 0))
            least = min(count, int(entry["minCount"])) if entry.get("minCount") is not None else count
            least = least if self.rules.partial_admission else count
            found.append(Demand(name, count, least, spec, self.stored.requests_of(spec), group))
        return found

    def order(self, workload: Json) -> tuple[int, int, str]:
        evicted = condition(workload, "Evicted")
        at = moment(workload["metadata"].get("creationTimestamp"))
        if evicted.get("status") == "True" and evicted.get("reason") in ("PodsReadyTimeout", "AdmissionCheck"):
            at = moment(evicted.get("lastTransitionTime"))
        return (-int((workload.get("spec") or {}).get("priority") or 0), at, uid_of(workload))

    # --- once it has quota

    def checks_ready(self, workload: Json) -> bool:
        """Every check of its queue that concerns its flavors has said yes."""
        status = workload.get("status") or {}
        admission = status.get("admission") or {}
        queue = self.stored.get("clusterqueues", str(admission.get("clusterQueue") or ""))
        used = {
            flavor
            for part in admission.get("podSetAssignments") or ()
            for flavor in (part.get("flavors") or {}).values()
        }
        states = {one["name"]: one.get("state") for one in status.get("admissionChecks") or ()}
        rules = check_rules(queue or {})
        wanted = [name for name, flavors in rules.items() if not flavors or flavors & used]
        return all(states.get(name) == "Ready" for name in wanted) and all(one == "Ready" for one in states.values())

    def is_elsewhere(self, workload: Json) -> bool:
        """Its room is in another cluster."""
        job = self.job_of(workload)
        if ELSEWHERE in (workload["metadata"].get("finalizers") or ()) or ((job or {}).get("spec") or {}).get(
            "managedBy"
        ):
            return True
        admission = (workload.get("status") or {}).get("admission") or {}
        queue = self.stored.get("clusterqueues", str(admission.get("clusterQueue") or "")) or self.cluster_queue(
            workload
        )
        checks = [self.stored.get("admissionchecks", name) or {} for name in check_rules(queue or {})]
        return any((one.get("spec") or {}).get("controllerName") == HUB for one in checks)

    def promised(self) -> list[tuple[str, Part]]:
        """Pods of admitted gangs that are not on a node: those that exist, and those that are still to be made."""
        found = []
        for workload in self.all:
            if not (holds_quota(workload) and is_true(workload, "Admitted")) or self.is_elsewhere(workload):
                continue
            job = self.job_of(workload)
            below = self.stored.owned.get(uid_of(job), []) if job is not None else []
            given = {
                one["name"]: int(one.get("count", 1))
                for one in (workload["status"].get("admission") or {}).get("podSetAssignments") or ()
            }
            bound = [pod for pod in below if is_bound(pod) and not is_leaving(pod)]
            wanted = sum(given.values()) - _finished(self.stored, job)
            if wanted <= len(bound):
                continue
            leaving = is_true(workload, "Evicted")
            for entry in (workload.get("spec") or {}).get("podSets") or ():
                spec = (entry.get("template") or {}).get("spec") or {}
                requests = self.stored.requests_of(spec)
                there = sum(1 for pod in bound if self.stored.requests_of(pod["spec"]) == requests)
                count = max(0, given.get(entry.get("name"), 0) - there)
                if count and not leaving:
                    found.append((uid_of(workload), Part(spec, requests, count)))
        return found


def _finished(stored: Stored, job: Json | None) -> int:
    return int(((job or {}).get("status") or {}).get("succeeded") or 0)


def is_on_hold(job: Json) -> bool:
    return (job.get("status") or {}).get("jobDeploymentStatus") == "ValidationFailed"


def has_ended(job: Json) -> bool:
    status = job.get("status") or {}
    if status.get("jobDeploymentStatus") in ("Complete", "Failed") or status.get("phase") in ("Succeeded", "Failed"):
        return True
    return job.get("kind") == "Job" and (is_true(job, "Complete") or is_true(job, "Failed"))


def is_suspended(job: Json) -> bool:
    return (job.get("spec") or {}).get("suspend") is True


def flavors_of(cluster_queue: Json) -> set[str]:
    groups = (cluster_queue.get("spec") or {}).get("resourceGroups") or ()
    return {str(flavor.get("name")) for group in groups for flavor in group.get("flavors") or ()}


def check_rules(cluster_queue: Json) -> dict[str, set[str]]:
    """Check name to the flavors that it concerns; none: all."""
    spec = cluster_queue.get("spec") or {}
    listed = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    found = {str(one["name"]): set(one.get("onFlavors") or ()) for one in listed if one.get("name")}
    return {**{str(name): set() for name in spec.get("admissionChecks") or ()}, **found}


def leaves_alone(limit: Json, spec: Json) -> bool:
    """A limit of the namespace that neither fills in nor refuses anything of this pod."""
    if limit.get("type") != "Container" or limit.get("maxLimitRequestRatio"):
        return False
    least, most = sums(limit.get("min")), sums(limit.get("max"))
    named = {*least, *most, *(limit.get("default") or {}), *(limit.get("defaultRequest") or {})}
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        asked = sums((container.get("resources") or {}).get("requests"))
        if any(name not in asked for name in named):
            return False
        if any(not least.get(name, 0) <= asked[name] <= most.get(name, asked[name]) for name in named):
            return False
    return True


def _over_limits(spec: Json) -> bool:
    """Does a container ask for more than it may have? Such a gang is refused in words of its own."""
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        resources = container.get("resources") or {}
        limits = resources.get("limits") or {}
        if any(name in limits for name in resources.get("requests") or {}) and limits != resources.get("requests"):
            asked, most = sums(resources.get("requests")), sums(limits)
            if any(asked[name] > most[name] for name in asked if name in most):
                return True
    return False
