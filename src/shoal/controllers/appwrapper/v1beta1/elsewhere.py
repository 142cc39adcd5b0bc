"""A v1beta1 AppWrapper that runs in another cluster: MCAD's dispatcher mode, step by step.

Its quota is counted here, its room there. The cluster is chosen when a plan admits it and is stored with its admission,
then a finalizer, then the copy is made, gated; that it is sent is stored, and only then is it released. What the copy
says becomes this AppWrapper's status; it is let go once nothing of it is there. No wrapped object ever exists in this
cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from shoal.api.appwrapper import AppWrapper, AppWrapperStatus
from shoal.api.kind import Kind
from shoal.api.labels import HELD_ELSEWHERE
from shoal.api.meta import Json
from shoal.controllers.appwrapper.context import SECOND, WrapperContext
from shoal.controllers.appwrapper.status import admission as admissions
from shoal.controllers.appwrapper.status.admission import StoredAdmission
from shoal.controllers.appwrapper.v1beta1 import status as statuses
from shoal.controllers.appwrapper.v1beta1.follow import Follow
from shoal.controllers.appwrapper.wrapped import gang_key, wrapped_objects
from shoal.controllers.planning.other_clusters import OtherClusters, SentCopy
from shoal.errors import BadInput

CallOff = Callable[[Kind, AppWrapper, str, str], Awaitable[float | None]]
REFUSED, TOO_SLOW, TAKEN_AWAY = "ClusterRefused", "ClusterTooSlow", "ClusterTakenAway"
"""Why it goes back to the queue; the cluster at fault is not chosen again for a while."""
LOST, MOVED = "ClusterLost", "ClusterDrained"
"""The same; that cluster is not chosen in any case."""
DRAIN_AGAIN = 2.0
"""Seconds between two looks for room elsewhere, of a gang whose cluster is drained."""
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
        copy = await self._elsewhere.look(kind, wrapper, record.cluster, record.epoch, record.objects)
        if copy.where == "stopped":
            said = f"cluster {record.cluster} stopped it: this cluster was not heard there"
            self._elsewhere.refuse(wrapper.metadata.uid, record.cluster, said)
            return await self._call_off(kind, wrapper, LOST, said)
        if copy.where == "unknown":
            left = self._elsewhere.until_lost(wrapper, record.cluster, record.fence)
            if left is not None and left <= 0:
                return await self._call_off(kind, wrapper, LOST, f"cluster {record.cluster} is lost: {copy.why}")
            since = self._elsewhere.silent_since(record.cluster)
            unknown = f", its state is unknown since {since}" if since else ""
            said = f"cluster {record.cluster} cannot be reached{unknown}: {copy.why}"
            await self.context.store.status(kind, wrapper, replace(wrapper.status, message=said))
            return SAFETY if left is None else min(left, SAFETY)
        if copy.where == "gated":
            await self._release(kind, wrapper, record)
            return LOOK_AGAIN
        if copy.where == "there" and self._elsewhere.moves_away(record.cluster) and not _is_over(copy):
            if target := self._next_place(wrapper, record):
                return await self._move(kind, wrapper, record, target)
            again = await self._follow_copy(kind, wrapper, record, copy)
            return DRAIN_AGAIN if again is None else min(again, DRAIN_AGAIN)
        return await self._follow_copy(kind, wrapper, record, copy)

    def _next_place(self, wrapper: AppWrapper, record: StoredAdmission) -> str:
        """Where it would start now, while its cluster is drained and it is its turn; empty: it stays."""
        destinations, gang = self.context.intake.destinations, self.context.planning.engine.gang(gang_key(wrapper))
        if destinations is None or gang is None or not self._elsewhere.may_move(wrapper.metadata.uid, record.cluster):
            return ""
        return destinations.choice(wrapper, gang).cluster

    async def _move(self, kind: Kind, wrapper: AppWrapper, record: StoredAdmission, target: str) -> float | None:
        """Its room in the other cluster is kept before anything of it stops in this one."""
        gang = self.context.planning.engine.gang(gang_key(wrapper))
        if gang is not None:
            self._elsewhere.keep(gang, record.cluster, record.epoch, target)
        kept = admissions.write(replace(record, moving_to=target))
        moving = replace(wrapper, status=replace(wrapper.status, admission=kept))
        return await self._call_off(kind, moving, MOVED, f"cluster {record.cluster} is drained: it moves to {target}")

    async def _follow_copy(
        self, kind: Kind, wrapper: AppWrapper, record: StoredAdmission, copy: SentCopy
    ) -> float | None:
        if copy.where == "there" and record.objects:
            return await self._follow_bare(kind, wrapper, record, copy)
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
        try:
            objects = _objects(wrapper, record)
        except BadInput as error:
            await self._store(
                kind, wrapper, statuses.failed(wrapper.status, self.context.clock.now, message=str(error))
            )
            return 0.0
        held = list(wrapper.metadata.finalizers or ())
        if HELD_ELSEWHERE not in held:
            wrapper = await self.context.store.finalizers(kind, wrapper, [*held, HELD_ELSEWHERE])
        sent = await self._elsewhere.send(kind, wrapper, record.cluster, record.epoch, objects, record.fence)
        if sent.outcome == "refused":
            self._elsewhere.refuse(wrapper.metadata.uid, record.cluster, sent.why)
            return await self._call_off(
                kind, wrapper, REFUSED, f"cluster {record.cluster} does not take it: {sent.why}"
            )
        if sent.outcome == "later":
            left = self._elsewhere.until_lost(wrapper, record.cluster, record.fence)
            if left is not None and left <= 0:
                return await self._call_off(kind, wrapper, LOST, f"cluster {record.cluster} is lost")
            return LOOK_AGAIN
        wrapper = await self._store(
            kind, wrapper, statuses.sent(wrapper.status, self.context.clock.now, record.cluster)
        )
        await self._release(kind, wrapper, record)
        self.context.metrics.dispatched((self.context.clock.now() - record.at) / SECOND)
        return 0.0

    async def _release(self, kind: Kind, wrapper: AppWrapper, record: StoredAdmission) -> None:
        await self._elsewhere.release(kind, wrapper, record.cluster, record.epoch, record.objects)

    async def _follow_bare(
        self, kind: Kind, wrapper: AppWrapper, record: StoredAdmission, copy: SentCopy
    ) -> float | None:
        """No controller of ours is there: counts, completion and limits are judged here, as of one that runs here."""
        if wrapper.status.state in ("", "Pending"):
            wrapper = await self._store(kind, wrapper, statuses.dispatched(wrapper.status, self.context.clock.now))
        again = await self._follow.run(kind, wrapper, copy)
        left = record.at + int(self._elsewhere.admit_seconds * SECOND) - self.context.clock.now()
        started = any(pod.fact.node or pod.fact.is_terminal for pod in copy.pods)
        if started or not any(pod.fact.phase == "Pending" for pod in copy.pods):
            return min(again or SAFETY, SAFETY)
        if left > 0:
            return min(again or SAFETY, left / SECOND)
        why = f"cluster {record.cluster} did not start it in {self._elsewhere.admit_seconds:g} seconds"
        self._elsewhere.refuse(wrapper.metadata.uid, record.cluster, why)
        return await self._call_off(kind, wrapper, TOO_SLOW, why)

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
        if not record.cluster:
            return True
        lost = record.stopping == LOST
        return await self._elsewhere.remove(
            kind, wrapper, record.cluster, record.epoch, record.objects, lost, record.fence
        )

    async def leave(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        """Deleted: the finalizer goes once the copy is gone, or its removal is stored."""
        if not await self.remove(kind, wrapper):
            return LOOK_AGAIN
        left = [one for one in wrapper.metadata.finalizers or () if one != HELD_ELSEWHERE]
        await self.context.store.finalizers(kind, wrapper, left)
        return None

    async def _store(self, kind: Kind, wrapper: AppWrapper, status: AppWrapperStatus) -> AppWrapper:
        return await self.context.store.status(kind, wrapper, status)


def _objects(wrapper: AppWrapper, record: StoredAdmission) -> list[Json]:
    """What is made in a cluster that runs no AppWrappers; nothing where the AppWrapper itself is sent."""
    return wrapped_objects(wrapper, bound_whole=False) if record.objects else []


def _is_over(copy: SentCopy) -> bool:
    return copy.found is not None and statuses.is_terminal(copy.found.status)


def _has_run(status: AppWrapperStatus) -> bool:
    return any(one.type == "Dispatched" for one in status.conditions or ())


def is_held(wrapper: AppWrapper) -> bool:
    return HELD_ELSEWHERE in (wrapper.metadata.finalizers or ())
