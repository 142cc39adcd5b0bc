"""The AppWrapper controller: watch → facts → plan → writes → watch.

`Planner` side: every change becomes a fact, and one plan follows for all changes that came together. `reconcile`
side: one AppWrapper is brought to where its stored status says it should be. What is stored decides what is created,
never the other way round: an admission is written before the first object exists, and every step may be repeated
after a crash.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

import msgspec

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapper, AppWrapperStatus, dialect, wrapped_items
from shoal.api.codec import merge_patch, opened
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.controllers.appwrapper import monitor
from shoal.controllers.appwrapper import status as statuses
from shoal.controllers.appwrapper.dispatch import Refused, create_all, is_ours, remove_all
from shoal.controllers.appwrapper.facts import admission_record, gang_fact, subtree_fact
from shoal.controllers.appwrapper.settings import AppWrapperSettings
from shoal.controllers.appwrapper.world import World
from shoal.controllers.appwrapper.wrapped import gang_key
from shoal.engine import Engine, Settings
from shoal.engine.facts import node_fact, pod_fact
from shoal.engine.model import Admit, Gang, Hold, Preempt
from shoal.errors import BadInput
from shoal.kube.cache import Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.discovery import Discovery
from shoal.kube.errors import Conflict, NotFound
from shoal.kube.events import Recorder
from shoal.kube.runtime import Controller

log = logging.getLogger(__name__)

Address = tuple[Kind, Key]

COUNTS_PAUSE = 2.0
"""Least seconds between two writes of one AppWrapper's pod counts."""

FIRST_LOOK = 0.02
"""Seconds after which a new AppWrapper gets its first status even if no plan was made yet."""


