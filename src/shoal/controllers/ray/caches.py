"""The live copies that the Ray reconcilers read, with the indexes they look things up by."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from shoal.api import kinds
from shoal.api.kind import Key, Kind
from shoal.api.labels import SERVICE_NAME
from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.settings import RaySettings
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.clock import Clock

BY_CLUSTER = "cluster"
BY_OWNER = "owner"
BY_SERVICE = "service"


class Caches:
    def __init__(self, client: Client, settings: RaySettings, clock: Clock) -> None:
        self.namespace = settings.namespaces[0] if len(settings.namespaces) == 1 else None
        self._client, self._clock = client, clock
        owner = {BY_OWNER: owner_uids}
        self.clusters = self._cache(kinds.RAY_CLUSTER, indexes=owner)
        self.jobs = self._cache(kinds.RAY_JOB, indexes={BY_CLUSTER: _selected, **owner})
        self.rays = self._cache(kinds.RAY)
        self.ray_services = self._cache(kinds.RAY_SERVICE)
        self.cron_jobs = self._cache(kinds.RAY_CRON_JOB)
        self.slices = self._cache(kinds.ENDPOINT_SLICE, label_selector=names.SERVE, indexes={BY_SERVICE: _service_key})
        self.pods = self._cache(kinds.POD, label_selector=names.CLUSTER, indexes={BY_CLUSTER: _cluster_key})
        self.launchers = self._cache(kinds.POD, label_selector="ray-launcher", indexes=owner)
        self.services = self._cache(kinds.SERVICE, indexes=owner)
        self.submitters = self._cache(kinds.JOB, indexes=owner)
        self.secrets = self._cache(kinds.SECRET, label_selector=f"{names.CREATED_BY}={names.OPERATOR}")

    def _cache(self, kind: Kind, **more: Any) -> Cache[Json]:
        return Cache(self._client, kind, dict, namespace=self.namespace, clock=self._clock, share=True, **more)

    def all(self) -> list[Cache[Json]]:
        return [
            self.clusters,
            self.jobs,
            self.rays,
            self.ray_services,
            self.cron_jobs,
            self.slices,
            self.pods,
            self.launchers,
            self.services,
            self.submitters,
            self.secrets,
        ]

    def pods_of(self, cluster: Json) -> list[Json]:
        """Pods that this very cluster owns, oldest first; not those of an earlier one of the same name."""
        found = [
            pod
            for pod in self.pods.by_index(BY_CLUSTER, f"{view.namespace(cluster)}/{view.name(cluster)}")
            if view.uid(cluster) in owner_uids(pod) and view.labels(pod).get(names.NODE_TYPE) != names.REDIS_CLEANUP
        ]
        return sorted(found, key=lambda pod: (str(view.metadata(pod).get("creationTimestamp") or ""), view.name(pod)))

    def maker_of(self, cluster: Json) -> Json | None:
        """The RayJob, RayService or Ray that made a cluster."""
        makers = {"RayJob": self.jobs, "RayService": self.ray_services, "Ray": self.rays}
        for reference in view.metadata(cluster).get("ownerReferences") or []:
            made_by = makers.get(str(reference.get("kind")))
            if made_by is not None:
                found = made_by.get(Key(view.namespace(cluster), str(reference.get("name"))))
                if found is not None and view.uid(found) == reference.get("uid"):
                    return found
        return None

    def jobs_selecting(self, cluster: Key) -> list[Key]:
        found = self.jobs.by_index(BY_CLUSTER, f"{cluster.namespace}/{cluster.name}")
        return [Key(view.namespace(job), view.name(job)) for job in found]

    async def synced(self) -> None:
        """Until the first full lists are there. Kinds that may not be installed are not waited for."""
        optional = (self.rays, self.ray_services, self.cron_jobs, self.slices)
        await asyncio.gather(*(cache.synced.wait() for cache in self.all() if cache not in optional))

    def clusters_of(self, service: Json) -> list[Json]:
        """RayClusters that a RayService made, oldest first."""
        found = self.clusters.by_index(BY_OWNER, view.uid(service))
        return sorted(found, key=lambda one: (str(view.metadata(one).get("creationTimestamp") or ""), view.name(one)))

    def knows_endpoints(self) -> bool:
        """Before the first full list every Service looks empty."""
        return self.slices.synced.is_set()

    def ready_pods_behind(self, namespace: str, service: str) -> set[str]:
        """UIDs of pods that are ready behind a Service of Ray Serve."""
        return {
            str((endpoint.get("targetRef") or {}).get("uid"))
            for one in self.slices.by_index(BY_SERVICE, f"{namespace}/{service}")
            for endpoint in one.get("endpoints") or []
            if (endpoint.get("conditions") or {}).get("ready") is not False
            and (endpoint.get("targetRef") or {}).get("uid")
        }


def owner_uids(thing: Json) -> list[str]:
    return [str(reference.get("uid")) for reference in view.metadata(thing).get("ownerReferences") or []]


def _cluster_key(pod: Json) -> Iterator[str]:
    yield f"{view.namespace(pod)}/{view.labels(pod).get(names.CLUSTER)}"


def _service_key(found: Json) -> Iterator[str]:
    yield f"{view.namespace(found)}/{view.labels(found).get(SERVICE_NAME)}"


def _selected(job: Json) -> Iterator[str]:
    selector = view.spec(job).get("clusterSelector") or {}
    if selector.get(names.CLUSTER):
        yield f"{view.namespace(job)}/{selector[names.CLUSTER]}"
