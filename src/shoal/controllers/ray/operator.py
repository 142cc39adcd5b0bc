"""The Ray operator as a whole: caches, the reconcilers of the Ray kinds, and which wakes which.

`run` is the entry point for the command line, which hands in a client and settings; it runs until cancelled.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.controllers.ray import metrics, names, view
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.cluster import ClusterReconciler
from shoal.controllers.ray.cron import RayCronJobReconciler
from shoal.controllers.ray.job import Dashboard, HttpDashboard, JobReconciler, Poller, ProxiedDashboard
from shoal.controllers.ray.owned_writer import OwnedWriter
from shoal.controllers.ray.ray_kind import RayReconciler
from shoal.controllers.ray.service import HttpServeApi, QueueReasons, RayServiceReconciler, ServeApi
from shoal.controllers.ray.settings import RaySettings
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.discovery import Discovery
from shoal.kube.events import Recorder
from shoal.kube.runtime import Controller
from shoal.kube.writes import Writes

SERVICES = 32
"""RayServices looked at together: a pass waits for dashboards, and one that is dead delays no other."""


EVENTS_PACE = 5.0
"""Events a second of each kind where hundreds of clusters come at once: statuses tell the same, and each is a write."""
OTHERS = 2
"""More keys in line than one job and its own cluster: others come at the same time."""


class Operator:
    def __init__(
        self,
        client: Client,
        settings: RaySettings,
        clock: Clock | None = None,
        dashboard: Dashboard | None = None,
        writes: Writes | None = None,
        serve: ServeApi | None = None,
    ) -> None:
        """`writes` is the process's; without one the operator is alone and has its own."""
        self.clock: Clock = clock or SystemClock()
        self.settings = settings
        self.ready = asyncio.Event()
        """Set when every cache has its first full list."""
        self.caches = Caches(client, settings, self.clock)
        self.recorders = {
            kind: Recorder(client, f"{kind}-controller", clock=self.clock, calm=self._calm, pace=EVENTS_PACE)
            for kind in ("raycluster", "rayjob", "rayservice", "raycronjob", "ray")
        }
        shared = writes or Writes(client, clock=self.clock)
        clusters = ClusterReconciler(
            OwnedWriter(shared, "raycluster"),
            self.caches,
            self.recorders["raycluster"],
            settings,
            self.clock,
            in_a_rush=lambda: len(self.clusters.queue) > 0,
        )
        self._timed: list[tuple[Controller[Key], metrics.Stopwatch]] = []
        self.clusters = self._controller("raycluster", clusters.reconcile)
        asked = dashboard or (ProxiedDashboard(client) if settings.kubernetes_proxy else HttpDashboard())
        self.poller = Poller(asked, self.clock, lambda key: self._enqueue(self.jobs, key))
        jobs = JobReconciler(
            OwnedWriter(shared, "rayjob"),
            self.caches,
            self.recorders["rayjob"],
            self.poller,
            settings,
            self.clock,
            in_a_rush=lambda: len(self.clusters.queue) + len(self.jobs.queue) > OTHERS,
        )
        self.jobs = self._controller("rayjob", jobs.reconcile)
        rays = RayReconciler(OwnedWriter(shared, "ray"), self.caches, self.recorders["ray"], settings, self.clock)
        self.rays = self._controller("ray", rays.reconcile)
        self.serve: ServeApi = serve or HttpServeApi(client if settings.kubernetes_proxy else None)
        serving = RayServiceReconciler(
            OwnedWriter(shared, "rayservice"),
            self.caches,
            self.recorders["rayservice"],
            self.serve,
            QueueReasons(client, self.clock),
            settings,
            self.clock,
            in_a_rush=lambda: len(self.clusters.queue) > 0,
        )
        self.ray_services = self._controller("rayservice", serving.reconcile, at_once=max(SERVICES, settings.workers))
        crons = RayCronJobReconciler(
            OwnedWriter(shared, "raycronjob"), self.caches, self.recorders["raycronjob"], settings, self.clock
        )
        self.cron_jobs = self._controller("raycronjob", crons.reconcile)
        self._subscribe()

    @property
    def watched(self) -> list[tuple[Controller[Key], Cache[Json]]]:
        """Each controller with the kind that it reconciles."""
        caches = self.caches
        return [
            (self.clusters, caches.clusters),
            (self.jobs, caches.jobs),
            (self.ray_services, caches.ray_services),
            (self.cron_jobs, caches.cron_jobs),
            (self.rays, caches.rays),
        ]

    @property
    def controllers(self) -> list[Controller[Key]]:
        return [controller for controller, _ in self.watched]

    async def run(self) -> None:
        """Until cancelled. Nothing is reconciled before every cache has its first full list."""
        async with asyncio.TaskGroup() as tasks:
            for cache in self.caches.all():
                tasks.create_task(cache.run())
            await self.caches.synced()
            self.ready.set()
            for controller in self.controllers:
                tasks.create_task(controller.run())
            tasks.create_task(self.poller.run())

    async def run_until_cancelled(self) -> None:
        """`run`, and the last events out."""
        try:
            await self.run()
        finally:
            await self.serve.close()
            for recorder in self.recorders.values():
                await recorder.close()

    def collect(self) -> Iterable[Any]:
        """Metric families, for a Prometheus registry."""
        return itertools.chain(metrics.families(self.caches), metrics.own_work(self._timed))

    def _controller(
        self, name: str, reconcile: Callable[[Key], Awaitable[float | None]], at_once: int = 0
    ) -> Controller[Key]:
        timed = metrics.Stopwatch(reconcile, self.clock)
        made: Controller[Key] = Controller(name, timed, workers=at_once or self.settings.workers, clock=self.clock)
        self._timed.append((made, timed))
        return made

    async def _calm(self) -> None:
        """Until nothing is to be brought about: telling of it comes second."""
        for controller in self.controllers:
            await controller.until_idle()

    def _subscribe(self) -> None:
        caches = self.caches
        caches.clusters.subscribe(lambda change: self._enqueue(self.clusters, change.key))
        caches.pods.subscribe(self._pod_changed)
        for owned in (caches.services, caches.submitters, caches.secrets):
            self._wake_owners(owned, "RayCluster", self.clusters)
        caches.jobs.subscribe(lambda change: self._enqueue(self.jobs, change.key))
        for owned in (caches.clusters, caches.services, caches.submitters):
            self._wake_owners(owned, "RayJob", self.jobs)
        caches.clusters.subscribe(self._selected_changed)
        caches.ray_services.subscribe(self._service_changed)
        for owned in (caches.clusters, caches.services):
            self._wake_owners(owned, "RayService", self.ray_services)
        caches.cron_jobs.subscribe(lambda change: self._enqueue(self.cron_jobs, change.key))
        self._wake_owners(caches.jobs, "RayCronJob", self.cron_jobs)
        caches.rays.subscribe(lambda change: self._enqueue(self.rays, change.key))
        for owned in (caches.clusters, caches.launchers):
            self._wake_owners(owned, "Ray", self.rays)

    def _enqueue(self, controller: Controller[Key], key: Key) -> None:
        chosen = self.settings.namespaces
        if not chosen or key.namespace in chosen:
            controller.enqueue(key)

    def _pod_changed(self, change: Change) -> None:
        pod: Json = change.new or change.old
        key = Key(view.namespace(pod), view.labels(pod).get(names.CLUSTER, ""))
        self._enqueue(self.clusters, key)
        cluster = self.caches.clusters.get(key)
        if cluster is not None and view.labels(pod).get(names.NODE_TYPE) == names.HEAD:
            for reference in view.metadata(cluster).get("ownerReferences") or []:
                if reference.get("kind") == "RayJob":
                    self._enqueue(self.jobs, Key(key.namespace, str(reference.get("name"))))
        if cluster is not None and any(
            reference.get("kind") == "Ray" for reference in view.metadata(cluster).get("ownerReferences") or []
        ):
            self._enqueue(self.rays, key)

    def _service_changed(self, change: Change) -> None:
        """Its own status is no news: a pass that wrote one says when it wants to be called again."""
        old, new = change.old, change.new
        if old is None or new is None or _asked(old) != _asked(new):
            self._enqueue(self.ray_services, change.key)

    def _selected_changed(self, change: Change) -> None:
        """Jobs that chose this cluster by selector."""
        for job in self.caches.jobs_selecting(change.key):
            self._enqueue(self.jobs, job)

    def _wake_owners(self, cache: Cache[Json], kind: str, controller: Controller[Key]) -> None:
        def wake(change: Change) -> None:
            thing: Json = change.new or change.old
            for reference in view.metadata(thing).get("ownerReferences") or []:
                if reference.get("kind") == kind:
                    self._enqueue(controller, Key(view.namespace(thing), str(reference.get("name"))))

        cache.subscribe(wake)


def _asked(thing: Json) -> tuple[object, ...]:
    """What a user or a deletion changes."""
    metadata = view.metadata(thing)
    return (
        view.generation(thing),
        view.labels(thing),
        view.annotations_of(thing),
        metadata.get("finalizers"),
        metadata.get("deletionTimestamp"),
    )


async def as_served(client: Client, settings: RaySettings) -> RaySettings:
    """The settings without what this API server cannot do."""
    if settings.pod_resize and not await Discovery(client).has_subresource(kinds.POD, "resize"):
        return msgspec.structs.replace(settings, pod_resize=False)
    return settings


async def run(
    client: Client, settings: RaySettings | None = None, clock: Clock | None = None, writes: Writes | None = None
) -> None:
    """Run the operator until cancelled."""
    await Operator(client, settings or RaySettings(), clock, writes=writes).run_until_cancelled()
