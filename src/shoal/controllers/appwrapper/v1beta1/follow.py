"""A gang that runs: completion, limits, counts, in that order of weight.

Called by the reconciler whenever a pod or a wrapped object of the gang changed, or a limit falls due. What ends a run
is stored first; the objects go in the next step.
"""

from __future__ import annotations

import msgspec

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapper, AppWrapperStatus, wrapped_items
from shoal.api.codec import opened
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.controllers.appwrapper import monitor
from shoal.controllers.appwrapper.context import WrapperContext
from shoal.controllers.appwrapper.dispatch import is_ours
from shoal.controllers.appwrapper.facts import supply_of
from shoal.controllers.appwrapper.status import admission as admissions
from shoal.controllers.appwrapper.v1beta1 import status as statuses
from shoal.controllers.appwrapper.wrapped import gang_key
from shoal.controllers.demand.app_wrapper import gang_size
from shoal.controllers.planning.naming import discreet, in_plain_words
from shoal.controllers.planning.observations import EvictionStored
from shoal.controllers.planning.other_clusters import SentCopy
from shoal.controllers.planning.preemptors import stored_preemptor
from shoal.engine.model import Preempt

COUNTS_PAUSE = 2.0
"""Least seconds between two writes of one AppWrapper's pod counts."""
PODS_TO_COME = 5.0
"""For so many seconds after its start an item that says it is done is not believed while pods of the gang are not there
yet: a Deployment says `Progressing` before it has made one. As MCAD, which looks every five seconds."""
COMING_UP_PAUSE = 30.0
"""The same while nothing is to be told but that its pods are on their way: the next count says more."""


