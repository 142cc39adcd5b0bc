"""The RayCluster reconciler: brings pods and their surroundings to what the spec says, and tells how far it got.

Level-triggered and safe to call at any time. The head is created first, the workers after it in the same pass. It
never creates a pod for a place that a terminating one still holds, and never deletes a pod that it did not look at
by UID.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable

import msgspec

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.controllers.ray import (
    auth,
    counts,
    deletion,
    idle,
    names,
    observed,
    pod_group,
    pods,
    status,
    upgrade,
    validation,
    view,
)
from shoal.controllers.ray.autoscaler import mount_token
from shoal.controllers.ray.backoff import Replacements
from shoal.controllers.ray.belongings import Belongings
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.gang_marks import gang_of, mark
from shoal.controllers.ray.settings import CONTROLLER_NAME, Settings
from shoal.controllers.ray.slots import PodNames
from shoal.controllers.ray.status import Failure
from shoal.controllers.ray.workers import Slot, plan_group
from shoal.controllers.ray.writes import Stranger, Writes
from shoal.kube.clock import Clock
from shoal.kube.errors import ApiError, KubeError
from shoal.kube.events import Recorder

log = logging.getLogger(__name__)

DEGRADED_AFTER = 60.0


class PodTrouble(Exception):
    """A pass that had to stop: why, in the words of the condition, and what caused it."""

    def __init__(self, reason: str, error: Exception) -> None:
        super().__init__(str(error))
        self.failure = Failure(reason, str(error))
        self.error = error


class _Memory(msgspec.Struct):
    """What is remembered of a cluster between passes; losing it is harmless."""

    uid: str
    progress_since: float | None = None
    degraded_since: float | None = None
    told_problems: tuple[str, ...] = ()
    told_warnings: tuple[str, ...] = ()


class ClusterReconciler:
    def __init__(self, writes: Writes, caches: Caches, recorder: Recorder, settings: Settings, clock: Clock) -> None:
        self._writes, self._caches, self._recorder = writes, caches, recorder
        self._settings, self._clock = settings, clock
        self._belongings = Belongings(writes, caches, recorder, settings, clock)
        self._names = PodNames()
        self._replacements = Replacements(clock)
        self._memory: dict[Key, _Memory] = {}

    async def reconcile(self, key: Key) -> float | None:
        cluster = self._caches.clusters.get(key)
        memory = self._remembered(key, cluster)
        if cluster is None or memory is None or not is_ours(cluster):
            return None
        if view.deleting(cluster):
            return await deletion.finish(
                cluster, self._writes, self._caches, self._recorder, self._settings, self._clock
            )
        problems, reason = self._problems(cluster)
        if problems:
            await self._refuse(cluster, memory, problems, reason)
            return None
        self._warn(cluster, memory)
        if deletion.needs_finalizer(cluster, self._settings):
            await deletion.add_finalizer(cluster, self._writes, self._caches)
            return 0.0
        settled, wait = await idle.settle(
            cluster, self._writes, self._caches, self._recorder, self._settings, self._clock
        )
        if settled is None:
            return None
        cluster = settled
        trouble: PodTrouble | None = None
        try:
            wait = _sooner(wait, await self._belongings.ensure(cluster))
            wait = _sooner(wait, await self._pods(cluster))
        except PodTrouble as found:
            trouble = found
        except (Stranger, ApiError) as error:
            trouble = PodTrouble(status.BELONGINGS, error)
        again = await self._publish(cluster, memory, trouble.failure if trouble else None)
        if trouble is not None:
            raise trouble.error
        return _sooner(wait, again)

    # --- pods

    async def _pods(self, cluster: Json) -> float | None:
        """One pass over the pods. Returns seconds until it is worth looking again."""
        members = self._caches.pods_of(cluster)
        if self._is_suspending(cluster):
            await self._delete_all(cluster, members, "DeletedPod", "the cluster is suspended")
            return None
        if status.condition_status(cluster, status.SUSPENDED) == "True" and view.suspended(cluster):
            return None
        heads = [pod for pod in members if view.labels(pod).get(names.NODE_TYPE) == names.HEAD]
        if upgrade.recreates(cluster) and await self._recreate(cluster, heads, members):
            return None
        go_on, wait = await self._head(cluster, heads)
        if not go_on:
            return wait
        return _sooner(wait, await self._workers(cluster, members))

    def _is_suspending(self, cluster: Json) -> bool:
        if status.condition_status(cluster, status.SUSPENDING) == "True":
            return True
        return status.starts_suspending(cluster)

    async def _recreate(self, cluster: Json, heads: list[Json], members: list[Json]) -> bool:
        """Replace everything when the spec changed under strategy Recreate. True when the pass ends here."""
        head = next((pod for pod in heads if not view.deleting(pod)), None)
        if head is None or not upgrade.drifted(cluster, head):
            return False
        if view.annotations_of(head).get(names.OPERATOR_VERSION) != self._settings.version:
            marks = {names.UPGRADE_HASH: upgrade.spec_hash(cluster), names.OPERATOR_VERSION: self._settings.version}
            await self._writes.patch(kinds.POD, head, {"metadata": {"annotations": marks}}, self._caches.pods)
            return False
        await self._delete_all(cluster, members, "DeletedPod", "the spec changed and its strategy is Recreate")
        return True

    async def _head(self, cluster: Json, heads: list[Json]) -> tuple[bool, float | None]:
        """Exactly one head. Returns whether the workers may be looked at, and when to come back."""
        staying = [pod for pod in heads if not view.deleting(pod)]
        if len(staying) > 1:
            keep = min(staying, key=lambda pod: (not observed.is_ready(pod), observed.is_dead(pod)))
            for pod in staying:
                if pod is not keep:
                    await self._delete_pod(
                        cluster, pod, "DeletedHeadPod", "FailedDeleteHeadPod", "a cluster has one head"
                    )
            staying = [keep]
        if staying and observed.is_dead(staying[0]):
            if self._head_stays_lost(cluster) and observed.has_container(staying[0], observed.SUBMITTER):
                return False, None  # the submitter's log and exit code are in it
            why = observed.why_dead(staying[0])
            self._replacements.note(view.uid(cluster), names.HEAD_GROUP)
            await self._delete_pod(cluster, staying[0], "DeletedHeadPod", "FailedDeleteHeadPod", why)
            return False, None
        if heads:
            return True, None
        if self._head_stays_lost(cluster):
            return False, None
        wait = self._replacements.wait(view.uid(cluster), names.HEAD_GROUP)
        if wait > 0:
            return False, wait
        await self._create_head(cluster)
        return True, None

    def _head_stays_lost(self, cluster: Json) -> bool:
        """Once it was up there is no second head: where a job's submitter ran in it, that would run the job again."""
        provisioned = status.condition_status(cluster, status.PROVISIONED) == "True"
        return provisioned and view.annotations_of(cluster).get(names.NO_HEAD_RESTART, "").lower() == "true"

    async def _create_head(self, cluster: Json) -> None:
        pod = pods.head_pod(cluster, self._settings)
        slot = Slot(names.HEAD_GROUP, 0)
        if not view.name(pod):
            taken = {view.name(held) for held in self._caches.pods_of(cluster)}
            pod["metadata"]["name"] = self._names.choose(cluster, slot, pod["metadata"]["generateName"], taken)
        if upgrade.recreates(cluster):
            pod["metadata"]["annotations"][names.UPGRADE_HASH] = upgrade.spec_hash(cluster)
            pod["metadata"]["annotations"][names.OPERATOR_VERSION] = self._settings.version
        self._finish(pod, cluster, status.group_hash(view.head(cluster)))
        try:
            made = await self._writes.create(kinds.POD, pod, cluster, self._caches.pods)
        except (ApiError, Stranger) as error:
            self._recorder.event(cluster, "Warning", "FailedToCreateHeadPod", f"Failed to create the head pod: {error}")
            raise PodTrouble("FailedCreateHeadPod", error) from error
        self._names.note_used(cluster, view.name(pod))
        if made:
            self._recorder.event(cluster, "Normal", "CreatedHeadPod", f"Created head pod {view.name(pod)}")

    async def _workers(self, cluster: Json, members: list[Json]) -> float | None:
        known = {view.group_name(group) for group in view.groups(cluster)}
        workers = [pod for pod in members if view.labels(pod).get(names.NODE_TYPE) == names.WORKER]
        wait: float | None = None
        slots: list[tuple[Json, Slot]] = []
        for group in view.groups(cluster):
            name = view.group_name(group)
            mine = [pod for pod in workers if view.labels(pod).get(names.GROUP) == name]
            plan = plan_group(cluster, group, mine, self._settings)
            if any(observed.is_dead(pod) for pod, _ in plan.delete):
                self._replacements.note(view.uid(cluster), name)
            await self._delete_workers(cluster, plan.delete)
            pause = self._replacements.wait(view.uid(cluster), name) if plan.create else 0.0
            if pause > 0:
                wait = _sooner(wait, pause)
            else:
                slots += [(group, slot) for slot in plan.create]
        leftover = [
            (pod, "its worker group was removed from the spec")
            for pod in workers
            if view.labels(pod).get(names.GROUP) not in known and not view.deleting(pod)
        ]
        await self._delete_workers(cluster, leftover)
        await self._create_workers(cluster, slots, members)
        return wait

    async def _delete_workers(self, cluster: Json, doomed: list[tuple[Json, str]]) -> None:
        await self._delete_pods(cluster, doomed, "DeletedWorkerPod", "FailedDeleteWorkerPod")

    async def _create_workers(self, cluster: Json, slots: list[tuple[Json, Slot]], members: list[Json]) -> None:
        """Create side by side, a bounded number at a time; the first refusal stops the rest."""
        if not slots:
            return
        taken = {view.name(pod) for pod in members}
        for group in view.groups(cluster):
            taken.update(view.workers_to_delete(group))
        replicas = {view.labels(pod).get(names.REPLICA_NAME, "") for pod in members}
        hashes = {view.group_name(group): status.group_hash(group) for group in view.groups(cluster)}
        bodies = [self._worker(cluster, group, slot, taken, replicas, hashes) for group, slot in slots]
        created: list[str] = []
        refused: list[Exception] = []
        waiting = iter(bodies)

        async def create_next() -> None:
            for pod in waiting:
                if refused:
                    return
                try:
                    if await self._writes.create(kinds.POD, pod, cluster, self._caches.pods):
                        created.append(view.name(pod))
                    self._names.note_used(cluster, view.name(pod))
                except (KubeError, Stranger) as error:
                    refused.append(error)

        await asyncio.gather(*(create_next() for _ in range(min(self._settings.create_limit, len(bodies)))))
        if created:
            listed = ", ".join(sorted(created)[:5]) + (f" and {len(created) - 5} more" if len(created) > 5 else "")
            self._recorder.event(cluster, "Normal", "CreatedWorkerPod", f"Created worker pods {listed}")
        if refused:
            message = f"Failed to create a worker pod: {refused[0]}"
            self._recorder.event(cluster, "Warning", "FailedToCreateWorkerPod", message)
            raise PodTrouble("FailedCreateWorkerPod", refused[0])

    def _worker(
        self,
        cluster: Json,
        group: Json,
        slot: Slot,
        taken: set[str],
        replicas: set[str],
        hashes: dict[str, str],
    ) -> Json:
        replica_name = self._names.replica_name(cluster, slot, replicas) if view.hosts(group) > 1 else ""
        pod = pods.worker_pod(
            cluster, group, self._settings, replica=slot.replica, replica_name=replica_name, host=slot.host
        )
        name = self._names.choose(cluster, slot, pod["metadata"]["generateName"], taken)
        taken.add(name)
        pod["metadata"]["name"] = name
        self._finish(pod, cluster, hashes[view.group_name(group)])
        return pod

    def _finish(self, pod: Json, cluster: Json, template_hash: str) -> None:
        mark(pod, gang_of(cluster, self._caches.maker_of(cluster)))
        auth.name_secret(pod["metadata"], cluster, self._settings)
        pod["metadata"]["annotations"][status.TEMPLATE_HASH] = template_hash
        if self._settings.mount_autoscaler_token:
            mount_token(pod)
        if pod_group.wants_pod_group(cluster, self._settings):
            pod_group.join(pod, cluster)
        if self._settings.scheduler_name and not pod["spec"].get("schedulerName"):
            pod["spec"]["schedulerName"] = self._settings.scheduler_name

    async def _delete_pod(self, cluster: Json, pod: Json, told: str, failed: str, why: str) -> None:
        try:
            gone = await self._writes.delete(kinds.POD, pod, self._caches.pods)
        except ApiError as error:
            event = "FailedToDeleteHeadPod" if failed == "FailedDeleteHeadPod" else "FailedToDeleteWorkerPod"
            self._recorder.event(cluster, "Warning", event, f"Failed to delete pod {view.name(pod)}: {error}")
            raise PodTrouble(failed, error) from error
        if gone:
            self._recorder.event(cluster, "Normal", told, f"Deleted pod {view.name(pod)}: {why}")

    async def _delete_all(self, cluster: Json, members: list[Json], told: str, why: str) -> None:
        doomed = [(pod, why) for pod in members if not view.deleting(pod)]
        await self._delete_pods(cluster, doomed, told, "FailedDeleteAllPods")

    async def _delete_pods(self, cluster: Json, doomed: list[tuple[Json, str]], told: str, failed: str) -> None:
        """Side by side, a bounded number at a time; the first refusal stops the rest."""
        waiting = iter(doomed)

        async def delete_next() -> None:
            for pod, why in waiting:
                await self._delete_pod(cluster, pod, told, failed, why)

        await gathered(delete_next() for _ in range(min(self._settings.create_limit, len(doomed))))

    # --- telling

    async def _publish(self, cluster: Json, memory: _Memory, failure: Failure | None) -> float | None:
        """Write the status if it says something new. Progress on the way up may wait a moment and be merged."""
        members = self._caches.pods_of(cluster)
        now = self._clock.monotonic()
        degraded, wait = self._degraded(cluster, members, memory, now)
        service = self._belongings.head_service(cluster)
        new = status.compute(cluster, members, service, failure, degraded, self._clock.now())
        old = cluster.get("status") or {}
        if status.same(old, new):
            memory.progress_since = None
            return wait
        if not status.significant(old, new):
            if memory.progress_since is None:
                memory.progress_since = now
            left = memory.progress_since + self._settings.status_delay - now
            if left > 0:
                return _sooner(wait, left)
        memory.progress_since = None
        await self._writes.write_status(kinds.RAY_CLUSTER, cluster, new, self._clock.now(), self._caches.clusters)
        if (old.get("state") or "") != new["state"]:
            log.info("RayCluster %s/%s is %s", view.namespace(cluster), view.name(cluster), new["state"] or "starting")
        return wait

    def _degraded(self, cluster: Json, members: list[Json], memory: _Memory, now: float) -> tuple[str, float | None]:
        """A provisioned cluster that has lacked pods for a minute says so."""
        head_ready = any(
            observed.is_ready(pod) for pod in members if view.labels(pod).get(names.NODE_TYPE) == names.HEAD
        )
        ready = sum(observed.is_ready(pod) for pod in members) - int(head_ready)
        wanted = sum(map(counts.wanted_pods, view.groups(cluster)))
        provisioned = status.condition_status(cluster, status.PROVISIONED) == "True"
        if not provisioned or view.suspended(cluster) or (head_ready and ready >= wanted):
            memory.degraded_since = None
            return "", None
        if memory.degraded_since is None:
            memory.degraded_since = now
        left = memory.degraded_since + DEGRADED_AFTER - now
        if left > 0:
            return "", left
        why = status.why_waiting([pod for pod in members if not observed.is_ready(pod)])
        told = f"the head is {'ready' if head_ready else 'not ready'}, {ready} of {wanted} workers are ready"
        return f"{told}; {why}" if why else told, None

    def _problems(self, cluster: Json) -> tuple[list[str], str]:
        metadata = validation.problems_of_metadata(cluster)
        if metadata:
            return metadata, "InvalidMetadata"
        spec = validation.problems_of_spec(cluster, self._settings)
        return (spec, "InvalidSpec") if spec else (validation.problems_of_status(cluster), "InvalidStatus")

    async def _refuse(self, cluster: Json, memory: _Memory, problems: list[str], reason: str) -> None:
        """Say what is wrong, once per set of problems; a corrected spec comes back by itself."""
        if memory.told_problems != tuple(problems):
            memory.told_problems = tuple(problems)
            self._recorder.event(
                cluster, "Warning", reason.replace("Invalid", "InvalidRayCluster"), "; ".join(problems)
            )
        new = status.invalid(cluster, reason, problems, self._clock.now())
        if not status.same(cluster.get("status") or {}, new):
            await self._writes.write_status(kinds.RAY_CLUSTER, cluster, new, self._clock.now(), self._caches.clusters)

    def _warn(self, cluster: Json, memory: _Memory) -> None:
        memory.told_problems = ()
        bounds = validation.warnings_of_bounds(cluster, self._caches.pods_of(cluster))
        found = (*validation.warnings_of_cluster(cluster), *bounds)
        if found and found != memory.told_warnings:
            self._recorder.event(cluster, "Warning", "RayClusterAdvice", "; ".join(found))
        memory.told_warnings = found

    def _remembered(self, key: Key, cluster: Json | None) -> _Memory | None:
        held = self._memory.get(key)
        if held is not None and (cluster is None or held.uid != view.uid(cluster)):
            for memory in (self._names, self._belongings, self._replacements):
                memory.forget(held.uid)
            del self._memory[key]
            held = None
        if held is None and cluster is not None:
            held = self._memory[key] = _Memory(view.uid(cluster))
        return held


def is_ours(thing: Json) -> bool:
    """Another controller may be named to manage an object; then it is left alone altogether."""
    return view.spec(thing).get("managedBy") in (None, "", CONTROLLER_NAME)


async def gathered(work: Iterable[Coroutine[None, None, None]]) -> None:
    """All of it, to its end; then the first trouble that any of it had."""
    ends = await asyncio.gather(*work, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end


def _sooner(*waits: float | None) -> float | None:
    return min((wait for wait in waits if wait is not None), default=None)
