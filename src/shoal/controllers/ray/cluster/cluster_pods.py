"""The pods of a RayCluster: created, replaced and deleted, in the order that keeps others' work safe.

Called by the reconciler once everything around the pods stands. The head comes first, the workers after it in the same
pass. Never creates a pod for a place that a terminating one still holds, and never deletes one that it did not look at
by UID.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.cluster import pod_group, rolling, status, upgrade
from shoal.controllers.ray.cluster.backoff import Replacements
from shoal.controllers.ray.cluster.gang_marks import gang_of, hold_growth, mark
from shoal.controllers.ray.cluster.slots import PodNames
from shoal.controllers.ray.cluster.status import Failure
from shoal.controllers.ray.cluster.workers import WorkerSlot, plan_group
from shoal.controllers.ray.owned_writer import OwnedWriter, Stranger
from shoal.controllers.ray.pods import auth, builder, observed
from shoal.controllers.ray.pods.autoscaler import mount_token
from shoal.controllers.ray.settings import RaySettings
from shoal.controllers.ray.waits import sooner
from shoal.kube.clock import Clock
from shoal.kube.errors import ApiError, KubeError
from shoal.kube.events import Recorder


class PodTrouble(Exception):
    """A pass that had to stop: why, in the words of the condition, and what caused it."""

    def __init__(self, reason: str, error: Exception) -> None:
        super().__init__(str(error))
        self.failure = Failure(reason, str(error))
        self.error = error


class ClusterPods:
    def __init__(
        self, writer: OwnedWriter, caches: Caches, recorder: Recorder, settings: RaySettings, clock: Clock
    ) -> None:
        self._writer, self._caches, self._recorder, self._settings = writer, caches, recorder, settings
        self._names = PodNames()
        self._replacements = Replacements(clock)

    def forget(self, uid: str) -> None:
        self._names.forget(uid)
        self._replacements.forget(uid)

    async def bring_about(self, cluster: Json) -> float | None:
        """One pass over the pods. Returns seconds until it is worth looking again; raises PodTrouble."""
        members = self._caches.pods_of(cluster)
        if self._is_suspending(cluster, members):
            await self._delete_all(cluster, members, "DeletedPod", "the cluster is suspended")
            return None
        if view.suspended(cluster):
            return None
        heads = [pod for pod in members if view.labels(pod).get(names.NODE_TYPE) == names.HEAD]
        if upgrade.recreates(cluster) and await self._recreate(cluster, heads, members):
            return None
        go_on, wait = await self._head(cluster, heads)
        if not go_on:
            return wait
        wait = sooner(wait, await self._workers(cluster, members))
        await self._roll(cluster)
        return wait

    async def _roll(self, cluster: Json) -> None:
        """Strategy Rolling: the next pods that differ from the spec go; the pass that sees them gone replaces them."""
        for pod in rolling.next_to_go(cluster, self._caches.pods_of(cluster)):
            if view.labels(pod).get(names.NODE_TYPE) == names.HEAD:
                await self._delete_pod(cluster, pod, "DeletedHeadPod", "FailedDeleteHeadPod", rolling.WHY)
            else:
                await self._delete_workers(cluster, [(pod, rolling.WHY)])

    def _is_suspending(self, cluster: Json, members: list[Json]) -> bool:
        """Also where it was suspended, resumed and suspended again before its status could say so: pods decide."""
        if status.condition_status(cluster, status.SUSPENDING) == "True":
            return True
        return status.starts_suspending(cluster) or (view.suspended(cluster) and bool(members))

    async def _recreate(self, cluster: Json, heads: list[Json], members: list[Json]) -> bool:
        """Replace everything when the spec changed under strategy Recreate. True when the pass ends here.

        A head without a hash is older than the strategy: it gets one, unless pods differ from the spec already.
        """
        head = next((pod for pod in heads if not view.deleting(pod)), None)
        if head is None:
            return False
        marks = view.annotations_of(head)
        is_marked = names.UPGRADE_HASH in marks
        if is_marked and not upgrade.drifted(cluster, head):
            return False
        is_others = is_marked and marks.get(names.OPERATOR_VERSION) != self._settings.version
        if is_others or not (is_marked or status.drifted_groups(cluster, members)):
            marks = {names.UPGRADE_HASH: upgrade.spec_hash(cluster), names.OPERATOR_VERSION: self._settings.version}
            await self._writer.patch(kinds.POD, head, {"metadata": {"annotations": marks}}, self._caches.pods)
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
        pod = builder.head_pod(cluster, self._settings)
        slot = WorkerSlot(names.HEAD_GROUP, 0)
        if not view.name(pod):
            taken = {view.name(held) for held in self._caches.pods_of(cluster)}
            pod["metadata"]["name"] = self._names.choose(cluster, slot, pod["metadata"]["generateName"], taken)
        if upgrade.recreates(cluster):
            pod["metadata"]["annotations"][names.UPGRADE_HASH] = upgrade.spec_hash(cluster)
            pod["metadata"]["annotations"][names.OPERATOR_VERSION] = self._settings.version
        self._finish(pod, cluster, status.group_hash(view.head(cluster)))
        try:
            made = await self._writer.create(kinds.POD, pod, cluster, self._caches.pods)
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
        slots: list[tuple[Json, WorkerSlot]] = []
        for group in view.groups(cluster):
            name = view.group_name(group)
            mine = [pod for pod in workers if view.labels(pod).get(names.GROUP) == name]
            plan = plan_group(cluster, group, mine, self._settings)
            if any(observed.is_dead(pod) for pod, _ in plan.delete):
                self._replacements.note(view.uid(cluster), name)
            await self._delete_workers(cluster, plan.delete)
            pause = self._replacements.wait(view.uid(cluster), name) if plan.create else 0.0
            if pause > 0:
                wait = sooner(wait, pause)
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

    async def _create_workers(self, cluster: Json, slots: list[tuple[Json, WorkerSlot]], members: list[Json]) -> None:
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
                    if await self._writer.create(kinds.POD, pod, cluster, self._caches.pods):
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
        slot: WorkerSlot,
        taken: set[str],
        replicas: set[str],
        hashes: dict[str, str],
    ) -> Json:
        replica_name = self._names.replica_name(cluster, slot, replicas) if view.hosts(group) > 1 else ""
        pod = builder.worker_pod(
            cluster, group, self._settings, replica=slot.replica, replica_name=replica_name, host=slot.host
        )
        name = self._names.choose(cluster, slot, pod["metadata"]["generateName"], taken)
        taken.add(name)
        pod["metadata"]["name"] = name
        self._finish(pod, cluster, hashes[view.group_name(group)])
        if view.autoscaling(cluster) and status.condition_status(cluster, status.PROVISIONED) == "True":
            hold_growth(pod, gang_of(cluster, self._caches.maker_of(cluster)))
        return pod

    def _finish(self, pod: Json, cluster: Json, template_hash: str) -> None:
        mark(pod, gang_of(cluster, self._caches.maker_of(cluster)))
        auth.name_secret(pod["metadata"], cluster, self._settings)
        pod["metadata"]["annotations"][status.TEMPLATE_HASH] = template_hash
        if self._settings.mount_autoscaler_token:
            mount_token(pod)
        pod_group.join(pod, cluster, self._settings, view.labels(pod).get(names.GROUP, ""))
        if self._settings.scheduler_name and not pod["spec"].get("schedulerName"):
            pod["spec"]["schedulerName"] = self._settings.scheduler_name

    async def _delete_pod(self, cluster: Json, pod: Json, told: str, failed: str, why: str) -> None:
        try:
            gone = await self._writer.delete(kinds.POD, pod, self._caches.pods)
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


async def gathered(work: Iterable[Coroutine[None, None, None]]) -> None:
    """All of it, to its end; then the first trouble that any of it had."""
    ends = await asyncio.gather(*work, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