class Follow:
    def __init__(self, context: WrapperContext) -> None:
        self.context = context
        self._counted_at: dict[str, float] = {}
        self._enough_until: dict[str, int] = {}

    def forget(self, uid: str) -> None:
        self._counted_at.pop(uid, None)
        self._enough_until.pop(uid, None)

    async def run(self, kind: Kind, wrapper: AppWrapper, elsewhere: SentCopy | None = None) -> float | None:
        """One look at a running gang; returns when to look again if nothing happens. `elsewhere`: what it wraps is in
        another cluster."""
        context, uid = self.context, wrapper.metadata.uid
        key, now = gang_key(wrapper), context.clock.now()
        preempt = context.decisions.preempt(key, uid)
        if preempt is not None:
            return await self.preempt(kind, wrapper, preempt)
        wrapper = await self.reseat(kind, wrapper)
        counts = monitor.count(context.planning.pods(uid) if elsewhere is None else elsewhere.pods)
        items = wrapped_items(wrapper)
        watched = await self._watched(wrapper) if elsewhere is None else list(elsewhere.objects)
        if len(watched) != len(items):  # its spec was edited since it was sent
            watched = [None] * len(items)
        completed_by = monitor.completion(items, watched)
        if completed_by is not None:
            return await self._complete(kind, wrapper, counts, completed_by)
        verdicts = self._judge(wrapper, counts, now)
        for verdict in verdicts:
            if verdict.action != "none":
                return await self._end(kind, wrapper, verdict)
        pause = await self._publish(kind, wrapper, counts)
        waits = [wait for wait in (pause, *(verdict.again for verdict in verdicts)) if wait is not None]
        return min(waits) if waits else None

    def _judge(self, wrapper: AppWrapper, counts: monitor.WrappedPodCounts, now: int) -> list[monitor.PodsVerdict]:
        uid, least = wrapper.metadata.uid, wrapper.spec.scheduling_spec.min_available
        if least > 0 and counts.running + counts.succeeded >= least:
            self._enough_until[uid] = now
        verdicts = [
            monitor.judge_duration(wrapper, now),
            monitor.judge_minimum(wrapper, counts, self._enough_until.get(uid, 0), now),
        ]
        if supply_of(wrapper, self.context.settings) == "fit":
            limit = self.context.settings.bind_seconds
            verdicts.append(monitor.judge_binding(wrapper, counts, limit, now, self._admitted_pods(wrapper)))
        return verdicts

    def _admitted_pods(self, wrapper: AppWrapper) -> int:
        """As many as were declared or will be made at the start, whichever is more."""
        gang = self.context.planning.engine.gang(gang_key(wrapper))
        declared = sum(one.count for one in gang.pod_sets) if gang is not None else 0
        return max(declared, gang_size(wrapper))

    async def _watched(self, wrapper: AppWrapper) -> list[Json | None]:
        """The live objects of items that name a completion status, as far as they are ours; None for all others."""
        found: list[Json | None] = []
        for item in wrapped_items(wrapper):
            template = opened(item.generic_template) if item.completion_status.strip() else {}
            name = str((template.get("metadata") or {}).get("name") or "")
            kind = None
            if name:
                kind = await self.context.objects.kinds.kind_of(str(template["apiVersion"]), str(template["kind"]))
            live = self._live(wrapper, kind, name) if kind is not None else None
            found.append({**live, "kind": kind.kind} if live is not None and kind is not None else None)
        return found

    def _live(self, wrapper: AppWrapper, kind: Kind, name: str) -> Json | None:
        shared, key = self.context.shared, Key(wrapper.metadata.namespace, name)
        if kind == kinds.POD:
            pod = shared.pods.get(key)
            return {"status": {"phase": pod.status.phase}} if pod is not None and is_ours(pod, wrapper) else None
        shared.watch(kind)
        obj = shared.between[kind].get(key) if kind in shared.between else None
        return {"status": opened(obj.status)} if obj is not None and is_ours(obj, wrapper) else None

    async def _complete(
        self, kind: Kind, wrapper: AppWrapper, counts: monitor.WrappedPodCounts, completed_by: str
    ) -> float | None:
        context, status = self.context, monitor.with_counts(wrapper.status, counts)
        if counts.live == 0:
            if (left := self._pods_to_come(wrapper, counts)) > 0:
                return left
            ended = statuses.completed(status, context.clock.now, message=f"completed by {completed_by}")
            await context.store.status(kind, wrapper, ended)
            context.tell_people(wrapper, "Normal", "Completed", f"All watched items are done ({completed_by}).")
        elif status.state != "RunningHoldCompletion":
            await context.store.status(kind, wrapper, statuses.held_for_completion(status, context.clock.now))
        return None

    def _pods_to_come(self, wrapper: AppWrapper, counts: monitor.WrappedPodCounts) -> float:
        """Seconds for which pods that the cache has not seen yet may still come."""
        if counts.succeeded + counts.failed >= gang_size(wrapper):
            return 0.0
        due = monitor.last_dispatch(wrapper.status) + int(PODS_TO_COME * monitor.SECOND)
        return (due - self.context.clock.now()) / monitor.SECOND

    async def _end(self, kind: Kind, wrapper: AppWrapper, verdict: monitor.PodsVerdict) -> float | None:
        """A limit was passed: the decision is stored first, the objects go next."""
        context = self.context
        stored = await context.store.status(kind, wrapper, self._ended(wrapper, verdict))
        reason = verdict.reason or "DispatchDeadlineExceeded"
        context.metrics.requeued(reason)
        context.tell_people(wrapper, "Warning", reason, stored.status.message)
        return 0.0

    def _ended(self, wrapper: AppWrapper, verdict: monitor.PodsVerdict) -> AppWrapperStatus:
        clock, scheduling = self.context.clock, wrapper.spec.scheduling_spec
        if verdict.action == "deadline":
            return statuses.deadline_exceeded(wrapper.status, clock.now, limit=scheduling.dispatch_duration.limit)
        if verdict.action == "give up":
            return statuses.given_up(wrapper.status, message=verdict.message)
        sender = f"before PreemptQueueJobs - CanRun: false -- {verdict.reason}"
        status = statuses.preempt_candidate(
            wrapper.status, clock.now, reason=verdict.reason, message=verdict.message, sender=sender
        )
        if verdict.reason != "MinPodsNotRunning":
            return statuses.set_back(status, self.context.resume_at(wrapper))
        requeued = wrapper.status.number_of_requeueings + 1
        return msgspec.structs.replace(
            status,
            number_of_requeueings=requeued,
            requeueing_time_in_seconds=monitor.next_wait(scheduling.requeuing, requeued),
        )

    async def preempt(self, kind: Kind, wrapper: AppWrapper, decision: Preempt) -> float | None:
        """Stored, with the name of the gang it makes way for, which may then be admitted."""
        context = self.context
        message = decision.message or f"preempted by {decision.preemptor} ({decision.cause})"
        message = discreet(in_plain_words(message, context.planning.known_as), wrapper.metadata.namespace)
        status = statuses.preempt_candidate(
            wrapper.status,
            context.clock.now,
            reason="Preempted",
            message=message,
            sender="before preemptAWJobs - CanRun: false",
        )
        preemptor = stored_preemptor(decision, wrapper.metadata.namespace)
        await context.store.status(kind, wrapper, statuses.making_room_for(status, preemptor))
        context.note(EvictionStored, wrapper)
        context.metrics.preempted(decision.cause)
        context.tell_people(wrapper, "Warning", "Preempted", message)
        return 0.0

    async def reseat(self, kind: Kind, wrapper: AppWrapper) -> AppWrapper:
        """Its quota seats moved while it runs: stored, because where it sits depends on history."""
        moved = self.context.decisions.reseat(gang_key(wrapper), wrapper.metadata.uid)
        if moved is None:
            return wrapper
        record = msgspec.structs.replace(admissions.read(wrapper.status.admission), seats=moved.seats)
        return await self.context.store.status(kind, wrapper, statuses.reseated(wrapper.status, record))

    async def _publish(self, kind: Kind, wrapper: AppWrapper, counts: monitor.WrappedPodCounts) -> float | None:
        """Counts change often while pods come up: one write in a while, and the last state always told."""
        status = monitor.with_counts(wrapper.status, counts)
        if status == wrapper.status:
            return None
        context, uid = self.context, wrapper.metadata.uid
        moment = context.clock.monotonic()
        since = self._counted_at.setdefault(uid, moment)
        pause = COMING_UP_PAUSE if counts.only_pending else COUNTS_PAUSE
        if moment - since < pause:
            return pause - (moment - since)
        self._counted_at[uid] = moment
        await context.store.status(kind, wrapper, status)
        return None