class AppWrapperController:
    """One engine, one work queue. `run` until cancelled."""

    def __init__(self, client: Client, settings: AppWrapperSettings, clock: Clock | None = None) -> None:
        self.client = client
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.world = World(client, self.clock)
        self.engine = Engine(_engine_settings(settings))
        self.kinds = Discovery(client)
        self.recorder = Recorder(client, "shoal", clock=self.clock)
        self.controller: Controller[Address] = Controller("appwrapper", self.reconcile, workers=16, clock=self.clock)
        self._addresses: dict[str, Address] = {}
        self._decisions: dict[str, Admit | Hold | Preempt] = {}
        self._changed = asyncio.Event()
        self._gang_of_pod: dict[str, str] = {}
        self._pods_of_gang: dict[str, set[Key]] = {}
        self._counted_at: dict[str, float] = {}

    async def run(self) -> None:
        for kind, cache in self.world.wrappers.items():
            cache.subscribe(lambda change, kind=kind: self._wrapper_changed(kind, change))  # type: ignore[misc]
        self.world.nodes.subscribe(self._node_changed)
        self.world.pods.subscribe(self._pod_changed)
        for cache in self.world.subtrees.values():
            cache.subscribe(self._subtree_changed)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.world.run(self._wrapped_changed))
            await self.world.synced()
            tasks.create_task(self.controller.run())
            tasks.create_task(self._plan_on_change())

    # --- facts in

    def _wrapper_changed(self, kind: Kind, change: Change) -> None:
        address = (kind, change.key)
        if change.new is None:
            self._forget(change.old)
        else:
            wrapper: AppWrapper = change.new
            self._addresses[gang_key(wrapper)] = address
            self._tell(wrapper)
        # A new one is looked at once the plan has judged it, so that its first status already tells the decision.
        unseen = change.new is not None and not change.new.status.queue_job_state
        self.controller.enqueue(address, after=FIRST_LOOK if unseen else 0.0)
        self._changed.set()

    def _tell(self, wrapper: AppWrapper) -> None:
        """Tell the engine what is stored; a decision that is being written meanwhile stays in force until then."""
        if dialect(wrapper) != "v1beta1":
            return
        fact = gang_fact(wrapper, self.settings, self.clock.now())
        decision = self._decisions.get(fact.key)
        if isinstance(decision, Admit) and decision.uid == fact.uid and fact.state == "waiting":
            fact = _assumed(fact, decision)
        self.engine.update(fact)

    def _forget(self, wrapper: AppWrapper) -> None:
        key = gang_key(wrapper)
        self.engine.remove(key)
        self._decisions.pop(key, None)
        self._addresses.pop(key, None)
        self._counted_at.pop(wrapper.metadata.uid, None)

    def _node_changed(self, change: Change) -> None:
        if change.new is None:
            self.engine.remove(f"Node/{change.key.name}")
        else:
            try:
                self.engine.update(node_fact(change.new))
            except BadInput as error:
                log.warning("node %s is left out: %s", change.key.name, error)
                self.engine.remove(f"Node/{change.key.name}")
        self._changed.set()

    def _pod_changed(self, change: Change) -> None:
        if change.old is not None and (
            change.new is None or change.new["metadata"]["uid"] != change.old["metadata"]["uid"]
        ):
            uid = change.old["metadata"]["uid"]
            self.engine.remove(f"Pod/{uid}")
            gang = self._gang_of_pod.pop(uid, "")
            self._pods_of_gang.get(gang, set()).discard(change.key)
            self._follow(gang)
        if change.new is not None:
            self._tell_pod(change.new)
        self._changed.set()

    def _tell_pod(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        gang = self.world.gang_of(pod)
        try:
            self.engine.update(pod_fact(pod, gang=gang))
        except BadInput as error:
            log.warning("pod %s is left out: %s", pod["metadata"].get("name"), error)
        if gang:
            self._gang_of_pod[uid] = gang
            metadata = pod["metadata"]
            self._pods_of_gang.setdefault(gang, set()).add(Key(metadata.get("namespace") or "", metadata["name"]))
            self._follow(gang)

    def _follow(self, gang_uid: str) -> None:
        wrapper = self.world.wrapper_by_uid(gang_uid) if gang_uid else None
        if wrapper is not None:
            address = self._addresses.get(gang_key(wrapper))
            if address is not None:
                self.controller.enqueue(address)

    def _subtree_changed(self, change: Change) -> None:
        if change.new is None:
            self.engine.remove(f"QuotaSubtree/{change.key}")
        else:
            self.engine.update(subtree_fact(change.key, change.new))
        self._changed.set()

    def _wrapped_changed(self, kind: Kind, change: Change) -> None:
        """A wrapped object (or one between it and its pods) changed: its AppWrapper looks again."""
        obj = change.new if change.new is not None else change.old
        for reference in obj.metadata.owner_references or ():
            self._follow(reference.uid)
        if change.new is not None and change.old is None:
            for pod in self.world.pods.by_index("owner", obj.metadata.uid):
                self._tell_pod(pod)

    # --- plan

    async def _plan_on_change(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(0)  # let everything that arrived together become one plan
            self._changed.clear()
            self.plan()

    def plan(self) -> None:
        plan = self.engine.plan(self.clock.now())
        for warning in plan.warnings:
            log.warning("%s", warning)
        for decision in (*plan.admits, *plan.preempts, *plan.holds):
            self._decisions[decision.gang] = decision
            address = self._addresses.get(decision.gang)
            if address is not None:
                self.controller.enqueue(address)

    # --- one AppWrapper

    async def reconcile(self, address: Address) -> float | None:
        """Bring one AppWrapper to where its stored state says it should be. Safe to call at any time."""
        kind, key = address
        wrapper = self.world.wrapper(kind, key)
        if wrapper is None or wrapper.metadata.deletion_timestamp:
            return None
        status = wrapper.status
        if dialect(wrapper) != "v1beta1":
            return None
        if statuses.is_terminal(status):
            return await self._clean(wrapper)
        if status.can_run and status.state in ("", "Pending"):
            return await self._dispatch(kind, wrapper)
        if status.can_run:
            return await self._follow_run(kind, wrapper)
        if status.state not in ("", "Pending"):
            return await self._take_back(kind, wrapper)
        return await self._wait(kind, wrapper)

    async def _wait(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        decision = self._decisions.get(gang_key(wrapper))
        status = wrapper.status
        if not status.queue_job_state:
            status = statuses.first_seen(status, wrapper.spec.priority, self.clock.now)
        match decision:
            case Admit() if decision.uid == wrapper.metadata.uid:
                record = admission_record(decision, wrapper, self.clock.now())
                status = statuses.admitted(status, record, self.clock.now)
                stored = await self._store_admission(kind, wrapper, status)
                return await self._dispatch(kind, stored) if stored is not None else None
            case Hold() if decision.uid == wrapper.metadata.uid:
                if not _says(status, decision):
                    status = statuses.backed_off(
                        statuses.head_of_line(status, self.clock.now),
                        self.clock.now,
                        sender=self.settings.backoff_sender,
                        explanation=decision.explanation.message,
                        quota=decision.reason == "quota",
                    )
        if status is not wrapper.status:
            await self._write(kind, wrapper, status)
        return None

    async def _store_admission(self, kind: Kind, wrapper: AppWrapper, status: AppWrapperStatus) -> AppWrapper | None:
        """The decision becomes true here. If the object changed meanwhile, the decision is void and made again."""
        try:
            return await self._write(kind, wrapper, status)
        except (Conflict, NotFound):
            self._withdraw(wrapper)
            raise

    def _withdraw(self, wrapper: AppWrapper) -> None:
        self._decisions.pop(gang_key(wrapper), None)
        current = self.world.wrapper_by_uid(wrapper.metadata.uid)
        if current is not None:
            self._tell(current)
        self._changed.set()

    async def _dispatch(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        """The admission is stored: create everything. Creating twice is harmless."""
        self._decisions.pop(gang_key(wrapper), None)
        refused = await create_all(self.client, self.kinds, wrapper)
        if not refused:
            await self._write(kind, wrapper, statuses.dispatched(wrapper.status, self.clock.now))
            return None
        permanent = [one for one in refused if one.permanent]
        if permanent:
            return await self._fail(kind, wrapper, permanent[0])
        return 1.0

    async def _fail(self, kind: Kind, wrapper: AppWrapper, refused: Refused) -> float | None:
        message = f"{refused.name} creation failure: {refused.message}"
        await self._write(kind, wrapper, statuses.failed(wrapper.status, self.clock.now, message=message))
        self._tell_people(wrapper, "Warning", "ItemCreationFailure", message)
        return await self._clean(wrapper)

    async def _clean(self, wrapper: AppWrapper) -> float | None:
        """Failed and Deleted leave nothing behind; Completed leaves its objects for the user to read."""
        if wrapper.status.state == "Completed":
            return None
        return None if await remove_all(self.client, self.kinds, wrapper) else 1.0

    async def _follow_run(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        """The gang runs: completion, limits, counts, in that order of weight."""
        decision = self._decisions.get(gang_key(wrapper))
        if isinstance(decision, Preempt) and decision.uid == wrapper.metadata.uid:
            return await self._preempt(kind, wrapper, decision)
        now = self.clock.now()
        counts = monitor.count(self._pods(wrapper.metadata.uid))
        verdicts = [monitor.judge_duration(wrapper, now), monitor.judge_minimum(wrapper, counts, now)]
        if gang_fact(wrapper, self.settings, now).supply == "fit":
            verdicts.append(monitor.judge_binding(wrapper, counts, self.settings.bind_seconds, now))
        completed_by = monitor.completion(wrapped_items(wrapper), await self._wrapped(wrapper))
        if completed_by is not None:
            return await self._complete(kind, wrapper, counts, completed_by)
        for verdict in verdicts:
            if verdict.action != "none":
                return await self._end_run(kind, wrapper, verdict)
        pause = await self._publish_counts(kind, wrapper, counts)
        waits = [wait for wait in (pause, *(verdict.again for verdict in verdicts)) if wait is not None]
        return min(waits) if waits else None

    async def _wrapped(self, wrapper: AppWrapper) -> list[Json | None]:
        """The live objects of items that name a completion status, as far as they are ours; None for all others."""
        found: list[Json | None] = []
        for item in wrapped_items(wrapper):
            template = opened(item.generic_template) if item.completion_status.strip() else {}
            kind = await self.kinds.kind_of(template["apiVersion"], template["kind"]) if template else None
            live = self._live(wrapper, kind, str(template["metadata"]["name"])) if kind is not None else None
            found.append({**live, "kind": kind.kind} if live is not None and kind is not None else None)
        return found

    def _live(self, wrapper: AppWrapper, kind: Kind, name: str) -> Json | None:
        key = Key(wrapper.metadata.namespace, name)
        if kind == kinds.POD:
            pod = self.world.pods.get(key)
            return pod if pod is not None and is_ours(pod, wrapper) else None
        self.world.watch(kind)
        obj = self.world.between[kind].get(key)
        if obj is None or all(one.uid != wrapper.metadata.uid for one in obj.metadata.owner_references or ()):
            return None
        return {"status": opened(obj.status)}

    async def _complete(
        self, kind: Kind, wrapper: AppWrapper, counts: monitor.PodCounts, completed_by: str
    ) -> float | None:
        status = monitor.with_counts(wrapper.status, counts)
        if counts.live == 0:
            ended = statuses.completed(status, self.clock.now, message=f"completed by {completed_by}")
            await self._write(kind, wrapper, ended)
            self._tell_people(wrapper, "Normal", "Completed", f"All watched items are done ({completed_by}).")
        elif status.state != "RunningHoldCompletion":
            await self._write(kind, wrapper, statuses.held_for_completion(status, self.clock.now))
        return None

    async def _end_run(self, kind: Kind, wrapper: AppWrapper, verdict: monitor.Verdict) -> float | None:
        """A limit was passed: the decision is stored first, the objects go next."""
        scheduling = wrapper.spec.scheduling_spec
        match verdict.action:
            case "deadline":
                limit = scheduling.dispatch_duration.limit
                status = statuses.deadline_exceeded(wrapper.status, self.clock.now, limit=limit)
            case "give up":
                status = statuses.given_up(wrapper.status, message=verdict.message)
            case _:
                requeued = wrapper.status.number_of_requeueings + 1
                sender = f"before PreemptQueueJobs - CanRun: false -- {verdict.reason}"
                status = statuses.preempt_candidate(
                    wrapper.status, self.clock.now, reason=verdict.reason, message=verdict.message, sender=sender
                )
                if verdict.reason == "MinPodsNotRunning":
                    status = msgspec.structs.replace(
                        status,
                        number_of_requeueings=requeued,
                        requeueing_time_in_seconds=monitor.next_wait(scheduling.requeuing, requeued),
                    )
        stored = await self._write(kind, wrapper, status)
        self._tell_people(wrapper, "Warning", verdict.reason or "DispatchDeadlineExceeded", stored.status.message)
        return 0.0

    async def _preempt(self, kind: Kind, wrapper: AppWrapper, decision: Preempt) -> float | None:
        self._decisions.pop(gang_key(wrapper), None)
        message = decision.message or f"preempted by {decision.preemptor} ({decision.cause})"
        status = statuses.preempt_candidate(
            wrapper.status,
            self.clock.now,
            reason="Preempted",
            message=message,
            sender="before preemptAWJobs - CanRun: false",
        )
        await self._write(kind, wrapper, statuses.making_room_for(status, decision.preemptor_uid))
        self._tell_people(wrapper, "Warning", "Preempted", message)
        return 0.0

    async def _publish_counts(self, kind: Kind, wrapper: AppWrapper, counts: monitor.PodCounts) -> float | None:
        """Counts change often while pods come up: one write in a while, and the last state always told."""
        status = monitor.with_counts(wrapper.status, counts)
        if status == wrapper.status:
            return None
        uid, moment = wrapper.metadata.uid, self.clock.monotonic()
        left = self._counted_at.get(uid, -COUNTS_PAUSE) + COUNTS_PAUSE - moment
        if left > 0:
            return left
        self._counted_at[uid] = moment
        await self._write(kind, wrapper, status)
        return None

    def _pods(self, gang_uid: str) -> list[Json]:
        found = (self.world.pods.get(key) for key in self._pods_of_gang.get(gang_uid, ()))
        return [pod for pod in found if pod is not None]

    def _tell_people(self, wrapper: AppWrapper, type: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        if self.settings.events:
            self.recorder.event(wrapper, type, reason, message)

    async def _take_back(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        """Back to the queue, once every object and every pod of the last run is gone."""
        if not await remove_all(self.client, self.kinds, wrapper):
            return 1.0
        if any(
            pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
            for pod in self._pods(wrapper.metadata.uid)
        ):
            return None  # the pods' own end wakes us
        await self._write(kind, wrapper, statuses.queued(statuses.without_admission(wrapper.status), self.clock.now))
        return None

    async def _write(self, kind: Kind, wrapper: AppWrapper, status: AppWrapperStatus) -> AppWrapper:
        """Store the status if it differs, on the very revision that was read."""
        patch = merge_patch(wrapper.status, status)
        if not patch:
            return wrapper
        body = {"metadata": {"resourceVersion": wrapper.metadata.resource_version}, "status": patch}
        stored: AppWrapper = await self.client.patch(
            kind, wrapper.metadata.name, wrapper.metadata.namespace, body, subresource="status", type=AppWrapper
        )
        self.world.wrappers[kind].note_write(stored)
        return stored


def _engine_settings(settings: AppWrapperSettings) -> Settings:
    return Settings(policy=settings.policy, preemption=settings.preemption, quota=settings.quota != "never")


def _assumed(gang: Gang, admit: Admit) -> Gang:
    return msgspec.structs.replace(gang, state="admitted", seats=admit.seats, assignment=admit.assignment)


def _says(status: AppWrapperStatus, hold: Hold) -> bool:
    """True when the stored status already tells this reason."""
    return status.queue_job_state == "Backoff" and status.message == hold.explanation.message
