"""One v1beta2 AppWrapper, phase by phase: suspended, resumed, watched, reset or ended.

Without a queue label our own queue decides when it is resumed; with one, the controller or user that clears
`spec.suspend` does. Quota is kept while it is reset. What is stored comes first here too: a finalizer and
the phase, then the objects.
"""

from __future__ import annotations

import msgspec

from shoal.api.appwrapper import FINALIZER, AppWrapper, AppWrapperStatus
from shoal.api.codec import opened
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.controllers.appwrapper import monitor
from shoal.controllers.appwrapper.context import SECOND, WrapperContext
from shoal.controllers.appwrapper.dispatch import is_ours, names_of
from shoal.controllers.appwrapper.facts import admission_of, is_bound_whole, is_managed_here, is_queued_here
from shoal.controllers.appwrapper.status import admission as admissions
from shoal.controllers.appwrapper.status.admission import StoredAdmission
from shoal.controllers.appwrapper.status.messages import Messages
from shoal.controllers.appwrapper.v1beta2 import status as phases
from shoal.controllers.appwrapper.v1beta2.limits import Patience, duration_text, is_final, patience_of
from shoal.controllers.appwrapper.v1beta2.objects import component_objects, expected_pods
from shoal.controllers.appwrapper.wrapped import gang_key
from shoal.controllers.planning.caches import Followed
from shoal.controllers.planning.node_health import flagged
from shoal.controllers.planning.observations import (
    CalledOff,
    EvictionStored,
    NotStored,
    ObjectsRemain,
    Outdated,
    WriteUnknown,
)
from shoal.errors import BadInput
from shoal.kube.errors import Conflict, NotFound, ServerError, Unknown

RETRY = 1.0
LOOK_AGAIN = 5.0
READY_AGAIN = 60.0
FIRST_TOLD = 2.0
"""Seconds after its objects were made from which on it is told that not all of its pods are up."""
NOT_FINAL = frozenset({"RayCluster", "RayJob", "RayService"})
"""Kinds whose "failed" may pass."""


