"""One v1beta1 AppWrapper, brought to where its stored status says it should be.

What is stored decides what is created, never the other way round: an admission is written before the first object
exists, a run is called off in the status before the first object goes, and every step may be repeated after a crash.
"""

from __future__ import annotations

import logging

import msgspec

from shoal.api.appwrapper import AppWrapper, dialect, wrapped_items
from shoal.api.codec import opened
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.controllers.appwrapper.context import SECOND, WrapperContext
from shoal.controllers.appwrapper.dispatch import RefusedObject
from shoal.controllers.appwrapper.facts import (
    NEITHER,
    admission_of,
    is_bound_whole,
    is_fenced,
    is_gated,
    is_queued_here,
    is_suspended,
)
from shoal.controllers.appwrapper.intake import Address
from shoal.controllers.appwrapper.quota import missing_labels
from shoal.controllers.appwrapper.settings import AppWrapperSettings
from shoal.controllers.appwrapper.status import admission as admissions
from shoal.controllers.appwrapper.status.messages import Messages
from shoal.controllers.appwrapper.v1beta1 import status as statuses
from shoal.controllers.appwrapper.v1beta1.dead_ends import DeadEnds
from shoal.controllers.appwrapper.v1beta1.elsewhere import (
    LOST,
    MOVED,
    REFUSED,
    TAKEN_AWAY,
    TOO_SLOW,
    DispatchedRun,
    is_held,
)
from shoal.controllers.appwrapper.v1beta1.follow import Follow
from shoal.controllers.appwrapper.v1beta1.placing import added_names, placed, pod_group_kind
from shoal.controllers.appwrapper.v1beta2.components import Components
from shoal.controllers.appwrapper.wrapped import gang_key, wrapped_objects
from shoal.controllers.demand.templates import templates
from shoal.controllers.planning.observations import (
    CalledOff,
    NotKept,
    NotStored,
    ObjectsGone,
    ObjectsLeave,
    ObjectsRemain,
    Outdated,
    WriteUnknown,
)
from shoal.engine.model import Admit
from shoal.errors import BadInput, ShoalError
from shoal.kube.errors import Conflict, NotFound, ServerError, Unknown

log = logging.getLogger(__name__)

CREATE_AGAIN = 0.5
REMOVE_AGAIN = (0.03, 0.1, 0.3, 1.0, 1.0, 2.0, 5.0)
VICTIMS_FIRST = 1.0
STEP_ASIDE = 1.0
"""For so long a gang whose pods did not come up leaves the room it had to others, at most."""
SUSPENDED = "Suspended"
FENCED = "HubNotHeard"
"""The hub that sent it fell silent, and would start it elsewhere."""
NO_SETBACK = ("SpecChanged", SUSPENDED, REFUSED, TOO_SLOW, TAKEN_AWAY, LOST, MOVED, FENCED)
"""Reasons to call a start off after which it may be tried again at once: elsewhere, or as it is now."""
RUSH = 20
"""Starts that are decided and not stored: while there are more, they go before the word that a gang was dispatched."""
RUSH_PAUSE = 5.0
"""Seconds for which that word waits, at most, and until the first pod of the gang has a node."""
SAFETY = 20.0
"""Seconds after which a wait for an event is checked all the same."""
NOT_IMPORTED = (
    "another controller started it, and no import record names it: it is counted and left as it is; "
    "shoal import --take gives it to Shoal"
)


