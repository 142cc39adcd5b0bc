"""Where queued gangs go that only other clusters may run: told to the planning loop as part of their facts.

A gang that no cluster would start holds no quota: it waits with every cluster's reason. When a plan reserves quota for
several, each gets its clusters in the order of the plan; one for which nothing is left waits on. What was chosen is
stored with the reservation (`status.nominatedClusterNames`); until then it is remembered here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from shoal.api.gang import PREFIX
from shoal.api.kueue_names import bounded
from shoal.api.kueue_workload import Workload
from shoal.api.labels import CLUSTER_LOSS
from shoal.api.objects import annotation, key_of
from shoal.controllers.planning.cluster_line import ClusterLine, LineAnswer
from shoal.controllers.planning.loop import PlanningLoop
from shoal.controllers.planning.observations import NotStored
from shoal.controllers.planning.other_clusters import NominatedClusters, QueueClusters
from shoal.controllers.queues.caches import QueueCaches
from shoal.controllers.queues.checks import multikueue
from shoal.engine.kueue import order_time
from shoal.engine.model import Gang, Plan

replace = msgspec.structs.replace


class QueueDestinations:
    """`whole(workload)` is the gang with all its pods, as its Workload alone tells it; `workload_of(uid)` finds one."""

    def __init__(
        self,
        elsewhere: QueueClusters,
        planning: PlanningLoop,
        caches: QueueCaches,
        whole: Callable[[Workload], Gang],
        workload_of: Callable[[str], Workload | None],
    ) -> None:
        self._elsewhere, self._planning, self._caches = elsewhere, planning, caches
        self._whole, self._workload_of = whole, workload_of
        self._chosen: dict[str, tuple[str, ...]] = {}
        """Clusters of gangs whose reservation is decided and not stored yet, by UID."""
        self.line = ClusterLine(self._ask, elsewhere.room)
        """Gangs that no cluster would start."""

    def clusters(self, uid: str) -> tuple[str, ...]:
        """What is stored with its reservation."""
        return self._chosen.get(uid, ())

    def fact(self, workload: Workload, gang: Gang) -> Gang:
        """The gang as it is told, its clusters chosen."""
        uid = gang.uid
        if gang.state in ("reserved", "admitted", "stopping"):
            self._settle(uid)
            status = workload.status
            stored = (status.cluster_name,) if status.cluster_name else tuple(status.nominated_cluster_names or ())
            if stored:
                self._elsewhere.keep(self._whole(workload), stored)
            return gang
        if uid in self._chosen and self._planning.decisions.reservation(gang.key, uid) is not None:
            return gang
        self.forget(uid)
        check = self._check(workload)
        if gang.state != "waiting" or gang.problem or not check:
            return gang
        asked = msgspec.json.encode((gang.pod_sets, gang.node_selector))
        own = uid if self._elsewhere.is_special(uid) else ""
        shape = (check, gang.namespace, gang.queue, gang.priority, asked, own, *self._own(workload))
        answer = self.line.answer(shape)
        if answer is None:
            answer = _answer(self._nominated(self._annotations(workload), gang, check))
            if answer.starts:
                return gang
        lane = (gang.namespace, gang.queue)
        self.line.add(shape, gang, (-gang.priority, order_time(gang)), answer, lane)
        return replace(gang, nowhere=answer.why)

    def _ask(self, gang: Gang, among: frozenset[str] | None) -> LineAnswer | None:
        workload = self._workload_of(gang.uid)
        check = self._check(workload) if workload is not None else ""
        if workload is None or not check:
            return None
        return _answer(self._nominated(self._annotations(workload), gang, check, among))

    def draft(self, workload: Workload, gang: Gang, annotations: Mapping[str, str] | None) -> Gang:
        """A gang that is not submitted, as it would be told. Changes nothing."""
        check = self._check(workload)
        if gang.state != "waiting" or gang.problem or not check:
            return gang
        found = self._nominated(annotations, gang, check)
        return gang if found.clusters else replace(gang, nowhere=said(found))

    def planned(self, plan: Plan) -> bool:
        """Give each that got quota its clusters, in the order of the plan. True: look again at those that wait."""
        for one in plan.reservations:
            workload = self._workload_of(one.uid)
            check = self._check(workload) if workload is not None else ""
            if workload is None or not check or one.uid in self._chosen:
                continue
            whole = self._whole(workload)
            found = self._nominated(self._annotations(workload), whole, check)
            if found.clusters:
                self._chosen[one.uid] = found.clusters
                self._elsewhere.keep(whole, found.clusters)
            else:
                self._planning.observe([NotStored(gang=one.gang, uid=one.uid)])
        return self.line.planned(one.uid for one in plan.reservations if one.uid in self._chosen)

    def forget(self, uid: str) -> None:
        self._settle(uid)
        self._elsewhere.forget(uid)

    def _settle(self, uid: str) -> None:
        self._chosen.pop(uid, None)
        self.line.discard(uid)

    def _check(self, workload: Workload) -> str:
        return multikueue.dispatching_check(self._caches.cluster_queue_of(workload), self._caches)

    def _nominated(
        self, annotations: Mapping[str, str] | None, gang: Gang, check: str, among: frozenset[str] | None = None
    ) -> NominatedClusters:
        return self._elsewhere.nominate(gang, check, annotations, among)

    def _annotations(self, workload: Workload) -> Mapping[str, str] | None:
        """Its job's, and of its queue what becomes of it where the cluster is lost."""
        job = self._caches.job_of(key_of(workload))
        own = (job[1]["metadata"].get("annotations") if job is not None else None) or {}
        queue = self._caches.cluster_queue_of(workload)
        said = annotation(queue, CLUSTER_LOSS) if queue is not None else ""
        return {CLUSTER_LOSS: said, **own} if said else own

    def _own(self, workload: Workload) -> list[tuple[str, str]]:
        """What its job says itself of clusters."""
        found = self._annotations(workload) or {}
        return sorted((name, value) for name, value in found.items() if name.startswith(PREFIX))


def _answer(found: NominatedClusters) -> LineAnswer:
    starts = bool(found.clusters)
    return LineAnswer(starts, why="" if starts else said(found))


def said(found: NominatedClusters) -> str:
    """Every cluster with its reason."""
    parts = [f"{name}: {why}" if name else why for name, why in found.reasons.items()]
    return bounded(f"no cluster takes it now: {'; '.join(parts)}")
