"""I52: what is stored as the reason of a wait, or said of how something fares, is true of the stored world.

Our own texts are read back: who is said to hold, to leave, to be stopped or to be missing must do so. A text of which
this program knows nothing is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.checker.rest_gangs import PLURALS, PREBUILT, QUEUE, Gangs, has_ended, is_on_hold, is_suspended
from tests.checker.rest_objects import (
    Json,
    Rules,
    Stored,
    annotation,
    condition,
    is_bound,
    is_leaving,
    is_live,
    is_true,
    label,
    name_of,
    owner_of,
    owner_uid,
    sums,
    uid_of,
)
from tests.checker.rest_quota import Quota, describe, holds_quota
from tests.checker.rest_waiting import Waiting

PENDING = re.compile(r"Pending the preemption of (\d+) workload")
MORE = re.compile(r"insufficient unused quota for (\S+) in flavor (\S+), (\S+) more needed")
MOST = re.compile(r"insufficient quota for (\S+) in flavor (\S+), .*? > maximum capacity \((\S+)\)")
STOPPED = re.compile(r"^(ClusterQueue(?= \S+ is stopped)|LocalQueue) (\S+) is (?:inactive: it is )?stopped$")
INACTIVE = re.compile(r"^ClusterQueue (\S+) is inactive")
ABSENT = re.compile(r"^(ClusterQueue|LocalQueue) (\S+) doesn't exist")
FREE = re.compile(r"(\S+) (\S+) needed, (\S+) free(?=;|$)")
HELD_BY = re.compile(r"held by ([^;]+)")
KEY = re.compile(r"\b([A-Z][A-Za-z]*)/([a-z0-9-]+)/([a-z0-9][a-z0-9.-]*)")
PODS_MISSING = "shoal.dev/PodsMissing"
PASSING = ("Workload no longer fits after processing another workload", "Bypassed scheduling evaluation")
"""True for one moment of a plan only; no user can act on them."""


class Reasons:
    def __init__(self, stored: Stored, rules: Rules, waiting: Waiting) -> None:
        self.stored = stored
        self.rules = rules
        self.gangs: Gangs = waiting.gangs
        self.quota: Quota = waiting.quota
        self.waiting = waiting

    def judge(self) -> Iterator[str]:
        if self.rules.queues:
            for workload in self.gangs.all:
                yield from self._workload(workload)
            yield from self._jobs()
            yield from self._queues()
        if self.rules.wrappers:
            for wrapper in self.stored.all("appwrappers"):
                text = str((wrapper.get("status") or {}).get("message") or "")
                yield from self._running(wrapper)
                if (wrapper.get("status") or {}).get("state") == "Pending" and not is_leaving(wrapper):
                    yield from self._holders(f"AppWrapper {name_of(wrapper)}", wrapper, text)
                    yield from self._nodes_to_come(f"AppWrapper {name_of(wrapper)}", wrapper, text)
                    chosen = bool((wrapper["spec"].get("schedulingSpec") or {}).get("nodeSelector"))
                    yield from self._free(f"AppWrapper {name_of(wrapper)}", text, chosen)
        if self.rules.ray:
            yield from self._ray()

    # --- queued gangs

    def _workload(self, workload: Json) -> Iterator[str]:
        text = describe(workload)
        reserved, admitted = condition(workload, "QuotaReserved"), condition(workload, "Admitted")
        if not reserved.get("message") and not self._is_out(workload):
            yield f"I52: {text} waits and is told nothing"
        if reserved.get("status") == "False" and not self._is_out(workload):
            said = str(reserved.get("message") or "")
            for why in self._quota_reason(workload, said):
                yield f"I52: {text} is told {said!r}, and {why}"
        yield from self._pods_missing(workload)
        if admitted.get("reason") == "WaitingForRoom" and holds_quota(workload):
            yield from self._holders(text, workload, str(admitted.get("message") or ""))

    def _pods_missing(self, workload: Json) -> Iterator[str]:
        """Pods are said to be missing, and not while all are on nodes."""
        pods = [pod for pod in self.stored.owned.get(owner_uid(workload), []) if not is_leaving(pod)]
        admission = (workload.get("status") or {}).get("admission") or {}
        wanted = sum(int(one.get("count", 1)) for one in admission.get("podSetAssignments") or ())
        said = str(condition(workload, PODS_MISSING).get("message") or "")
        if is_true(workload, PODS_MISSING) and len(pods) >= wanted and all(is_bound(pod) for pod in pods):
            yield f"I52: {describe(workload)} is told {said!r}, and all its {len(pods)} pods are on nodes"

    def _is_out(self, workload: Json) -> bool:
        """Switched off, or waiting for a moment: its last reason stands until it is looked at again."""
        return self.gangs.why_not_considered(workload) in (
            "inactive",
            "gated",
            "back-off",
            "held",
            "job",
            "owner gone",
        )

    def _quota_reason(self, workload: Json, said: str) -> Iterator[str]:
        if found := PENDING.search(said):
            leaving = [one for one in self.quota.holding if is_true(one, "Evicted")]
            if not leaving:
                yield "no gang is leaving"
        if found := STOPPED.search(said):
            queue = self._named(found[1], found[2], workload)
            if queue is None or ((queue.get("spec") or {}).get("stopPolicy") or "None") == "None":
                yield "it is not stopped"
        if found := INACTIVE.search(said):
            queue = self.stored.get("clusterqueues", found[1])
            if queue is not None and not self.gangs.problems(queue):
                yield "nothing keeps it from admitting"
        if (found := ABSENT.search(said)) and self._named(found[1], found[2], workload) is not None:
            yield "it exists"
        if (
            said.startswith("workload namespace doesn't match")
            and self.gangs.why_not_considered(workload) != "namespace"
        ):
            yield "it does"
        if said in PASSING or any(said.startswith(one) for one in PASSING):
            yield "that does not say what is missing"
        yield from self._amounts(workload, said)

    def _amounts(self, workload: Json, said: str) -> Iterator[str]:
        """Amounts of quota, as a search for flavors from the first on finds them."""
        told = [(flavor, resource, sums({resource: text})[resource]) for resource, flavor, text in MORE.findall(said)]
        most = [(flavor, resource, sums({resource: text})[resource]) for resource, flavor, text in MOST.findall(said)]
        if not (told or most) or self.gangs.why_not_considered(workload):
            return
        could = self.waiting.could
        missing = could.missing(workload)
        if missing is None:
            self.waiting.found.doubt(describe(workload), "whether what it is told of quota is so")
            return
        for flavor, resource, value in told:
            short = [more for at, name, more in sorted(missing) if (at, name) == (flavor, resource)]
            if value in short:
                continue
            if could.is_unsettled(workload):
                self.waiting.found.doubt(describe(workload), "what it is told of quota while somebody leaves")
                continue
            more = " or ".join(f"{one} (in base units)" for one in short) or "nothing"
            yield f"{more} more of {resource} is needed"
        for flavor, resource, value in most:
            ever = could.node_of(workload).most((flavor, resource))
            if value != ever:
                yield f"the most that could ever be had of {resource} in {flavor} is {ever} (in base units)"

    def _named(self, kind: str, name: str, workload: Json) -> Json | None:
        if kind == "ClusterQueue":
            return self.stored.get("clusterqueues", name)
        return self.stored.get("localqueues", name, workload["metadata"].get("namespace", ""))

    def _free(self, text: str, said: str, chosen: bool) -> Iterator[str]:
        """Amounts that are free in all. Where pods are still to come or not every node may be used, there is no more
        than that, and less is believed where just those pods are taken off."""
        room = self.waiting.room
        plain = not any((one.get("spec") or {}).get("taints") or (one.get("spec") or {}).get("unschedulable")
                        for one in room.nodes)  # fmt: skip
        some = (
            chosen or not plain or " on the nodes it may use" in said or bool(self.stored.all("provisioningrequests"))
        )
        for asked, resource, told in FREE.findall(said):
            free, needed = room.total(resource), sums({resource: asked})[resource]
            shown, kept = sums({resource: told})[resource], room.promised.get(resource, 0)
            if shown > free or (shown != free and not some and not kept):
                yield f"I52: {text} is told {said!r}, and {free} (in base units) of {resource} is free"
            elif not some and not kept and free >= needed:
                yield f"I52: {text} is told {said!r}, and that is enough"
            elif shown != max(0, free - kept):
                self.waiting.found.doubt(text, "how much is free on the nodes that it may use, beside pods to come")

    def _holders(self, text: str, obj: Json, said: str) -> Iterator[str]:
        """Who is said to hold room exists, or its pods do, and it has some."""
        for listed in HELD_BY.findall(said):
            for kind, namespace, name in KEY.findall(listed):
                plural = PLURALS.get(kind, f"{kind.lower()}s")
                holder = self.stored.get(plural, name, namespace)
                deleted = f"{kind}/{namespace}/{name} (deleted" in listed
                if holder is None and not deleted:
                    yield f"I52: {text} is told {said!r}, and there is no {kind} {namespace}/{name}"
                elif holder is not None and not self._holds(holder, plural):
                    yield f"I52: {text} is told {said!r}, and {kind} {namespace}/{name} holds nothing"

    def _running(self, wrapper: Json) -> Iterator[str]:
        """As many pods run as it says."""
        status = wrapper.get("status") or {}
        told = int(status.get("running") or 0)
        if status.get("state") != "Running" or is_leaving(wrapper) or not told:
            return
        below = [*self._marked(uid_of(wrapper)), *self.stored.owned.get(uid_of(wrapper), [])]
        running = {uid_of(pod) for pod in below if (pod.get("status") or {}).get("phase") == "Running"}
        if told > len(running):
            yield f"I52: AppWrapper {name_of(wrapper)} says that {told} pods run, and {len(running)} do"

    def _marked(self, uid: str) -> list[Json]:
        return [pod for pod in self.stored.all("pods") if annotation(pod, "shoal.dev/gang-uid") == uid]

    def _nodes_to_come(self, text: str, obj: Json, said: str) -> Iterator[str]:
        """Nodes are waited for only while somebody was asked for them."""
        if "waits for" not in said or "to come" not in said:
            return
        asked = [one for one in self.stored.all("provisioningrequests") if uid_of(obj) in self.stored.line_of(one)]
        if all(is_true(one, "Failed") for one in asked):
            yield f"I52: {text} is told {said!r}, and no node was asked for"

    def _holds(self, holder: Json, plural: str) -> bool:
        if plural == "pods":
            return is_live(holder)
        workload = self.gangs.of_job.get(uid_of(holder))
        if workload is not None and holds_quota(workload):
            return True
        status = holder.get("status") or {}
        if status.get("canrun") or status.get("phase") in (
            "Resuming",
            "Running",
            "Resetting",
            "Suspending",
            "Terminating",
        ):
            return True
        return any(is_live(pod) for pod in [*self._marked(uid_of(holder)), *self.stored.owned.get(uid_of(holder), [])])

    # --- jobs that a queue holds

    def _jobs(self) -> Iterator[str]:
        told = {
            str((one.get("involvedObject") or one.get("regarding") or {}).get("uid"))
            for one in self.stored.all("events")
        }
        for plural in PLURALS.values():
            for job in self.stored.all(plural):
                if not self._is_queued(job):
                    continue
                workload = self.gangs.of_job.get(uid_of(job))
                text = f"{job['kind']} {name_of(job)}"
                if workload is None:
                    if is_suspended(job) and uid_of(job) not in told:
                        yield f"I52: {text} is held by its queue, has no Workload, and no event says why"
                    continue
                if is_true(workload, "Finished") or is_leaving(workload):
                    continue
                if is_true(workload, "Admitted") or self.gangs.is_elsewhere(workload):
                    continue
                if not is_suspended(job):
                    yield f"I5: {text} is not suspended and its Workload is not admitted"

    def _is_queued(self, job: Json) -> bool:
        if (
            not label(job, QUEUE)
            or is_leaving(job)
            or has_ended(job)
            or job["metadata"].get("namespace") == "kube-system"
        ):
            return False
        if is_on_hold(job):
            return False  # it can have no pods
        spec = job.get("spec") or {}
        if spec.get("clusterSelector") or spec.get("managedBy") or label(job, PREBUILT) or annotation(job, PREBUILT):
            return False
        if job["kind"] == "AppWrapper" and "components" not in spec:
            return False
        owner = owner_of(job)
        return owner is None or owner.get("kind") not in PLURALS

    # --- queues

    def _queues(self) -> Iterator[str]:
        for queue in self.stored.all("clusterqueues"):
            active, problems = condition(queue, "Active"), self.gangs.problems(queue)
            if not active:
                continue
            if active.get("status") == "True" and problems:
                yield f"I52: ClusterQueue {name_of(queue)} says that it is active, and {', '.join(problems)}"
            if active.get("status") == "False" and not problems:
                yield f"I52: ClusterQueue {name_of(queue)} says {active.get('message')!r}, and nothing is wrong with it"

    # --- Ray

    def _ray(self) -> Iterator[str]:
        for cluster in self.stored.all("rayclusters"):
            status = cluster.get("status") or {}
            pods = [pod for pod in self.stored.owned.get(uid_of(cluster), []) if label(pod, "ray.io/node-type")]
            workers = [pod for pod in pods if label(pod, "ray.io/node-type") == "worker"]
            ready = [pod for pod in workers if is_true(pod, "Ready")]
            text = f"RayCluster {name_of(cluster)}"
            if is_leaving(cluster) or not status:
                continue
            if int(status.get("readyWorkerReplicas") or 0) > len(ready):
                yield f"I52: {text} says {status['readyWorkerReplicas']} workers are ready, and {len(ready)} are"
            binds = (
                any(is_bound(pod) for pod in self.stored.all("pods")) if self.rules.binds is None else self.rules.binds
            )
            if status.get("state") == "ready" and binds and pods and not any(is_bound(pod) for pod in pods):
                yield f"I52: {text} is called ready, and none of its {len(pods)} pods is on a node"
