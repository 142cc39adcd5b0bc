"""Jobs: pods that run to an end, counted exactly once each.

Every pod carries a finalizer until its end stands in the Job's status, so none is lost or counted twice, whatever is
deleted or restarted in between: first the pod's UID is stored as uncounted, then its finalizer is removed, then it
becomes a number. The rules are in `job_rules.py`; here are the writes and their order.
"""

from __future__ import annotations

import asyncio

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.labels import BATCH_COMPLETION_INDEX
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.kube.cache import Change
from shoal.kube.errors import Conflict, NotFound
from shoal.kube.runtime import Controller
from shoal.local.builtin import job_rules as rules
from shoal.local.builtin import pods
from shoal.local.builtin.caches import remove_finalizer
from shoal.local.builtin.context import (
    WorkloadContext,
    controller_of,
    in_group,
    key_of,
    number,
    watch_orphans,
    watch_own,
    watch_owned,
)
from shoal.local.builtin.job_rules import JobVerdict, Tally

CONTROLLER = "kubernetes.io/job-controller"


class JobController:
    def __init__(self, context: WorkloadContext) -> None:
        self._context = context
        self._jobs = context.cache(kinds.JOB)
        self.controller: Controller[Key] = Controller("jobs", self.reconcile, workers=8, clock=context.clock)
        self.strays: Controller[Key] = Controller("job-strays", self._let_go, workers=4, clock=context.clock)
        """Pods with our finalizer that no Job is there to count."""

    async def run(self) -> None:
        watch_own(self.controller, self._jobs)
        watch_owned(self.controller, self._context.pods, kinds.JOB)
        watch_orphans(self.controller, self._context.pods, self._jobs, pods.matches)
        self._jobs.subscribe(self._job_changed)
        self._context.pods.subscribe(self._pod_changed)
        await self._context.caches.ready.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.controller.run())
            tasks.create_task(self.strays.run())

    async def reconcile(self, key: Key) -> float | None:
        job = self._jobs.get(key)
        if job is None or job["spec"].get("managedBy", CONTROLLER) != CONTROLLER:
            return None
        if rules.finished(job) is not None:
            await self._untrack(self._context.owned_pods(job))
            return await self._after_life(job)
        if pods.is_deleting(job):
            await self._untrack([pod for pod in self._context.owned_pods(job) if not pods.is_active(pod)])
            return None
        return await self._advance(key, job)

    async def _advance(self, key: Key, job: Json) -> float | None:
        """Count, judge, then make or remove pods. Each stored step brings the next, so a crash loses nothing."""
        await pods.claim(self._context, kinds.JOB, job)
        job = await self._count(key, job)
        mine = self._context.owned_pods(job)
        tally = self._tally(job, mine)
        decision = rules.verdict(job, mine, tally, self._context.clock.now())
        if decision is not None:
            return await self._finish(key, job, mine, decision)
        if job["spec"].get("suspend"):
            await self._remove(job, [pod for pod in mine if pods.is_active(pod)])
            await self._publish(key)
            return None
        if not (job.get("status") or {}).get("startTime"):
            job = await self._publish(key)  # the clock starts before the first pod does
        wait = await self._manage(job, mine, tally)
        await self._publish(key)
        deadline = rules.seconds_to_deadline(job, self._context.clock.now())
        waits = [w for w in (wait, deadline) if w is not None]
        return min(waits) if waits else None

    # --- counting

    async def _count(self, key: Key, job: Json) -> Json:
        """Bring every ended pod into the status: noted, then released, then a number."""
        for _ in range(3):
            mine = self._context.owned_pods(job)
            change = self._counted(job, mine)
            if change:
                job = await self._context.patch(kinds.JOB, job, {"status": change}, status=True)
            noted = _uncounted(job)
            ready = [pod for pod in mine if rules.is_tracked(pod) and (
                pod["metadata"]["uid"] in noted[0] + noted[1] or rules.outcome(job, pod) == "ignored")]  # fmt: skip
            if not ready and not change:
                break
            await self._untrack(ready)
        return self._jobs.get(key) or job

    def _counted(self, job: Json, mine: list[Json]) -> Json:
        """The status change that notes newly ended pods and turns released ones into numbers; empty if none."""
        status = job.get("status") or {}
        succeeded, failed = _uncounted(job)
        tracked = {pod["metadata"]["uid"] for pod in mine if rules.is_tracked(pod)}
        released = ([uid for uid in succeeded if uid not in tracked], [uid for uid in failed if uid not in tracked])
        succeeded = [uid for uid in succeeded if uid in tracked]
        failed = [uid for uid in failed if uid in tracked]
        completed = rules.parse_indexes(status.get("completedIndexes"))
        fresh = False
        for pod in mine:
            uid = pod["metadata"]["uid"]
            if not rules.is_tracked(pod) or uid in succeeded or uid in failed:
                continue
            found = rules.outcome(job, pod)
            if found == "succeeded":
                index = rules.index_of(pod)
                if index is not None and index < number(job["spec"].get("completions")):
                    completed.add(index)  # of two pods of one index the second proves nothing new
                succeeded.append(uid)
                fresh = True
            elif found == "failed":
                failed.append(uid)
                fresh = True
        if not fresh and not any(released):
            return {}
        change: Json = {"uncountedTerminatedPods": _lists(succeeded, failed)}
        if released[0] and not rules.is_indexed(job):
            change["succeeded"] = number(status.get("succeeded")) + len(released[0])
        if rules.is_indexed(job):
            change["succeeded"] = len(completed) or None
            change["completedIndexes"] = rules.print_indexes(completed) or None
        if released[1]:
            change["failed"] = number(status.get("failed")) + len(released[1])
        return change

    def _tally(self, job: Json, mine: list[Json]) -> Tally:
        status = job.get("status") or {}
        succeeded, failed = _uncounted(job)
        completed = rules.parse_indexes(status.get("completedIndexes"))
        given_up = rules.given_up_indexes(job, mine, rules.parse_indexes(status.get("failedIndexes"))) - completed
        total = len(completed) if rules.is_indexed(job) else number(status.get("succeeded")) + len(succeeded)
        return Tally(total, number(status.get("failed")) + len(failed), completed, given_up)

    async def _untrack(self, ended: list[Json]) -> None:
        await asyncio.gather(*(self._untrack_one(pod) for pod in ended if rules.is_tracked(pod)))

    async def _untrack_one(self, pod: Json, *, overtaken: bool = True) -> None:
        """`overtaken`: also where the pod has changed since it was looked at."""
        kept = [name for name in pod["metadata"]["finalizers"] if name != rules.TRACKING]
        try:
            patched = await self._context.client.patch(
                kinds.POD, pod["metadata"]["name"], pod["metadata"]["namespace"],
                {"metadata": {"finalizers": kept or None, "uid": pod["metadata"]["uid"],
                              "resourceVersion": pod["metadata"]["resourceVersion"]}},
            )  # fmt: skip
        except Conflict:
            if not overtaken:
                return  # the change brings another look
            await remove_finalizer(self._context.client, kinds.POD, key_of(pod), pod["metadata"]["uid"], rules.TRACKING)
            return
        except NotFound:
            return
        if kept or not pods.is_deleting(pod):
            self._context.pods.note_write(patched)

    # --- pods without a Job

    def _job_changed(self, change: Change) -> None:
        if change.new is None and change.old is not None:
            for pod in self._context.owned_pods(change.old):
                self.strays.enqueue(key_of(pod))

    def _pod_changed(self, change: Change) -> None:
        if change.new is not None and self._is_stray(change.new):
            self.strays.enqueue(change.key)

    def _is_stray(self, pod: Json) -> bool:
        """Orphaned, or of a Job that is gone, be there another of its name."""
        if not rules.is_tracked(pod):
            return False
        owner = controller_of(pod)
        if owner is None:
            return True
        if owner.get("kind") != kinds.JOB.kind or not in_group(owner, kinds.JOB):
            return False  # its finalizer is its own affair
        job = self._jobs.get(Key(pod["metadata"]["namespace"], owner["name"]))
        return job is None or job["metadata"]["uid"] != owner.get("uid")

    async def _let_go(self, key: Key) -> None:
        """A Job that adopts it later gives it a finalizer again."""
        pod = self._context.pods.get(key)
        if pod is not None and self._is_stray(pod):
            await self._untrack_one(pod, overtaken=False)

    # --- pods

    async def _manage(self, job: Json, mine: list[Json], tally: Tally) -> float | None:
        active = [pod for pod in mine if pods.is_active(pod)]
        doomed = self._surplus(job, active, tally)
        wanted = rules.wanted_active(job, tally, len(active) - len(doomed))
        active = [pod for pod in active if pod not in doomed]
        if len(active) > wanted:
            active.sort(key=pods.least_wanted)
            doomed += active[: len(active) - wanted]
        if doomed:
            await self._remove(job, doomed)
        held = active
        if job["spec"].get("podReplacementPolicy") == "Failed":
            held = held + [pod for pod in mine if pods.is_deleting(pod) and rules.outcome(job, pod) == "running"]
        missing = wanted - len(held)
        if missing <= 0 or doomed:
            return None
        wait = rules.backoff(job, mine, self._context.clock.now())
        if wait > 0:
            return wait
        await self._context.create_pods(job, self._bodies(job, mine, held, tally, missing))
        return None

    async def _remove(self, job: Json, unwanted: list[Json]) -> None:
        """Pods that are not wanted now have not failed: they are let go first, and so never counted."""
        await self._untrack(unwanted)
        await self._context.delete_pods(job, unwanted)

    def _surplus(self, job: Json, active: list[Json], tally: Tally) -> list[Json]:
        """Pods of an index that is done, given up, out of range, or already has a pod."""
        if not rules.is_indexed(job):
            return []
        seen: set[int] = set()
        doomed = []
        for pod in sorted(active, key=lambda one: one["metadata"].get("creationTimestamp") or ""):
            index = rules.index_of(pod)
            if (
                index is None
                or index >= number(job["spec"].get("completions"))
                or index in seen
                or index in tally.completed
                or index in tally.given_up
            ):
                doomed.append(pod)
            else:
                seen.add(index)
        return doomed

    def _bodies(self, job: Json, mine: list[Json], held: list[Json], tally: Tally, missing: int) -> list[Json]:
        missing = min(missing, pods.MOST_AT_ONCE)
        if not rules.is_indexed(job):
            return [self._body(job, None, 0) for _ in range(missing)]
        taken = {rules.index_of(pod) for pod in held} | tally.completed | tally.given_up
        free = (index for index in range(number(job["spec"].get("completions"))) if index not in taken)
        return [self._body(job, index, rules.failures_of_index(mine, index))
                for index, _ in zip(free, range(missing), strict=False)]  # fmt: skip

    def _body(self, job: Json, index: int | None, failures: int) -> Json:
        name = job["metadata"]["name"]
        prefix = f"{name}-" if index is None else f"{name}-{index}-"
        body = pods.from_template(kinds.JOB, job, job["spec"].get("template") or {}, self._context.fresh(prefix))
        metadata = body["metadata"]
        metadata["finalizers"] = [*metadata.get("finalizers", ()), rules.TRACKING]
        if index is None:
            return body
        metadata["labels"][BATCH_COMPLETION_INDEX] = str(index)
        annotations = metadata.setdefault("annotations", {})
        annotations[BATCH_COMPLETION_INDEX] = str(index)
        if job["spec"].get("backoffLimitPerIndex") is not None:
            annotations[rules.FAILURES] = str(failures)
        body["spec"].setdefault("hostname", f"{name}-{index}"[:63])
        place = f"metadata.labels['{BATCH_COMPLETION_INDEX}']"
        for group in ("containers", "initContainers"):
            for container in body["spec"].get(group) or ():
                known = container.setdefault("env", [])
                if all(one.get("name") != "JOB_COMPLETION_INDEX" for one in known):
                    known.append({"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"fieldPath": place}}})
        return body

    # --- status

    async def _finish(self, key: Key, job: Json, mine: list[Json], decision: JobVerdict) -> float | None:
        """Announce the end, remove what still runs, and close the Job when all its pods are counted."""
        await self._context.delete_pods(job, [pod for pod in mine if pods.is_active(pod)])
        job = await self._count(key, job)
        left = [pod for pod in self._context.owned_pods(job) if rules.outcome(job, pod) == "running"]
        if left or any(_uncounted(job)):
            await self._publish(key, decision)
            return None
        await self._publish(key, decision, final=True)
        if decision.complete:
            self._context.events.event(job, "Normal", "Completed", "Job completed")
        else:
            self._context.events.event(job, "Warning", decision.reason, decision.message)
        return 0.0 if job["spec"].get("ttlSecondsAfterFinished") is not None else None

    async def _publish(self, key: Key, decision: JobVerdict | None = None, *, final: bool = False) -> Json:
        job = self._jobs.get(key)
        if job is None:
            raise NotFound(404, "NotFound", f"job {key} is gone")
        mine = self._context.owned_pods(job)
        active = [pod for pod in mine if pods.is_active(pod)]
        terminating = sum(pods.is_deleting(pod) and not pods.is_terminal(pod) for pod in mine)
        status = job.get("status") or {}
        tally = self._tally(job, mine)
        change: Json = {
            "active": len(active) or None, "ready": sum(map(pods.is_ready, active)), "terminating": terminating,
            "failedIndexes": rules.print_indexes(tally.given_up) or None if job["spec"].get(
                "backoffLimitPerIndex") is not None else None,
        }  # fmt: skip
        conditions = [dict(c) for c in status.get("conditions") or ()]
        suspended = bool(job["spec"].get("suspend"))
        if decision is None:
            self._note_suspension(job, conditions, suspended)
            if suspended:
                change["startTime"] = None
            elif not status.get("startTime") or _resumes(status):
                change["startTime"] = self._context.now()
        else:
            self._note_end(conditions, decision, final)
            if final and decision.complete:
                change["completionTime"] = self._context.now()
            if final:
                change["uncountedTerminatedPods"] = _lists([], [])
        if conditions or status.get("conditions"):
            change["conditions"] = conditions
        return await self._context.patch(kinds.JOB, job, {"status": change}, status=True)

    def _note_suspension(self, job: Json, conditions: list[Json], suspended: bool) -> None:
        held = next((c for c in conditions if c["type"] == "Suspended"), None)
        if held is None and not suspended:
            return
        wanted = ("True", "JobSuspended", "Job suspended") if suspended else ("False", "JobResumed", "Job resumed")
        if held is not None and held["status"] == wanted[0]:
            return
        self._set(conditions, "Suspended", *wanted)
        self._context.events.event(job, "Normal", "Suspended" if suspended else "Resumed", wanted[2])

    def _note_end(self, conditions: list[Json], decision: JobVerdict, final: bool) -> None:
        first, last = ("SuccessCriteriaMet", "Complete") if decision.complete else ("FailureTarget", "Failed")
        for name in (first, last) if final else (first,):
            if not any(c["type"] == name and c["status"] == "True" for c in conditions):
                self._set(conditions, name, "True", decision.reason, decision.message)

    def _set(self, conditions: list[Json], kind: str, status: str, reason: str, message: str) -> None:
        now = self._context.now()
        conditions[:] = [c for c in conditions if c["type"] != kind]
        conditions.append({"type": kind, "status": status, "reason": reason, "message": message,
                           "lastProbeTime": now, "lastTransitionTime": now})  # fmt: skip

    async def _after_life(self, job: Json) -> float | None:
        """Delete a finished Job when its time to live is over."""
        ttl = job["spec"].get("ttlSecondsAfterFinished")
        ended = rules.finished(job)
        if ttl is None or ended is None or pods.is_deleting(job):
            return None
        passed = (self._context.clock.now() - parse_time(ended["lastTransitionTime"])) / 1_000_000
        if passed < ttl:
            return float(ttl) - passed
        await self._context.delete(kinds.JOB, job)
        return None


def _uncounted(job: Json) -> tuple[list[str], list[str]]:
    found = (job.get("status") or {}).get("uncountedTerminatedPods") or {}
    return list(found.get("succeeded") or ()), list(found.get("failed") or ())


def _lists(succeeded: list[str], failed: list[str]) -> Json:
    return {"succeeded": succeeded or None, "failed": failed or None}


def _resumes(status: Json) -> bool:
    return any(c["type"] == "Suspended" and c["status"] == "True" for c in status.get("conditions") or ())
