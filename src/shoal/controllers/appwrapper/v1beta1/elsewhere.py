"""A v1beta1 AppWrapper that runs in another cluster: MCAD's dispatcher mode, step by step.

Its quota is counted here, its room there. The cluster is chosen when a plan admits it and is stored with its admission,
then a finalizer, then the copy is made; what the copy says becomes this AppWrapper's status; it is let go once nothing
of it is there. No wrapped object ever exists in this cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from shoal.api.appwrapper import AppWrapper, AppWrapperStatus
from shoal.api.kind import Kind
from shoal.api.labels import HELD_ELSEWHERE
from shoal.controllers.appwrapper.context import SECOND, WrapperContext
from shoal.controllers.appwrapper.status import admission as admissions
from shoal.controllers.appwrapper.status.admission import StoredAdmission
from shoal.controllers.appwrapper.v1beta1 import status as statuses
from shoal.controllers.appwrapper.v1beta1.follow import Follow
from shoal.controllers.appwrapper.wrapped import gang_key
from shoal.controllers.planning.other_clusters import OtherClusters

CallOff = Callable[[Kind, AppWrapper, str, str], Awaitable[float | None]]
REFUSED, TOO_SLOW, TAKEN_AWAY = "ClusterRefused", "ClusterTooSlow", "ClusterTakenAway"
"""Why it goes back to the queue; the cluster at fault is not chosen again for a while."""
LOOK_AGAIN = 1.0
SAFETY = 20.0
"""Seconds after which a wait for an event is checked all the same."""
replace = msgspec.structs.replace


class DispatchedRun:
    """One that was given to another cluster, from its admission to its end. `call_off(kind, wrapper, reason, message)`
    sends it back to the queue."""

    def __init__(self, context: WrapperContext, elsewhere: OtherClusters, follow: Follow, call_off: CallOff) -> None:
        self.context, self._elsewhere, self._follow, self._call_off = context, elsewhere, follow, call_off

    async def run(self, kind: Kind, wrapper: AppWrapper, record: StoredAdmission) -> float | None:
        """Sent if it is not there yet, else followed."""
        preempt = self.context.decisions.preempt(gang_key(wrapper), wrapper.metadata.uid)
        if preempt is not None:
            return await self._follow.preempt(kind, wrapper, preempt)
        wrapper = await self._follow.reseat(kind, wrapper)
        if self._elsewhere.is_leaving(record.cluster):
            return await self._call_off(kind, wrapper, TAKEN_AWAY, f"cluster {record.cluster} is taken away")
        if not wrapper.status.is_dispatched:
            return await self._send(kind, wrapper, record)
        copy = await self._elsewhere.look(kind, wrapper, record.cluster, record.epoch)
        if copy.where == "unknown":
            status = replace(wrapper.status, message=f"cluster {record.cluster} cannot be reached: {copy.why}")
            await self.context.store.status(kind, wrapper, status)
            return SAFETY
        if copy.where == "gone" or copy.found is None:
            said = f"its copy in cluster {record.cluster} is gone and its end was never read; create it again to run it"
            await self._store(kind, wrapper, statuses.failed(wrapper.status, self.context.clock.now, message=said))
            self.context.tell_people(wrapper, "Warning", "CopyGone", said)
            return 0.0
        return await self._mirror(kind, wrapper, record, copy.found)

    async def _send(self, kind: Kind, wrapper: AppWrapper, record: StoredAdmission) -> float | None:
        if record.generation not in (0, wrapper.metadata.generation):
            said = "its spec was edited after it was admitted"
            return await self._call_off(kind, wrapper, "SpecChanged", said)
        held = list(wrapper.metadata.finalizers or ())
        if HELD_ELSEWHERE not in held:
            wrapper = await self.context.store.finalizers(kind, wrapper, [*held, HELD_ELSEWHERE])
        sent = await self._elsewhere.send(kind, wrapper, record.cluster, record.epoch)
        if sent.outcome == "refused":
            self._elsewhere.refuse(wrapper.metadata.uid, record.cluster, sent.why)
            return await self._call_off(
                kind, wrapper, REFUSED, f"cluster {record.cluster} does not take it: {sent.why}"
            )
        if sent.outcome == "later":
            return LOOK_AGAIN
        await self._store(kind, wrapper, statuses.sent(wrapper.status, self.context.clock.now, record.cluster))
        self.context.metrics.dispatched((self.context.clock.now() - record.at) / SECOND)
        return 0.0

    async def _mirror(self, kind: Kind, wrapper: AppWrapper, record: StoredAdmission, copy: AppWrapper) -> float | None:
        await self._store(kind, wrapper, statuses.mirrored(wrapper.status, copy.status))
        if copy.status.can_run or statuses.is_terminal(copy.status) or _has_run(copy.status):
            return None
        left = record.at + int(self._elsewhere.admit_seconds * SECOND) - self.context.clock.now()
        if left > 0:
            return left / SECOND
        why = f"cluster {record.cluster} did not start it in {self._elsewhere.admit_seconds:g} seconds"
        self._elsewhere.refuse(wrapper.metadata.uid, record.cluster, f"{why}: {copy.status.message}".rstrip(": "))
        return await self._call_off(kind, wrapper, TOO_SLOW, why)

    async def remove(self, kind: Kind, wrapper: AppWrapper) -> bool:
        """True once nothing of it is anywhere."""
        record = admissions.read(wrapper.status.admission)
        return not record.cluster or await self._elsewhere.remove(kind, wrapper, record.cluster, record.epoch)

    async def leave(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        """Deleted: the finalizer goes once the copy is gone, or its removal is stored."""
        if not await self.remove(kind, wrapper):
            return LOOK_AGAIN
        left = [one for one in wrapper.metadata.finalizers or () if one != HELD_ELSEWHERE]
        await self.context.store.finalizers(kind, wrapper, left)
        return None

    async def _store(self, kind: Kind, wrapper: AppWrapper, status: AppWrapperStatus) -> AppWrapper:
        return await self.context.store.status(kind, wrapper, status)


def _has_run(status: AppWrapperStatus) -> bool:
    return any(one.type == "Dispatched" for one in status.conditions or ())


def is_held(wrapper: AppWrapper) -> bool:
    return HELD_ELSEWHERE in (wrapper.metadata.finalizers or ())
