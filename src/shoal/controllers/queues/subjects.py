"""Queued jobs as the desk of questions sees them: how one fares, and whether the engine can say why it waits.

Reads caches and decisions in flight. A job is asked about by its own name, or by that of its Workload.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.api import kinds, kueue_told
from shoal.api.kind import Key
from shoal.api.kueue_names import GATED_BY
from shoal.api.meta import Json, controller_of
from shoal.api.objects import annotation
from shoal.api.times import parse_time
from shoal.controllers.planning.decisions import Decisions
from shoal.controllers.planning.questions.subject import QuestionSubject
from shoal.controllers.queues.caches import QueueCaches, workload_key
from shoal.controllers.queues.facts import gang_key
from shoal.controllers.queues.jobs import BY_NAME, GangJob
from shoal.controllers.queues.jobs.pod_group import is_composed
from shoal.controllers.queues.stored import StoredWorkload, condition
from shoal.controllers.queues.workloads import NoSuchClass, new_workload
from shoal.engine import Engine
from shoal.engine.line import Bids
from shoal.errors import BadInput

NOT_SEEN = "the controller has not made a Workload of it yet"
STARTING = "it was given quota and is being started"


class Subjects:
    def __init__(
        self,
        caches: QueueCaches,
        decisions: Decisions,
        copied_labels: tuple[str, ...],
        refusal_of: Callable[[str], str],
    ) -> None:
        """`refusal_of(uid)`: why the API server took no Workload for this job, as the reconciler heard it last."""
        self._refusal_of = refusal_of
        self._caches = caches
        self._decisions = decisions
        self._copied_labels = copied_labels

    def find(self, group: str, kind: str, key: Key, engine: Engine, now: int) -> QuestionSubject | None:
        """None for what no queue holds."""
        if kind == kinds.WORKLOAD.kind and group in ("", kinds.WORKLOAD.group):
            workload = self._caches.workloads.get(key)
            return self._of(workload, engine, now) if workload is not None else None
        for (job_group, job_kind), found in BY_NAME.items():
            if kind == job_kind and group in ("", job_group):
                job = self._caches.jobs[found.kind].get(key)
                if job is not None:
                    workload = self._caches.workloads.get(workload_key(found, job))
                    return self._of(workload, engine, now) if workload is not None else self._without(found, job)
        return None

    def _without(self, kind: GangJob, job: Json) -> QuestionSubject:
        """A job that has no Workload: why none could be made."""
        uid = job["metadata"]["uid"]
        if kind.end(job) is not None:
            return QuestionSubject(uid=uid, state="Finished", reason="Finished")
        found = self._caches.job_of(workload_key(kind, job))
        if found is not None and is_composed(found[0]) and (missing := found[0].lacks(found[1], self._copied_labels)):
            return QuestionSubject(uid=uid, state="Queued", reason="Misconfigured", message=missing)
        try:
            new_workload(self._caches.informed(kind, job), job, self._caches, self._copied_labels)
        except (NoSuchClass, BadInput) as error:
            return QuestionSubject(uid=uid, state="Queued", reason="Misconfigured", message=str(error))
        if refusal := self._refusal_of(uid):
            return QuestionSubject(uid=uid, state="Queued", reason="Misconfigured", message=refusal)
        return QuestionSubject(uid=uid, state="Queued", reason="NotSeen", message=NOT_SEEN)

    def _of(self, workload: StoredWorkload, engine: Engine, now: int) -> QuestionSubject:
        uid = workload.metadata.uid
        local, cluster_queue = workload.spec.queue_name, self._caches.cluster_queue_name(workload)
        said = kueue_told.told(workload.raw)  # as the commands read it

        def made(
            state: str, reason: str, message: str = "", gang: str = "", *, settled: bool = False
        ) -> QuestionSubject:
            hold = self._decisions.hold(gang, uid) or self._decisions.no_room(gang, uid) if gang else None
            return QuestionSubject(
                uid=uid, state=state, reason=reason, message=message, gang=gang, hold=hold, settled=settled,
                local_queue=local, cluster_queue=cluster_queue,
            )  # fmt: skip

        if said is None:
            if (end := condition(workload, "Finished")) is not None and end.status == "True":
                return made("Finished", "Finished", end.message)
            return made("Running", "Running", wishes(engine.bids(uid)))
        state, message = said
        key = gang_key(workload)
        known = engine.gang(key)
        match state:
            case "Inactive":
                return made(state, "Held", message)
            case "Stopping":
                return made(state, "Stopping", message)
            case "QuotaReserved" if any(one.state != "Ready" for one in workload.status.admission_checks or ()):
                return made(state, "AdmissionChecks", message)
        if known is None or known.uid != uid:
            return made(state, "NotSeen", "the controller has not looked at it yet")
        if known.state in ("admitted", "reserved") and known.state != _stored(state):
            return made(state, "Starting", STARTING)
        if known.state == "held":
            owner = controller_of(workload.metadata)
            missing = self._refusal_of(owner.uid) if owner is not None else ""
            if missing:
                return made(state, "Misconfigured", missing, key, settled=True)
            return made(state, "Held", "its job is on hold", key, settled=True)
        if state == "Queued":
            gates, requeue = annotation(workload, GATED_BY), workload.status.requeue_state
            at = requeue.requeue_at if requeue is not None else None
            if gates:
                return made(state, "Gated", f"Admission is gated by: {gates}", key, settled=True)
            if stopped := self._caches.stopped_queue(workload):
                return made(state, "QueueStopped", f"{stopped[0]} {stopped[1]} is stopped", key, settled=True)
            if at and parse_time(at) > now:
                return made(state, "Backoff", message, key, settled=True)
            return made(state, "Quota", message, key)
        return made(state, "Room", message, key)


def wishes(bids: Bids | None) -> str:
    """What an elastic job that runs has and wants beyond its admission, and what that lacks."""
    if bids is None:
        return ""
    has = f"it has {bids.granted} pod(s) beyond its admission, which leave first when others need their quota or room"
    if not bids.waiting:
        return has if bids.granted else ""
    lacks = "; ".join(one.message for one in bids.shortfalls) or "not looked at yet"
    wants = f"it would like {bids.waiting} more pod(s): {lacks}"
    return f"{has}; {wants}" if bids.granted else wants


def _stored(state: str) -> str:
    return "reserved" if state == "QuotaReserved" else "waiting"
