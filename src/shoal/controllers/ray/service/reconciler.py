"""The RayService reconciler: one pass after another, from the clusters over Serve to the Services and the status.

Level-triggered; what Serve says is asked in every pass, two seconds apart. The names of clusters are stored before they
are made, and a switch is complete before it is stored, so a crash between any two writes is repaired by the next pass.
What goes wrong on the way is noted and told: the status of what serves goes on being true.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random

from shoal.api import kinds, ray_gang
from shoal.api.kind import Key
from shoal.api.labels import KUEUE_QUEUE
from shoal.api.meta import Json
from shoal.api.objects import label
from shoal.api.times import parse_time
from shoal.controllers.ray import names, view
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.cluster import status as cluster_status
from shoal.controllers.ray.owned_writer import OwnedWriter, key_of
from shoal.controllers.ray.service import applications, spec_changes
from shoal.controllers.ray.service.clusters import ServiceClusters
from shoal.controllers.ray.service.entrances import Entrances
from shoal.controllers.ray.service.queue_reason import QueueReasons
from shoal.controllers.ray.service.rules import first_problem, initializing_timeout
from shoal.controllers.ray.service.serve_api import ServeApi
from shoal.controllers.ray.service.service_pass import ServiceMemory, ServicePass, begin_pass
from shoal.controllers.ray.service.service_status import (
    ACTIVE,
    INITIALIZING,
    INVALID,
    PENDING,
    READY,
    ROLLBACK,
    SUSPENDED,
    TIMED_OUT,
    UPGRADING,
    copied_cluster_status,
    differs_in_words,
    settle_conditions,
    worth_a_write,
)
from shoal.controllers.ray.service.serving import ServeApplications, shares_of
from shoal.controllers.ray.service.steps import WHOLE, is_promoted
from shoal.controllers.ray.service.suspension import Suspension
from shoal.controllers.ray.service.upgrade_strategy import is_incremental
from shoal.controllers.ray.settings import CONTROLLER_NAME, RaySettings
from shoal.kube.clock import Clock
from shoal.kube.errors import NotFound
from shoal.kube.events import Recorder

log = logging.getLogger(__name__)

PERIOD = 2.0
SOON = 1.0
WORDS_WAIT = 5.0
"""Seconds after a write in which a status waits that differs in nothing but what it is still waiting for."""
PROGRESS_WAIT = 30.0
"""The same where nothing is wrong and pods or applications are on their way, or RayClusters wait for the operator."""


class RayServiceReconciler:
    def __init__(
        self,
        writer: OwnedWriter,
        caches: Caches,
        recorder: Recorder,
        api: ServeApi,
        queues: QueueReasons,
        settings: RaySettings,
        clock: Clock,
        random: Random | None = None,
        in_a_rush: Callable[[], bool] = lambda: False,
    ) -> None:
        self._writer, self._caches, self._recorder, self._queues = writer, caches, recorder, queues
        self._settings, self._clock, self._in_a_rush = settings, clock, in_a_rush
        self._serving = ServeApplications(writer, caches, recorder, api, settings, clock)
        self._clusters = ServiceClusters(writer, caches, recorder, settings, clock, self._serving, random)
        self._suspension = Suspension(writer, caches, recorder, settings, self._clusters)
        self._entrances = Entrances(writer, caches, recorder, settings, clock)
        self._memory: dict[Key, ServiceMemory] = {}

    async def reconcile(self, key: Key) -> float | None:
        service = self._caches.ray_services.get(key)
        if service is None:
            self._memory.pop(key, None)
            return None
        if view.spec(service).get("managedBy") not in (None, CONTROLLER_NAME):
            return None
        if not self._caches.knows_endpoints():
            return PERIOD
        at = begin_pass(service, self._remembered(key, service), self._clock.now())
        wait = await self._one_pass(at)
        at.memory.told = at.warned
        return wait

    async def _one_pass(self, at: ServicePass) -> float | None:
        service = at.service
        used = (at.name(ACTIVE), at.name(PENDING))
        at.memory.sent = {name: config for name, config in at.memory.sent.items() if name in used}
        none_left = await self._clusters.sweep(at, all_at_once=view.deleting(service))
        if view.deleting(service):
            if not none_left:
                return PERIOD
            await self._finish(service)
            return None
        if names.SERVICE_FINALIZER not in (view.metadata(service).get("finalizers") or []):
            held = view.metadata(service).get("finalizers") or []
            wanted = [*held, names.SERVICE_FINALIZER]
            await self._writer.set_finalizers(kinds.RAY_SERVICE, service, wanted, self._caches.ray_services)
            return 0.0
        problem = first_problem(service, self._settings)
        if problem is not None:
            await self._refuse(at, problem.event, problem.message)
            return None
        if await self._suspension.ends_pass(at):
            told = await self._publish(at)
            return None if at.conditions.is_true(SUSPENDED) else 0.0 if told else PERIOD
        if at.conditions.reason(READY) == TIMED_OUT:
            return None if none_left else PERIOD
        return await self._serve(at)

    async def _serve(self, at: ServicePass) -> float:
        """The pass of a service that is to run."""
        at.find_clusters(self._caches)
        await self._clusters.bring_about(at)
        incremental = is_incremental(at.service, self._settings)
        rollback = incremental and self._decide_rollback(at)
        for cluster in (at.active, at.pending):
            if cluster is not None:
                await self._serving.label_head(at, cluster)
        active_ready, pending_ready = await self._ask_serve(at, incremental, rollback)
        if incremental:
            await self._step(at, pending_ready, rollback)
        is_first = not at.name(ACTIVE)
        promoted = await self._switch(at, active_ready, pending_ready, incremental, rollback)
        if rollback and self._is_rolled_back(at):
            at.status[PENDING], at.pending = {}, None
            at.conditions.drop(ROLLBACK)
        elif not promoted:
            self._plan_next(at, incremental)
        if not incremental:
            await self._leave_routes(at, active_ready)
        if promoted and is_first and self._expects_endpoints(at):
            return SOON
        await self._publish_running(at)
        due = at.name(PENDING) and at.pending is None and not at.troubles
        return 0.0 if due or promoted else PERIOD

    # --- steps of a pass

    def _decide_rollback(self, at: ServicePass) -> bool:
        """During an incremental upgrade the spec decides in every pass where it goes."""
        if not (at.conditions.is_true(UPGRADING) and at.name(ACTIVE) and at.pending is not None):
            return False
        leads_back = spec_changes.rolls_back(at.service, at.pending)
        if at.active is None:
            told = f"Active RayCluster {at.name(ACTIVE)} is gone; {at.name(PENDING)} takes over when it is ready"
            if leads_back or at.part(PENDING).get("targetCapacity") != WHOLE:
                at.warn(self._recorder, "RollbackImpossible", told)
            leads_back = False
        if leads_back:
            told = "The spec is no longer that of the pending cluster; traffic goes back to the active one"
            at.conditions.put(ROLLBACK, "True", "DesiredClusterSpecChanged", told)
        else:
            at.conditions.drop(ROLLBACK)
        return leads_back

    async def _ask_serve(self, at: ServicePass, incremental: bool, rollback: bool) -> tuple[bool, bool]:
        """Whether active and pending cluster serve; the configuration goes to one of them."""
        both = at.active is not None and at.pending is not None
        pending_ready = active_ready = False
        alone = incremental and at.active is None and at.pending is not None
        if alone and at.part(PENDING).get("targetCapacity") != WHOLE:  # nothing else serves: all of it is needed
            at.part(PENDING)["targetCapacity"] = WHOLE
            at.memory.sent.pop(at.name(PENDING), None)
        if at.pending is not None:
            pending_ready = await self._serving.ask(at, PENDING, submit=not rollback)
        if at.active is not None and (incremental if both else not self._is_new_cluster_due(at)):
            own = spec_changes.matches(at.service, at.active)  # another spec's configuration is not for this cluster
            active_ready = await self._serving.ask(at, ACTIVE, submit=(rollback and own) if both else True)
        else:
            at.part(ACTIVE).pop("applicationStatuses", None)
        return active_ready, pending_ready

    async def _step(self, at: ServicePass, pending_ready: bool, rollback: bool) -> None:
        if at.active is not None:
            at.part(ACTIVE).setdefault("targetCapacity", WHOLE)
        both = at.active is not None and at.pending is not None
        if both and await self._entrances.is_open(at.service):
            await self._serving.step_capacity(at, rollback=rollback)
        await self._entrances.of_each_cluster(at)
        if at.active is not None or at.pending is not None:
            await self._entrances.route(at, pending_ready=pending_ready, rollback=rollback)

    async def _switch(
        self, at: ServicePass, active_ready: bool, pending_ready: bool, incremental: bool, rollback: bool
    ) -> bool:
        """Point the Services at the cluster that serves. True when that made the pending one active."""
        if incremental and at.active is not None and at.pending is not None:
            shares = shares_of(at.status, self._clock.now())
            moves = not rollback and at.part(PENDING).get("trafficRoutedPercent") is not None and is_promoted(shares)
        else:
            moves = pending_ready
        if moves and at.pending is not None:
            if not await self._entrances.lead_to(at, at.pending):
                return False
            log.info("RayService %s is served by RayCluster %s", key_of(at.service), at.name(PENDING))
            at.promote()
            if incremental:
                await self._entrances.route(at, pending_ready=True, rollback=False)
            return True
        if at.active is not None and active_ready:
            await self._entrances.lead_to(at, at.active)
        return False

    def _plan_next(self, at: ServicePass, incremental: bool) -> None:
        """Does the spec ask for another cluster than there is?"""
        if at.pending is None:
            if not at.name(PENDING) and (at.active is None or self._is_new_cluster_due(at)):
                self._clusters.prepare(at)
            return
        wants = spec_changes.action(at.service, at.pending, self._settings, is_active=False)
        if wants != "newCluster" or (incremental and at.active is not None):
            return
        if at.active is not None and spec_changes.matches(at.service, at.active):
            at.status[PENDING], at.pending = {}, None  # the spec is what already serves
        else:
            self._clusters.prepare(at)

    def _is_new_cluster_due(self, at: ServicePass) -> bool:
        if at.active is None or at.pending is not None:
            return False
        return spec_changes.action(at.service, at.active, self._settings, is_active=True) == "newCluster"

    def _is_rolled_back(self, at: ServicePass) -> bool:
        shares = shares_of(at.status, self._clock.now())
        back = (shares.active.capacity, shares.active.traffic) == (WHOLE, WHOLE)
        empty = (shares.pending.capacity, shares.pending.traffic) == (0, 0)
        return back and (empty or at.pending is None or not self._serving.head_is_ready(at.pending))

    async def _leave_routes(self, at: ServicePass, active_ready: bool) -> None:
        """The type is incremental no longer: what was made for it goes, once the plain Service leads to Serve."""
        stepped = at.part(ACTIVE).get("targetCapacity") is not None
        if stepped and active_ready and await self._suspension.remove_routes(at):
            for field in ("targetCapacity", "trafficRoutedPercent", "lastTrafficMigratedTime"):
                at.part(ACTIVE).pop(field, None)

    # --- telling

    async def _publish_running(self, at: ServicePass) -> None:
        at.status["numServeEndpoints"] = self._entrances.endpoints(at)
        for role, cluster in ((ACTIVE, at.active), (PENDING, at.pending)):
            if cluster is not None:
                at.part(role)["rayClusterStatus"] = copied_cluster_status(cluster)
        at.progresses = _progresses(at)
        settle_conditions(at.status, at.conditions, _waits_for(at, await self._queues.why_waiting(at.pending)))
        self._end_late_start(at)
        await self._publish(at)

    def _expects_endpoints(self, at: ServicePass) -> bool:
        """A first cluster that has begun to serve has endpoints a moment later: both are one write, and until then the
        pass is done again. Once only, so that a Service without pods is told."""
        at.memory.expects_endpoints = not at.memory.expects_endpoints and not self._entrances.endpoints(at)
        return at.memory.expects_endpoints

    def _end_late_start(self, at: ServicePass) -> None:
        """A service that has not begun to serve within its time is given up; suspend and resume starts it again."""
        timeout, ready = initializing_timeout(at.service), at.conditions.find(READY)
        if timeout is None or at.status["numServeEndpoints"] or ready.get("reason") != INITIALIZING:
            return
        if (self._clock.now() - parse_time(str(ready["lastTransitionTime"]))) / 1_000_000 < timeout:
            return
        told = (
            f"RayService failed to become ready within the configured timeout of {timeout:.0f} s: it has no serve "
            "endpoint, and its clusters are deleted"
        )
        at.conditions.put(READY, "False", TIMED_OUT, told)
        at.status.update({ACTIVE: {}, PENDING: {}})
        at.warn(self._recorder, "RayServiceInitializingTimeout", told)

    async def _refuse(self, at: ServicePass, event: str, message: str) -> None:
        at.warn(self._recorder, event, f"{key_of(at.service)}: {message}")
        at.conditions.put(READY, "False", INVALID, message)
        await self._publish(at)

    async def _publish(self, at: ServicePass) -> bool:
        """Write the status if it says something new; True when it was written."""
        at.status["observedGeneration"] = view.generation(at.service)
        old, told = at.service.get("status") or {}, at.memory.wrote
        if not worth_a_write(old, at.status):
            return False
        patience = PROGRESS_WAIT if at.progresses or self._in_a_rush() else WORDS_WAIT
        if told is not None and self._clock.monotonic() < told + patience and differs_in_words(old, at.status):
            return False
        caches, now = self._caches, self._clock.now()
        at.memory.wrote = self._clock.monotonic()
        await self._writer.write_status(kinds.RAY_SERVICE, at.service, at.status, now, caches.ray_services)
        return True

    async def _finish(self, service: Json) -> None:
        held = view.metadata(service).get("finalizers") or []
        if names.SERVICE_FINALIZER not in held:
            return
        kept = [finalizer for finalizer in held if finalizer != names.SERVICE_FINALIZER]
        try:
            await self._writer.set_finalizers(kinds.RAY_SERVICE, service, kept, self._caches.ray_services)
        except NotFound:
            return

    def _remembered(self, key: Key, service: Json) -> ServiceMemory:
        held = self._memory.get(key)
        if held is None or held.uid != view.uid(service):
            held = self._memory[key] = ServiceMemory(view.uid(service))
        return held


def _progresses(at: ServicePass) -> bool:
    cluster = at.pending
    return not (at.troubles or (cluster is not None and (view.suspended(cluster) or ray_gang.why_waiting(cluster))))


def _waits_for(at: ServicePass, queued: str) -> str:
    """Why the cluster that is to serve does not yet, in words; `queued`: what its queue says."""
    if at.troubles:
        return "; ".join(at.troubles)
    cluster = at.pending
    if cluster is None:
        return ""
    if queued:
        return f"RayCluster {view.name(cluster)} waits in queue {label(cluster, KUEUE_QUEUE)}: {queued}"
    if view.suspended(cluster):
        return f"RayCluster {view.name(cluster)} is suspended, for example until its queue starts it"
    room = ray_gang.why_waiting(cluster)
    if room:
        return f"RayCluster {view.name(cluster)} waits for room: {room}"
    if (cluster.get("status") or {}).get("state") != "ready":
        return cluster_status.why_not_ready(cluster)
    why = applications.why_not_ready(at.part(PENDING).get("applicationStatuses") or {})
    return f"Serve applications on RayCluster {view.name(cluster)} are not RUNNING yet" + (f": {why}" if why else "")
