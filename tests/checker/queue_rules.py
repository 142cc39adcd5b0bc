"""What must hold of queued gangs at every revision of a history.

Knows stored objects and nothing of our code. I5: a job runs only while its Workload is admitted. I8: what a cluster
queue without a cohort has reserved is never more than its quota. I11: quota comes back only when no pod is left. I20:
conditions that exclude each other, and ends that are not final. I38: admitted means every check is ready. I39: at most
one live request per check, and none after the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from tests.checker.gang_world import Change

Json = dict[str, Any]
JOBS = ("jobs", "rayjobs", "rayclusters", "appwrappers")
QUEUE = "kueue.x-k8s.io/queue-name"
_SUFFIXES = {"m": Fraction(1, 1000), "": Fraction(1), "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9)}
_SUFFIXES |= {"Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40)}


def judge_queues(changes: Iterable[Change], *, quiet: bool = False) -> list[str]:
    """Every violation in words. `quiet`: nothing is on its way any more."""
    walk = _Walk()
    for change in changes:
        walk.step(change)
    return walk.found + (walk.at_rest() if quiet else [])


class _Walk:
    def __init__(self) -> None:
        self.found: list[str] = []
        self.workloads: dict[str, Json] = {}
        self.by_job: dict[str, str] = {}
        self.queues: dict[str, Json] = {}
        self.requests: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}
        self.owners: dict[str, str] = {}

    def step(self, change: Change) -> None:
        old, new = change.old, change.new
        self._at = change.revision
        for obj in filter(None, (new,)):
            self.owners[obj["metadata"]["uid"]] = _owner(obj)
        match change.collection:
            case "clusterqueues" if new is not None:
                self.queues[new["metadata"]["name"]] = new
            case "provisioningrequests":
                _keep(self.requests, old, new)
                if old is None and new is not None:
                    self._one_request(new)
            case "pods":
                _keep(self.pods, old, new)
            case "workloads":
                _keep(self.workloads, old, new)
                if new is not None:
                    self._workload(old, new)
        if change.collection in JOBS and new is not None:
            self._job(old, new)

    def say(self, text: str) -> None:
        self.found.append(f"revision {self._at}: {text}")

    # --- rules

    def _workload(self, old: Json | None, new: Json) -> None:
        name = new["metadata"]["name"]
        self.by_job[_owner(new)] = new["metadata"]["uid"]
        admitted, reserved = _true(new, "Admitted"), _true(new, "QuotaReserved")
        if admitted and not reserved:
            self.say(f"I20: {name} is admitted and has no quota")
        if reserved != bool((new.get("status") or {}).get("admission")):
            self.say(f"I20: {name} has quota and no admission, or the other way round")
        if old is not None and _true(old, "Finished") and not _true(new, "Finished"):
            self.say(f"I20: {name} had finished")
        if old is not None and _true(old, "Finished") and not _true(old, "Admitted") and admitted:
            self.say(f"I20: {name} was admitted after its end")
        if admitted and not (old is not None and _true(old, "Admitted")):
            unready = [one["name"] for one in _checks(new) if one.get("state") != "Ready"]
            if unready:
                self.say(f"I38: {name} is admitted while {', '.join(unready)} is not ready")
            missing = self._checks_of(new) - {one["name"] for one in _checks(new)}
            if missing:
                self.say(f"I38: {name} is admitted without the checks {', '.join(sorted(missing))}")
        if old is not None and _true(old, "QuotaReserved") and not reserved and not _true(new, "Finished"):
            left = [pod["metadata"]["name"] for pod in self.pods.values() if self._is_below(pod, _owner(new))]
            if left:
                self.say(f"I11: {name} gave its quota back while {', '.join(left)} had not ended")
        if reserved and not (old is not None and _true(old, "QuotaReserved")):
            self._quota(new["status"]["admission"]["clusterQueue"])

    def _quota(self, queue: str) -> None:
        spec = (self.queues.get(queue) or {}).get("spec") or {}
        if spec.get("cohortName") or spec.get("cohort"):
            return
        used: dict[tuple[str, str], Fraction] = {}
        for workload in self.workloads.values():
            admission = (workload.get("status") or {}).get("admission") or {}
            if (
                admission.get("clusterQueue") != queue
                or not _true(workload, "QuotaReserved")
                or _true(workload, "Finished")
            ):
                continue
            done = {one["name"]: one["count"] for one in workload["status"].get("reclaimablePods") or ()}
            for entry in admission.get("podSetAssignments") or ():
                count = entry.get("count", 1)
                left = Fraction(count - done.get(entry["name"], 0), count) if count else Fraction(0)
                for resource, text in (entry.get("resourceUsage") or {}).items():
                    at = ((entry.get("flavors") or {}).get(resource, ""), resource)
                    used[at] = used.get(at, Fraction(0)) + amount(text) * left
        for group in spec.get("resourceGroups") or ():
            for flavor in group.get("flavors") or ():
                for one in flavor.get("resources") or ():
                    total = used.get((flavor["name"], one["name"]), Fraction(0))
                    if total > amount(one["nominalQuota"]):
                        where = f"{one['name']} of {flavor['name']} in {queue}"
                        self.say(f"I8: {total} {where} is reserved, and there is {one['nominalQuota']}")

    def _job(self, old: Json | None, new: Json) -> None:
        labelled = (new["metadata"].get("labels") or {}).get(QUEUE)
        begins = _runs(new) and not (old is not None and _runs(old))
        if not labelled or not begins or self.owners.get(new["metadata"]["uid"]):
            return
        workload = self.workloads.get(self.by_job.get(new["metadata"]["uid"], ""))
        if workload is None or not _true(workload, "Admitted") or _true(workload, "Evicted"):
            self.say(f"I5: {new['metadata']['name']} runs and its Workload is not admitted")

    def _one_request(self, new: Json) -> None:
        prefix = new["metadata"]["name"].rpartition("-")[0]
        twins = [
            one["metadata"]["name"]
            for one in self.requests.values()
            if one["metadata"]["name"].rpartition("-")[0] == prefix and not _is_over(one)
        ]
        if len(twins) > 1:
            self.say(f"I39: {' and '.join(sorted(twins))} are both live")
        workload = self.workloads.get(_owner(new))
        if workload is not None and _true(workload, "Finished"):
            self.say(f"I39: {new['metadata']['name']} was made after the end of its Workload")

    def at_rest(self) -> list[str]:
        found = []
        for request in self.requests.values():
            workload = self.workloads.get(_owner(request))
            if workload is None or _true(workload, "Finished") or not _true(workload, "QuotaReserved"):
                found.append(f"at rest: I39: {request['metadata']['name']} is left after its end")
        return found

    def _checks_of(self, workload: Json) -> set[str]:
        """Checks of its queue that concern every flavor."""
        admission = workload["status"].get("admission") or {}
        spec = (self.queues.get(admission.get("clusterQueue", "")) or {}).get("spec") or {}
        rules = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
        return {one["name"] for one in rules if not one.get("onFlavors")}

    def _is_below(self, pod: Json, job: str) -> bool:
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed") or not job:
            return False
        uid = _owner(pod)
        for _ in range(8):
            if uid == job:
                return True
            uid = self.owners.get(uid, "")
        return False


def amount(text: Any) -> Fraction:
    written = str(text)
    digits = written.rstrip("mkMGTiK")
    return Fraction(digits) * _SUFFIXES[written[len(digits) :]]


def _keep(book: dict[str, Json], old: Json | None, new: Json | None) -> None:
    if old is not None and (new is None or new["metadata"]["uid"] != old["metadata"]["uid"]):
        book.pop(old["metadata"]["uid"], None)
    if new is not None:
        book[new["metadata"]["uid"]] = new


def _owner(obj: Json) -> str:
    references = obj["metadata"].get("ownerReferences") or ()
    return next((str(one.get("uid")) for one in references if one.get("controller")), "")


def _true(obj: Json, kind: str) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == kind and one.get("status") == "True" for one in conditions)


def _checks(obj: Json) -> list[Json]:
    return list((obj.get("status") or {}).get("admissionChecks") or ())


def _runs(job: Json) -> bool:
    return (job.get("spec") or {}).get("suspend") is not True


def _is_over(request: Json) -> bool:
    return any(_true(request, kind) for kind in ("Failed", "BookingExpired", "CapacityRevoked"))