class Components:
    def __init__(self, context: WrapperContext, messages: Messages) -> None:
        self.context = context
        self.messages = messages
        self._emptied: set[str] = set()
        """UIDs of AppWrappers that are being deleted, and of whose objects none is left."""

    def forget(self, uid: str) -> bool:
        """This AppWrapper is gone; True when its objects were seen to be gone before it."""
        emptied = uid in self._emptied
        self._emptied.discard(uid)
        return emptied

    async def reconcile(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        if not is_managed_here(wrapper):
            return None
        if wrapper.metadata.deletion_timestamp:
            return await self._terminate(kind, wrapper)
        patience = patience_of(wrapper, self.context.settings.patience)
        match wrapper.status.phase:
            case "" if not self._is_admitted(wrapper):
                await self._store(kind, wrapper, phases.suspended(wrapper))
                return 0.0
            case "" | "Suspended":
                return await self._suspended(kind, wrapper)
            case "Resuming":
                return await self._resume(kind, wrapper, patience)
            case "Running":
                return await self._run(kind, wrapper, patience)
            case "Suspending":
                return await self._suspend(kind, wrapper)
            case "Resetting":
                return await self._reset(kind, wrapper, patience)
            case "Failed":
                return await self._failed(kind, wrapper, patience)
            case "Succeeded":
                return await self._succeeded(kind, wrapper, patience)
        return None

    # --- waiting and starting

    def _is_admitted(self, wrapper: AppWrapper) -> bool:
        """May it start at once? Then its first status tells that, and no other comes before it."""
        context, key, uid = self.context, gang_key(wrapper), wrapper.metadata.uid
        if wrapper.spec.suspend or not is_queued_here(wrapper) or context.decisions.is_overtaken(key, uid):
            return False
        if context.decisions.admit(key, uid) is None:
            return False
        trees = bool(context.planning.engine.trees)
        return not context.decisions.is_clearing(key, uid, context.clock.now(), quota=trees)

    async def _suspended(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        context, key, uid = self.context, gang_key(wrapper), wrapper.metadata.uid
        if wrapper.spec.suspend:
            return None
        if not is_queued_here(wrapper):  # its creator answers for what it wraps, also where another user resumed it
            unstamped = context.facts.unstamped(wrapper)
            if unstamped:
                held = phases.waiting(wrapper.status, context.clock.now())
                await self._store(kind, wrapper, msgspec.structs.replace(held, message=unstamped))
                return None
            refused = await context.objects.forbidden(wrapper)
            if refused is not None:
                return await self._give_up(kind, wrapper, wrapper.status, "CreateFailed", refused.message)
            creator = context.facts.creator(wrapper)
            return await self._start(kind, wrapper, StoredAdmission(by=creator.user if creator else ""))
        told = context.planning.engine.gang(key)
        overtaken = context.decisions.is_overtaken(key, uid)
        if overtaken:
            context.note(CalledOff, wrapper)
        elif told is not None and told.state in ("held", "stopping"):
            context.note(Outdated, wrapper)
        admit = context.decisions.admit(key, uid) if not overtaken else None
        if admit is not None:
            if context.decisions.is_clearing(key, uid, context.clock.now(), quota=bool(context.planning.engine.trees)):
                return RETRY  # the gang that makes way wakes us
            refused = await context.objects.forbidden(wrapper)
            if refused is not None:
                return await self._give_up(kind, wrapper, phases.begun(wrapper), "CreateFailed", refused.message)
            return await self._start(kind, wrapper, admission_of(admit, wrapper, context.clock.now()))
        hold = context.decisions.hold(key, uid)
        if hold is not None:
            await self.messages.publish_held(kind, wrapper, hold)
        return None

    async def _start(self, kind: Kind, wrapper: AppWrapper, record: StoredAdmission) -> float | None:
        """Finalizer, then the phase with the admission, then the objects."""
        context, now = self.context, self.context.clock.now()
        before = admissions.read(wrapper.status.admission)
        numbered = msgspec.structs.replace(
            record, epoch=before.epoch + 1, at=now, generation=wrapper.metadata.generation
        )
        try:
            if FINALIZER not in (wrapper.metadata.finalizers or ()):
                wrapper = await context.store.finalizers(
                    kind, wrapper, [*(wrapper.metadata.finalizers or ()), FINALIZER]
                )
            status = phases.resuming(phases.begun(wrapper), now)
            status = msgspec.structs.replace(status, admission=admissions.write(numbered))
            await self._store(kind, wrapper, status)
        except (Conflict, NotFound):
            await context.store.refreshed(kind, wrapper)
            context.note(NotStored, wrapper)
            return 0.0
        except (Unknown, ServerError):
            context.note(WriteUnknown, wrapper)
            raise
        return 0.0

    async def _resume(self, kind: Kind, wrapper: AppWrapper, patience: Patience) -> float | None:
        context = self.context
        if wrapper.spec.suspend:
            return await self._to_suspending(kind, wrapper)
        unknown = context.facts.unstamped(wrapper)  # a status proves nothing: others may write it, too
        if unknown:
            return await self._to_suspending(kind, wrapper, "CreatorUnknown")
        forbidden = await context.objects.forbidden(wrapper)
        if forbidden is not None:
            return await self._give_up(kind, wrapper, wrapper.status, "CreateFailed", forbidden.message)
        try:
            whole = is_bound_whole(wrapper, context.settings)
            objects = component_objects(wrapper, context.settings.node_health, bound_whole=whole)
        except BadInput as error:
            return await self._give_up(
                kind, wrapper, wrapper.status, "CreateFailed", f"error creating components: {error}"
            )
        for obj in objects:
            found = await context.objects.kinds.kind_of(obj["apiVersion"], obj["kind"])
            if found is not None and found.namespaced:
                context.shared.watch(found)
        refused = await context.objects.create(wrapper, objects)
        now = context.clock.now()
        if not refused:
            await self._store(kind, wrapper, phases.running(wrapper.status, now))
            return 0.0
        worst = next((one for one in refused if one.permanent), refused[0])
        message = f"error creating components: {worst.name}: {worst.message}"
        if worst.permanent:
            return await self._give_up(kind, wrapper, wrapper.status, "CreateFailed", message)
        if now < phases.since(wrapper.status, phases.DEPLOYED) + int(patience.admission * SECOND):
            return RETRY
        return await self._reset_or_fail(kind, wrapper, patience, "CreateFailed", message)

    # --- running

    async def _run(self, kind: Kind, wrapper: AppWrapper, patience: Patience) -> float | None:
        context, now, status = self.context, self.context.clock.now(), wrapper.status
        if wrapper.spec.suspend:
            return await self._to_suspending(kind, wrapper)
        preempt = context.decisions.preempt(gang_key(wrapper), wrapper.metadata.uid)
        if preempt is not None:
            again = await self._to_suspending(kind, wrapper, "Preempted")
            context.metrics.preempted(preempt.cause)
            context.note(EvictionStored, wrapper)
            return again
        found, failed = await self._deployed(wrapper)
        wanted = len(wrapper.spec.components or ())
        if found < wanted:
            message = f"Only found {found} deployed components, but was expecting {wanted}"
            return await self._give_up(kind, wrapper, status, "MissingComponent", message)
        if failed:
            return await self._reset_or_fail(
                kind, wrapper, patience, "FailedComponent", f"Found {failed} failed components"
            )
        if self._on_unwell_devices(wrapper):
            return await self._reset_or_fail(kind, wrapper, patience, "AutopilotNoExecute", "", spends_retry=False)
        counts, expected = monitor.count(context.planning.pods(wrapper.metadata.uid)), expected_pods(wrapper)
        if counts.succeeded >= expected > 0 and not counts.live and not counts.failed:
            return await self._succeed(kind, wrapper, counts)
        if counts.failed:
            status = phases.unhealthy(status, "FoundFailedPods", "", now)
            await self._store(kind, wrapper, status)
            left = phases.since(status, phases.UNHEALTHY) + int(patience.failure * SECOND) - now
            if left > 0:
                return left / SECOND
            current = self._current(kind, wrapper)
            codes = [code for pod in context.planning.pods(wrapper.metadata.uid) for code in pod.exit_codes]
            if is_final(codes, patience):
                return await self._give_up(kind, current, current.status, "FoundFailedPods", "")
            return await self._reset_or_fail(kind, current, patience, "FoundFailedPods", "")
        if phases.is_true(status, phases.UNHEALTHY):
            status = phases.with_condition(status, phases.UNHEALTHY, False, "FoundNoFailedPods", "", now)
        told = f"{counts.running} pods running; {counts.succeeded} pods succeeded"
        if counts.running + counts.succeeded >= expected:
            ready = phases.with_condition(status, phases.READY, True, "SufficientPodsReady", told, now)
            await self._store(kind, wrapper, ready)
            return READY_AGAIN
        told = f"{counts.pending} pods pending; {told}"
        all_there = counts.pending + counts.running + counts.succeeded >= expected
        grace = patience.warm_up if all_there else patience.admission
        age = now - phases.since(status, phases.DEPLOYED)
        more = grace - age / SECOND
        if 0 <= age < FIRST_TOLD * SECOND and more > 0 and phases.is_new(status):
            return min(FIRST_TOLD - age / SECOND, more)  # most are up by then, and that is told instead
        status = phases.with_condition(status, phases.READY, False, "InsufficientPodsReady", told, now)
        await self._store(kind, wrapper, status)
        if more > 0:
            return min(LOOK_AGAIN, more)
        return await self._reset_or_fail(kind, self._current(kind, wrapper), patience, "InsufficientPodsReady", told)

    def _on_unwell_devices(self, wrapper: AppWrapper) -> bool:
        """Does one of its pods run on a device that is to be vacated?"""
        health, nodes = self.context.settings.node_health, self.context.shared.nodes
        if not health.monitor:
            return False
        for pod in self.context.planning.pods(wrapper.metadata.uid):
            node = nodes.get(Key("", pod.fact.node)) if pod.fact.node and pod.is_live else None
            if node is not None and any(pod.fact.requests.get(name) for name in flagged(node, health, "NoExecute")):
                return True
        return False

    async def _deployed(self, wrapper: AppWrapper) -> tuple[int, int]:
        """How many components are there and not being deleted, and how many of them say that they failed."""
        found = failed = 0
        for name in names_of(wrapper):
            kind = await self.context.objects.kinds.kind_of(name[0], name[1])
            if kind is None:
                continue
            live = await self._live(wrapper, kind, name[2])
            if live is None:
                continue
            found += 1
            if kind.kind not in NOT_FINAL and "Failed" in monitor.true_conditions(live):
                failed += 1
        return found, failed

    async def _live(self, wrapper: AppWrapper, kind: Kind, name: str) -> Json | None:
        """A component that is there and not being deleted: as the cache knows it, else as the server says."""
        known = self.context.shared.followed(kind, Key(wrapper.metadata.namespace, name))
        if known is not None and is_ours(known, wrapper) and not known.metadata.deletion_timestamp:
            return {"status": opened(known.status)} if isinstance(known, Followed) else {}
        found = await self.context.objects.find(wrapper, kind, name)
        return found if found is not None and not found["metadata"].get("deletionTimestamp") else None

    async def _succeed(self, kind: Kind, wrapper: AppWrapper, counts: monitor.WrappedPodCounts) -> float | None:
        now = self.context.clock.now()
        message = f"{counts.succeeded} pods succeeded and no running, pending, or failed pods"
        status = phases.with_condition(wrapper.status, phases.RESERVED, False, "Succeeded", message, now)
        status = phases.with_condition(status, phases.DEPLOYED, True, "Succeeded", message, now)
        await self._store(kind, wrapper, msgspec.structs.replace(status, phase="Succeeded"))
        return 0.0

    # --- stopping

    async def _to_suspending(self, kind: Kind, wrapper: AppWrapper, reason: str = "Suspending") -> float | None:
        await self._store(kind, wrapper, msgspec.structs.replace(wrapper.status, phase="Suspending"))
        self.context.tell_people(wrapper, "Normal", reason, "Suspend is true" if reason == "Suspending" else reason)
        return 0.0

    async def _suspend(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        if (again := await self._remove(wrapper)) is not None:
            return again
        now = self.context.clock.now()
        status = phases.undeployed(wrapper.status, "Suspended", "Suspended", "Suspend is true", now)
        status = phases.with_condition(status, phases.RESERVED, False, "Suspended", "Suspend is true", now)
        status = phases.without_condition(status, phases.READY, phases.UNHEALTHY)
        kept = admissions.write(admissions.ended(admissions.read(status.admission)))
        await self._store(kind, wrapper, msgspec.structs.replace(status, admission=kept))
        return 0.0

    async def _reset_or_fail(
        self,
        kind: Kind,
        wrapper: AppWrapper,
        patience: Patience,
        reason: str,
        message: str,
        *,
        spends_retry: bool = True,
    ) -> float | None:
        """Another try while there is one left; its quota stays reserved meanwhile."""
        now, status = self.context.clock.now(), wrapper.status
        if status.resetting_count >= patience.retry_limit:
            return await self._give_up(kind, wrapper, status, reason, message)
        status = phases.unhealthy(status, reason, message, now)
        count = status.resetting_count + spends_retry
        status = msgspec.structs.replace(status, phase="Resetting", resetting_count=count)
        await self._store(kind, wrapper, status)
        self.context.metrics.requeued(reason)
        self.context.tell_people(wrapper, "Normal", "Unhealthy", message or reason)
        return 0.0

    async def _reset(self, kind: Kind, wrapper: AppWrapper, patience: Patience) -> float | None:
        if wrapper.spec.suspend:
            return await self._to_suspending(kind, wrapper)
        if (again := await self._remove(wrapper)) is not None:
            return again
        now = self.context.clock.now()
        left = phases.since(wrapper.status, phases.UNHEALTHY) + int(patience.retry_pause * SECOND) - now
        if left > 0:
            return left / SECOND
        status = phases.undeployed(
            wrapper.status, "Resetting", "Resetting", "Resources deleted for resetting AppWrapper", now
        )
        await self._store(kind, wrapper, phases.resuming(status, now, "Reset complete; resuming"))
        return 0.0

    # --- ending

    async def _give_up(
        self, kind: Kind, wrapper: AppWrapper, status: AppWrapperStatus, reason: str, message: str
    ) -> float | None:
        ended = phases.unhealthy(status, reason, message, self.context.clock.now())
        await self._store(kind, wrapper, msgspec.structs.replace(ended, phase="Failed", message=message))
        self.context.metrics.failed()
        self.context.tell_people(wrapper, "Warning", "Unhealthy", message or reason)
        return 0.0

    async def _failed(self, kind: Kind, wrapper: AppWrapper, patience: Patience) -> float | None:
        status, now = wrapper.status, self.context.clock.now()
        if not phases.is_true(status, phases.DEPLOYED) and not phases.is_true(status, phases.RESERVED):
            return None
        left = phases.since(status, phases.UNHEALTHY) + int(patience.deletion_on_failure * SECOND) - now
        if left > 0 and not wrapper.spec.suspend:
            paused = phases.with_condition(status, phases.DELETING, False, "DeletionPaused", "", now)
            await self._store(kind, wrapper, paused)
            return left / SECOND
        if (again := await self._remove(wrapper)) is not None:
            return again
        message = "Resources deleted for failed AppWrapper"
        if wrapper.spec.suspend:
            message = "Kueue forced resource deletion by suspending AppWrapper"
        status = phases.undeployed(status, "Failed", "Failed", message, now)
        status = phases.with_condition(status, phases.RESERVED, False, "Failed", "No resources deployed", now)
        await self._store(kind, wrapper, status)
        return None

    async def _succeeded(self, kind: Kind, wrapper: AppWrapper, patience: Patience) -> float | None:
        status, now = wrapper.status, self.context.clock.now()
        if not phases.is_true(status, phases.DEPLOYED):
            return None
        left = phases.since(status, phases.RESERVED) + int(patience.success_ttl * SECOND) - now
        if left > 0:
            return left / SECOND
        if (again := await self._remove(wrapper)) is not None:
            return again
        message = f"Time to live after success of {duration_text(patience.success_ttl)} expired"
        await self._store(kind, wrapper, phases.undeployed(status, "Succeeded", "Succeeded", message, now))
        return None

    async def _terminate(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        """Our finalizer goes when nothing is left; anyone else's stays."""
        finalizers = list(wrapper.metadata.finalizers or ())
        if FINALIZER not in finalizers:
            return None
        again = await self._remove(wrapper)
        if again is not None:
            if wrapper.status.phase != "Terminating":
                await self._store(kind, wrapper, msgspec.structs.replace(wrapper.status, phase="Terminating"))
            return again
        finalizers.remove(FINALIZER)
        self._emptied.add(wrapper.metadata.uid)
        try:
            if finalizers:  # another client keeps it: what is left of it is told
                now = self.context.clock.now()
                told = "Resources successfully deleted"
                status = phases.undeployed(wrapper.status, "Terminating", "Terminating", told, now)
                status = phases.with_condition(
                    status, phases.RESERVED, False, "Terminating", "No resources deployed", now
                )
                wrapper = await self._store(kind, wrapper, status)
            await self.context.store.finalizers(kind, wrapper, finalizers)
        except NotFound:
            return None
        return None

    async def _remove(self, wrapper: AppWrapper) -> float | None:
        """One more attempt; pods that do not end within the grace are ended by force."""
        context, now = self.context, self.context.clock.now()
        gone = await context.objects.remove(wrapper)
        live = [pod for pod in context.planning.pods(wrapper.metadata.uid) if pod.is_live]
        if gone and not live:
            return None
        grace = int(patience_of(wrapper, context.settings.patience).forced_deletion * SECOND)
        late = [pod.fact for pod in live if pod.deleting_since and pod.deleting_since + grace <= now]
        for fact in late:
            await context.objects.end_by_force(fact.namespace, fact.name, fact.uid)
        if not gone and wrapper.status.phase != "Resetting":  # what is reset keeps all it was given
            context.note(ObjectsRemain, wrapper)
        return LOOK_AGAIN if gone else RETRY / 10

    async def _store(self, kind: Kind, wrapper: AppWrapper, status: AppWrapperStatus) -> AppWrapper:
        return await self.context.store.status(kind, wrapper, status)

    def _current(self, kind: Kind, wrapper: AppWrapper) -> AppWrapper:
        key = Key(wrapper.metadata.namespace, wrapper.metadata.name)
        return self.context.caches.wrapper(kind, key) or wrapper