class AppWrapperReconciler:
    def __init__(self, context: WrapperContext) -> None:
        self.context = context
        self.follow = Follow(context)
        self.dead_ends = DeadEnds(context)
        self.messages = Messages(context)
        self.components = Components(context, self.messages)
        self.dispatched: DispatchedRun | None = None
        if context.elsewhere is not None:
            self.dispatched = DispatchedRun(context, context.elsewhere, self.follow, self._call_off)
        self._told_of_groups = False
        self._removals: dict[str, int] = {}
        self._deleted: dict[Address, AppWrapper] = {}
        """AppWrappers that are gone, and of whose objects some may not be."""
        self._left: set[str] = set()
        """UIDs of AppWrappers that were said to be left as they are."""
        self._created: dict[str, tuple[int, float]] = {}
        """By UID: of which admission all objects are created, and since when. Whether the status says so yet or not."""

    async def reconcile(self, address: Address) -> float | None:
        """Safe to call at any time, as often as one likes. Returns seconds until it wants to be called again."""
        kind, key = address
        if address in self._deleted:
            return await self._follow_deletion(address)
        wrapper = await self.context.store.settled(kind, key)
        if wrapper is None:
            return None
        if admissions.is_newer(wrapper.status.admission) and not wrapper.metadata.deletion_timestamp:
            self._leave_to_newer(wrapper)
            return None
        match dialect(wrapper):
            case "v1beta2":
                return await self.components.reconcile(kind, wrapper)
            case None:
                return await self._refuse(kind, wrapper)
        if wrapper.metadata.deletion_timestamp:
            return await self._leave(kind, wrapper)
        status = wrapper.status
        if self._is_of_another(wrapper):
            return None
        if statuses.is_terminal(status):
            return await self._clean(kind, wrapper)
        if statuses.is_stopping(status):
            return await self._take_back(kind, wrapper)
        if status.can_run and is_suspended(wrapper):
            return await self._call_off(kind, wrapper, SUSPENDED, "Its queue stopped it.")
        if not status.can_run:
            if is_gated(wrapper):
                self._hold(wrapper)
                return None
            return await self._wait(kind, wrapper)
        if is_fenced(wrapper):
            said = "its hub was not heard for too long: it may run elsewhere"
            return await self._call_off(kind, wrapper, FENCED, said)
        record = admissions.read(status.admission)
        if record.cluster:
            return await self._run_elsewhere(kind, wrapper, record)
        if status.state in ("", "Pending"):
            return await self._go_on(kind, wrapper)
        if self.context.shared.stamps.is_imported(wrapper.metadata.uid):
            await self._follow_imported(wrapper)
        waits = [await self.follow.run(kind, wrapper), await self.dead_ends.look(wrapper.metadata.uid)]
        return min((wait for wait in waits if wait is not None), default=None)

    def _is_of_another(self, wrapper: AppWrapper) -> bool:
        """Was it started, or ended, by another controller, and not given to us? Then it is counted and left alone."""
        status = wrapper.status
        if status.admission or not (status.can_run or statuses.is_terminal(status)):
            return False
        if not self.context.facts.unstamped(wrapper) or self.context.shared.stamps.is_imported(wrapper.metadata.uid):
            return False
        if wrapper.metadata.uid not in self._left:
            self._left.add(wrapper.metadata.uid)
            self.context.tell_people(wrapper, "Warning", "NotImported", NOT_IMPORTED)
            log.warning("%s: %s", gang_key(wrapper), NOT_IMPORTED)
        return True

    def _leave_to_newer(self, wrapper: AppWrapper) -> None:
        """What we would write could take away what the release that wrote it needs."""
        if wrapper.metadata.uid not in self._left:
            self._left.add(wrapper.metadata.uid)
            self.context.tell_people(wrapper, "Warning", "StoredByNewerRelease", admissions.NEWER)
            log.warning("%s: %s", gang_key(wrapper), admissions.NEWER)

    def forget(self, address: Address, wrapper: AppWrapper) -> bool:
        """This AppWrapper is gone; True when it may have left objects behind."""
        self.follow.forget(wrapper.metadata.uid)
        self._removals.pop(wrapper.metadata.uid, None)
        self._left.discard(wrapper.metadata.uid)
        self._created.pop(wrapper.metadata.uid, None)
        if self.components.forget(wrapper.metadata.uid) or not admissions.read(wrapper.status.admission).objects:
            return False
        self._deleted[address] = wrapper
        return True

    async def _follow_deletion(self, address: Address) -> float | None:
        """Do at once what the garbage collector would do in its own time.

        What was orphaned on purpose no longer names the AppWrapper as its owner and is left alone.
        """
        wrapper = self._deleted[address]
        await self.context.objects.remove(wrapper)
        if self._deleted.get(address) is wrapper:
            del self._deleted[address]
        return 0.0  # one of the same name may have come meanwhile

    # --- waiting

    def _hold(self, wrapper: AppWrapper) -> None:
        """It is gated: what was decided for it meanwhile is void."""
        if self.context.decisions.admit(gang_key(wrapper), wrapper.metadata.uid) is not None:
            self.context.note(NotStored, wrapper)

    async def _wait(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        context, key, uid = self.context, gang_key(wrapper), wrapper.metadata.uid
        record = admissions.read(wrapper.status.admission)
        left = record.resume_at - context.clock.now()
        if left > 0:
            return left / SECOND
        strays = [
            (its_kind, obj)
            for its_kind, obj in context.shared.controlled_by(uid)
            if not obj.metadata.deletion_timestamp
        ]
        if strays:  # a create of an earlier start that arrived late
            await context.objects.remove_these(wrapper, strays)
            return CREATE_AGAIN
        if not is_queued_here(wrapper):
            return await self._as_its_queue_says(kind, wrapper)
        told = context.planning.engine.gang(key)
        overtaken = context.decisions.is_overtaken(key, uid)
        if overtaken:
            context.note(CalledOff, wrapper)
        elif told is not None and told.state in ("held", "stopping"):
            context.note(Outdated, wrapper)
        labels = missing_labels(wrapper, context.planning.engine.trees)
        if labels:
            wrapper = await context.store.labels(kind, wrapper, labels)
        admit = context.decisions.admit(key, uid) if not overtaken else None
        if admit is not None:
            if context.decisions.is_clearing(key, uid, context.clock.now(), quota=bool(context.planning.engine.trees)):
                if not wrapper.status.queue_job_state:
                    await self.messages.publish(kind, wrapper)  # a first status does not wait for anybody
                return VICTIMS_FIRST  # the gang that makes way wakes us; this is for a write that does not get through
            return await self._admit(kind, wrapper, admit)
        return await self.messages.publish(kind, wrapper)

    async def _as_its_queue_says(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        """Quota and room are its queue's to give: it starts once that has, and does not stand in this line."""
        if wrapper.spec.suspend:
            return None
        unknown = self.context.facts.unstamped(wrapper)
        if unknown:
            self.context.tell_people(wrapper, "Warning", "CreatorUnknown", unknown)
            return None
        return await self._admit(kind, wrapper, Admit(gang=gang_key(wrapper), uid=wrapper.metadata.uid))

    async def _admit(self, kind: Kind, wrapper: AppWrapper, admit: Admit) -> float | None:
        """The decision becomes true when it is stored. If the object changed meanwhile, it is void and made again."""
        context, now = self.context, self.context.clock.now
        refused = await context.objects.forbidden(wrapper)
        if refused is not None:
            return await self._fail(kind, wrapper, refused)
        status = wrapper.status
        if not status.queue_job_state:
            status = statuses.first_seen(status, wrapper.spec.priority, now)
        cluster = self._cluster_of(wrapper)
        if cluster is None:
            context.note(NotStored, wrapper)  # no cluster has room for it any more
            return None
        record = admission_of(admit, wrapper, now(), () if cluster else added_names(wrapper, context.settings))
        wraps = not cluster or (context.elsewhere is not None and context.elsewhere.is_bare(cluster))
        fence = context.elsewhere.fence(wrapper) if cluster and context.elsewhere is not None else 0
        record = msgspec.structs.replace(record, cluster=cluster, objects=record.objects if wraps else (), fence=fence)
        if not await context.store.has_status(kind):  # our own writes count as edits there
            record = msgspec.structs.replace(record, generation=0)
        status = statuses.admitted(statuses.ranked(status, context.facts.priority(wrapper, now())), record, now)
        try:
            stored = await context.store.status(kind, wrapper, status)
        except (Conflict, NotFound):
            await context.store.refreshed(kind, wrapper)
            context.note(NotStored, wrapper)
            return None
        except (Unknown, ServerError):
            context.note(WriteUnknown, wrapper)
            raise
        if not stored.status.admission:
            context.note(NotKept, wrapper)
            raise ShoalError(
                f"the server took the admission of {_name(wrapper)} and did not keep it; nothing is created"
            )
        first = stored.status.controller_first_timestamp
        context.metrics.admitted((now() - parse_time(first)) / SECOND if first else 0.0)
        if cluster:
            return await self._run_elsewhere(kind, stored, admissions.read(stored.status.admission))
        return await self._dispatch(kind, stored)

    def _cluster_of(self, wrapper: AppWrapper) -> str | None:
        """Where the plan has it start: empty, in this cluster; None: it asked for no room here, and has none."""
        destinations = self.context.intake.destinations
        told = self.context.planning.engine.gang(gang_key(wrapper))
        if destinations is None or not destinations.is_away(told):
            return ""
        return destinations.cluster(wrapper.metadata.uid) or None

    async def _run_elsewhere(self, kind: Kind, wrapper: AppWrapper, record: admissions.StoredAdmission) -> float | None:
        if self.dispatched is None:
            return None  # it stays where it is until this controller sends AppWrappers again
        unknown = self.context.facts.unstamped(wrapper)
        if unknown and not wrapper.status.is_dispatched:
            return await self._call_off(kind, wrapper, "CreatorUnknown", unknown)
        return await self.dispatched.run(kind, wrapper, record)

    # --- starting

    async def _go_on(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        """Admitted, and not known to be started: by us a moment ago, or by a leader that died."""
        preempt = self.context.decisions.preempt(gang_key(wrapper), wrapper.metadata.uid)
        if preempt is not None:
            return await self.follow.preempt(kind, wrapper, preempt)
        unknown = self.context.facts.unstamped(wrapper)  # a status proves nothing: others may write it, too
        if unknown:
            return await self._call_off(kind, wrapper, "CreatorUnknown", unknown)
        refused = await self.context.objects.forbidden(wrapper)
        if refused is not None:
            return await self._fail(kind, wrapper, refused)
        return await self._dispatch(kind, wrapper)

    async def _dispatch(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        """The admission is stored: create everything. Creating twice is harmless."""
        context, uid = self.context, wrapper.metadata.uid
        record = admissions.read(wrapper.status.admission)
        if record.generation not in (0, wrapper.metadata.generation):
            return await self._call_off(kind, wrapper, "SpecChanged", "its spec was edited after it was admitted")
        if self._created.get(uid, (0, 0.0))[0] != record.at:
            created = await self._create(kind, wrapper, record)
            if uid not in self._created:
                return created
        if left := self._rush(uid):
            return left
        try:
            await context.store.status(kind, wrapper, statuses.dispatched(wrapper.status, context.clock.now))
        except NotFound:
            await context.objects.remove(wrapper)
            return None
        self._created.pop(uid, None)
        context.metrics.dispatched((context.clock.now() - record.at) / SECOND)
        return None

    def _rush(self, uid: str) -> float:
        """Seconds for which the word that all is created waits, because many others are to be started first."""
        if self.context.decisions.unstored <= RUSH:
            return 0.0
        if any(pod.bound_since for pod in self.context.planning.pods(uid)):
            return 0.0
        return max(0.0, self._created[uid][1] + RUSH_PAUSE - self.context.clock.monotonic())

    async def _create(self, kind: Kind, wrapper: AppWrapper, record: admissions.StoredAdmission) -> float | None:
        """Everything that it wraps; noted in `_created` where all is there. Otherwise: when to look again."""
        context = self.context
        self._created.pop(wrapper.metadata.uid, None)
        try:
            made = wrapped_objects(wrapper, bound_whole=is_bound_whole(wrapper, context.settings))
            objects = placed(wrapper, made, record, await self._placing())
        except BadInput as error:
            return await self._fail(kind, wrapper, RefusedObject(_name(wrapper), str(error), permanent=True))
        for maker in await self._pod_makers(objects):
            context.shared.watch(maker)
        refused = await context.objects.create(wrapper, objects)
        current = context.caches.wrapper_by_uid(wrapper.metadata.uid)
        if current is None or current.metadata.deletion_timestamp:
            await context.objects.remove(wrapper)  # deleted while we created: nothing of it stays
            return None
        if refused:
            return await self._refused(kind, wrapper, record, refused)
        self._created[wrapper.metadata.uid] = (record.at, context.clock.monotonic())
        return None

    async def _placing(self) -> AppWrapperSettings:
        """As chosen; without PodGroups where the server has none: pods of a gang are then bound one by one."""
        settings = self.context.settings
        api_version, kind = pod_group_kind(settings)
        if not settings.pod_groups or await self.context.objects.kinds.kind_of(api_version, kind) is not None:
            return settings
        if not self._told_of_groups:
            log.warning("gangs start without a PodGroup: the API server serves no %s in %s", kind, api_version)
        self._told_of_groups = True
        return msgspec.structs.replace(settings, pod_groups=False)

    async def _pod_makers(self, objects: list[Json]) -> list[Kind]:
        """Kinds of those objects that make pods: they stand between these and the gang."""
        makers = [(str(obj["apiVersion"]), str(obj["kind"])) for obj in objects if templates(obj)]
        found = [await self.context.objects.kinds.kind_of(*maker) for maker in dict.fromkeys(makers)]
        return [kind for kind in found if kind is not None and kind.namespaced]

    async def _follow_imported(self, wrapper: AppWrapper) -> None:
        """Pods that were made for another controller carry no mark of ours: only their owners say whose they are."""
        for kind in await self._pod_makers([opened(item.generic_template) for item in wrapped_items(wrapper)]):
            await self.context.shared.follow(kind)

    async def _refused(
        self, kind: Kind, wrapper: AppWrapper, record: admissions.StoredAdmission, refused: list[RefusedObject]
    ) -> float | None:
        """A permanent refusal ends it; others are tried again for a bounded time, then the gang goes back whole."""
        permanent = next((one for one in refused if one.permanent), None)
        if permanent is not None:
            return await self._fail(kind, wrapper, permanent)
        if self.context.clock.now() < record.at + int(self.context.settings.create_seconds * SECOND):
            return CREATE_AGAIN
        message = f"{refused[0].name} creation failure: {refused[0].message}"
        return await self._call_off(kind, wrapper, "ItemCreationFailure.", message)

    async def _call_off(self, kind: Kind, wrapper: AppWrapper, reason: str, message: str) -> float | None:
        """Admitted, but it cannot start: back to the queue, whole."""
        context = self.context
        status = statuses.preempt_candidate(
            wrapper.status,
            context.clock.now,
            reason=reason,
            message=message,
            sender=f"before PreemptQueueJobs - CanRun: false -- {reason.rstrip('.')}",
        )
        if reason not in NO_SETBACK:
            status = statuses.set_back(status, context.resume_at(wrapper))
        await context.store.status(kind, wrapper, status)
        context.metrics.requeued(reason)
        context.tell_people(wrapper, "Warning", reason.rstrip("."), message)
        return 0.0

    # --- ending

    async def _fail(self, kind: Kind, wrapper: AppWrapper, refused: RefusedObject) -> float | None:
        context = self.context
        message = f"{refused.name} creation failure: {refused.message}"
        status = wrapper.status
        if not status.queue_job_state:
            status = statuses.first_seen(status, wrapper.spec.priority, context.clock.now)
        stored = await context.store.status(kind, wrapper, statuses.failed(status, context.clock.now, message=message))
        context.metrics.failed()
        context.tell_people(wrapper, "Warning", "ItemCreationFailure", message)
        return await self._clean(kind, stored)

    async def _refuse(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        """Neither dialect, or both: it can never work."""
        if not statuses.is_terminal(wrapper.status) and not wrapper.metadata.deletion_timestamp:
            return await self._fail(kind, wrapper, RefusedObject(_name(wrapper), NEITHER, permanent=True))
        return None

    async def _clean(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        """Failed and Deleted leave nothing behind; Completed leaves its objects for the user to read."""
        uid = wrapper.metadata.uid
        if wrapper.status.state == "Completed" or self.context.intake.is_clean(uid):
            return None
        again = await self._remove(kind, wrapper)
        if again is None:
            self.context.note(ObjectsGone, wrapper)
        return again

    async def _take_back(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        """Back to the queue, once every object and every pod of the last run is gone."""
        again = await self._remove(kind, wrapper)
        if again is None:
            aside = int(min(STEP_ASIDE, self.context.settings.backoff_seconds) * SECOND)
            status = statuses.back_in_queue(wrapper.status, self.context.clock.now, aside=aside)
            await self.context.store.status(kind, wrapper, status)
            return 0.0
        return again

    async def _remove(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        """One more attempt to remove everything; None once nothing is left, else when to look again."""
        uid = wrapper.metadata.uid
        if self.dispatched is not None and not await self.dispatched.remove(kind, wrapper):
            return self._removal_pause(uid)
        gone = await self.context.objects.remove(wrapper)
        if not gone:
            self.context.note(ObjectsRemain, wrapper)
            return self._removal_pause(uid)
        self._removals.pop(uid, None)
        if any(pod.is_live for pod in self.context.planning.pods(uid)):
            return SAFETY  # the pods' own end wakes us
        return None

    def _removal_pause(self, uid: str) -> float:
        """Seconds until the next look at what should go and is still there: longer each time."""
        tries = self._removals.get(uid, 0)
        self._removals[uid] = tries + 1
        return REMOVE_AGAIN[min(tries, len(REMOVE_AGAIN) - 1)]

    async def _leave(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        """What it wrapped goes with it, by the owner references; finalizers of others may keep both, but no room."""
        if self.dispatched is not None and is_held(wrapper):
            return await self.dispatched.leave(kind, wrapper)
        if await self.context.objects.all_leaving(wrapper):
            self.context.note(ObjectsLeave, wrapper)
            return SAFETY  # the pods' own end wakes us
        return self._removal_pause(wrapper.metadata.uid)


def _name(wrapper: AppWrapper) -> str:
    return f"{wrapper.metadata.namespace}/{wrapper.metadata.name}"
