"""The RayCluster reconciler: brings pods and their surroundings to what the spec says, and tells how far it got.

Level-triggered and safe to call at any time: what must exist before pods, the pods, then one status. A cluster that
cannot work is refused with everything that is wrong with it, and taken up again when it is corrected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.cluster import counts, deletion, idle, pod_group, start_gate, status
from shoal.controllers.ray.cluster.belongings import Belongings
from shoal.controllers.ray.cluster.cluster_pods import ClusterPods, PodTrouble
from shoal.controllers.ray.cluster.status import Failure
from shoal.controllers.ray.owned_writer import OwnedWriter, Stranger
from shoal.controllers.ray.pods import observed
from shoal.controllers.ray.settings import CONTROLLER_NAME, RaySettings
from shoal.controllers.ray.validation import cluster_rules
from shoal.controllers.ray.waits import sooner
from shoal.kube.clock import Clock
from shoal.kube.errors import ApiError
from shoal.kube.events import Recorder

log = logging.getLogger(__name__)

DEGRADED_AFTER = 60.0
RUSH = 2.5
"""How much longer mere progress waits to be told while other clusters wait for their pods."""


class _Memory(msgspec.Struct):
    """What is remembered of a cluster between passes; losing it is harmless."""

    uid: str
    progress_since: float | None = None
    degraded_since: float | None = None
    checked: tuple[Any, ...] = ()
    """What its user asked for when that was last found to be in order."""
    told_problems: tuple[str, ...] = ()
    told_warnings: tuple[str, ...] = ()


class ClusterReconciler:
    def __init__(
        self,
        writer: OwnedWriter,
        caches: Caches,
        recorder: Recorder,
        settings: RaySettings,
        clock: Clock,
        in_a_rush: Callable[[], bool],
    ) -> None:
        self._writer, self._caches, self._recorder = writer, caches, recorder
        self._settings, self._clock, self._in_a_rush = settings, clock, in_a_rush
        self._belongings = Belongings(writer, caches, recorder, settings, clock)
        self._pods = ClusterPods(writer, caches, recorder, settings, clock)
        self._memory: dict[Key, _Memory] = {}

    async def reconcile(self, key: Key) -> float | None:
        cluster = self._caches.clusters.get(key)
        memory = self._remembered(key, cluster)
        if cluster is None or memory is None or not is_ours(cluster):
            return None
        if view.deleting(cluster):
            return await deletion.finish(
                cluster, self._writer, self._caches, self._recorder, self._settings, self._clock
            )
        problems, reason = self._problems(cluster, memory)
        if problems:
            await self._refuse(cluster, memory, problems, reason)
            return None
        self._warn(cluster, memory)
        if deletion.needs_finalizer(cluster, self._settings):
            await deletion.add_finalizer(cluster, self._writer, self._caches)
            return 0.0
        settled, wait = await idle.settle(
            cluster, self._writer, self._caches, self._recorder, self._settings, self._clock
        )
        if settled is None:
            return None
        cluster = settled
        if start_gate.holds_cluster(cluster, self._caches.pods_of(cluster), self._settings):
            return sooner(wait, await self._publish(cluster, memory, None, at_once=True))
        trouble: PodTrouble | None = None
        try:
            wait = sooner(wait, await self._belongings.ensure(cluster))
            wait = sooner(wait, await self._pods.bring_about(cluster))
        except PodTrouble as found:
            trouble = found
        except (Stranger, ApiError) as error:
            trouble = PodTrouble(status.BELONGINGS, error)
        again = await self._publish(cluster, memory, trouble.failure if trouble else None)
        if trouble is not None:
            raise trouble.error
        return sooner(wait, again)

    # --- telling

    async def _publish(
        self, cluster: Json, memory: _Memory, failure: Failure | None, *, at_once: bool = False
    ) -> float | None:
        """Write the status if it says something new. Progress on the way up may wait a moment and be merged.

        A first status comes at once, so that a user sees a cluster taken up that was just applied; where many are
        applied together the server's time goes to their pods first. `at_once`: its start depends on it.
        """
        members = self._caches.pods_of(cluster)
        now = self._clock.monotonic()
        degraded, wait = self._degraded(cluster, members, memory, now)
        service = self._belongings.head_service(cluster)
        new = status.compute(cluster, members, service, failure, degraded, self._clock.now())
        old = cluster.get("status") or {}
        if status.same(old, new):
            memory.progress_since = None
            return wait
        rush = self._in_a_rush()
        if not at_once and not status.significant(old, new) and (status.was_told(old) or rush):
            if memory.progress_since is None:
                memory.progress_since = now
            delay = self._settings.status_delay * (RUSH if rush else 1)
            left = memory.progress_since + delay - now
            if left > 0:
                return sooner(wait, left)
        memory.progress_since = None
        await self._writer.write_status(kinds.RAY_CLUSTER, cluster, new, self._clock.now(), self._caches.clusters)
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

    def _problems(self, cluster: Json, memory: _Memory) -> tuple[list[str], str]:
        """Most passes are for pods: what was in order and is the same still is."""
        asked = asked_for(cluster)
        if memory.checked != asked:
            metadata = cluster_rules.problems_of_metadata(cluster)
            if metadata:
                return metadata, "InvalidMetadata"
            spec = cluster_rules.problems_of_spec(cluster, self._settings)
            if spec:
                return spec, "InvalidSpec"
        memory.checked = asked
        return cluster_rules.problems_of_status(cluster), "InvalidStatus"

    async def _refuse(self, cluster: Json, memory: _Memory, problems: list[str], reason: str) -> None:
        """Say what is wrong, once per set of problems; a corrected spec comes back by itself."""
        if memory.told_problems != tuple(problems):
            memory.told_problems = tuple(problems)
            self._recorder.event(
                cluster, "Warning", reason.replace("Invalid", "InvalidRayCluster"), "; ".join(problems)
            )
        new = status.invalid(cluster, reason, problems, self._clock.now())
        if not status.same(cluster.get("status") or {}, new):
            await self._writer.write_status(kinds.RAY_CLUSTER, cluster, new, self._clock.now(), self._caches.clusters)

    def _warn(self, cluster: Json, memory: _Memory) -> None:
        memory.told_problems = ()
        bounds = cluster_rules.warnings_of_bounds(cluster, self._caches.pods_of(cluster))
        of_scheduler = pod_group.warnings_of_scheduler(cluster, self._settings)
        found = (*cluster_rules.warnings_of_cluster(cluster), *bounds, *of_scheduler)
        if found and found != memory.told_warnings:
            self._recorder.event(cluster, "Warning", "RayClusterAdvice", "; ".join(found))
        memory.told_warnings = found

    def _remembered(self, key: Key, cluster: Json | None) -> _Memory | None:
        held = self._memory.get(key)
        if held is not None and (cluster is None or held.uid != view.uid(cluster)):
            self._pods.forget(held.uid)
            self._belongings.forget(held.uid)
            del self._memory[key]
            held = None
        if held is None and cluster is not None:
            held = self._memory[key] = _Memory(view.uid(cluster))
        return held


def asked_for(cluster: Json) -> tuple[Any, ...]:
    """What a user decides about, without the spec itself: its generation stands for it."""
    owners = view.metadata(cluster).get("ownerReferences")
    return view.generation(cluster), view.labels(cluster), view.annotations_of(cluster), owners


def is_ours(thing: Json) -> bool:
    """Another controller may be named to manage an object; then it is left alone altogether."""
    return view.spec(thing).get("managedBy") in (None, "", CONTROLLER_NAME)
