"""What the hub of several clusters watches in its own cluster, and which object belongs to which. Reads only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from shoal.api import kinds
from shoal.api.kind import Key, Kind
from shoal.api.kueue_convert import upgrade
from shoal.api.kueue_names import GROUP, QUEUE
from shoal.api.labels import CLUSTER_LOSS, KUEUE_MULTIKUEUE
from shoal.api.meta import Json
from shoal.api.objects import annotation, controller_of, group_of
from shoal.controllers.multicluster.record import record_of
from shoal.controllers.multicluster.rights import CreatorRights
from shoal.controllers.multicluster.settings import ClusterSettings
from shoal.controllers.planning.caches import UNREADABLE
from shoal.controllers.planning.stamps import Stamps
from shoal.controllers.queues.jobs import BY_NAME, GangJob, sendable
from shoal.kube.awaited import Awaited
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.trouble import Trouble


class Hub:
    def __init__(self, client: Client, settings: ClusterSettings, clock: Clock) -> None:
        self.client = client
        self._clock = clock
        self._awaited = Awaited()
        self.workloads: Cache[Json] = self._cache(
            kinds.WORKLOAD, indexes={"check": _checks_of, "on": _clusters_of, "owner": _owner_of, "uid": _uid_of}
        )
        self.checks: Cache[Json] = self._cache(kinds.ADMISSION_CHECK)
        self.configs: Cache[Json] = self._cache(kinds.MULTIKUEUE_CONFIG)
        self.queues: Cache[Json] = self._cache(kinds.CLUSTER_QUEUE)
        self.secrets: Cache[Json] = self._cache(kinds.SECRET, namespace=settings.namespace)
        self.namespaces: Cache[Json] = self._cache(kinds.NAMESPACE)
        self.jobs: dict[Kind, Cache[Json]] = {
            one.kind: self._cache(one.kind, label_selector=QUEUE) for one in sendable()
        }
        self._stamps = Stamps(client, clock, settings.stamps, self._unreadable)
        self.rights = CreatorRights(client, self._stamps, settings)

    @property
    def caches(self) -> list[Cache[Any]]:
        own = [self.workloads, self.checks, self.configs, self.queues, self.secrets, self.namespaces]
        return [*own, *self.jobs.values(), *self._stamps.caches]

    def _unreadable(self, kind: Kind) -> Callable[[Trouble], None]:
        return self._awaited.report(kind, lambda trouble: trouble.reason in UNREADABLE)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for cache in self.caches:
                tasks.create_task(cache.run())

    async def synced(self) -> None:
        """Until everything was read once; kinds that are not installed do not hold up the others."""
        await self._awaited.known(self.caches)

    def job_of(self, workload: Json) -> tuple[GangJob, Json] | None:
        """The very job that this Workload was made for, by UID; None where no adapter knows its kind."""
        owner = controller_of(workload)
        kind = BY_NAME.get((group_of(owner), str(owner.get("kind")))) if owner else None
        if owner is None or kind is None or kind.kind not in self.jobs:
            return None
        job = self.jobs[kind.kind].get(Key(workload["metadata"].get("namespace", ""), str(owner.get("name"))))
        return (kind, job) if job is not None and job["metadata"]["uid"] == owner.get("uid") else None

    def workload_of(self, uid: str) -> Json | None:
        """The Workload of the job with this UID."""
        return next(iter(self.workloads.by_index("owner", uid)), None)

    def our_check(self, workload: Json) -> Json | None:
        """Its entry that gives it to another cluster."""
        entries = (workload.get("status") or {}).get("admissionChecks") or ()
        return next((one for one in entries if self.is_ours(one["name"])), None)

    def is_ours(self, check: str) -> bool:
        found = self.checks.get(Key("", check))
        return found is not None and (found.get("spec") or {}).get("controllerName") == KUEUE_MULTIKUEUE

    def clusters_of(self, check: str) -> tuple[str, ...] | None:
        """Names in the order of the check's MultiKueueConfig; None where it names none that exists."""
        found = self.checks.get(Key("", check)) or {}
        parameters = (found.get("spec") or {}).get("parameters") or {}
        if parameters.get("kind") != "MultiKueueConfig" or parameters.get("apiGroup") != GROUP:
            return None
        return self.clusters_in(str(parameters.get("name") or ""))

    def clusters_in(self, config: str) -> tuple[str, ...] | None:
        """Names in the order of this MultiKueueConfig; None where there is none."""
        found = self.configs.get(Key("", config))
        return None if found is None else tuple((found.get("spec") or {}).get("clusters") or ())

    def queue_loss(self, workload: Json) -> str:
        """What the ClusterQueue that holds its quota says of a lost cluster."""
        admission = (workload.get("status") or {}).get("admission") or {}
        found = self.queues.get(Key("", str(admission.get("clusterQueue") or "")))
        return annotation(found, CLUSTER_LOSS) if found is not None else ""

    def namespace_uid(self, name: str) -> str:
        found = self.namespaces.get(Key("", name))
        return str(found["metadata"]["uid"]) if found is not None else ""

    def secret(self, name: str, namespace: str) -> Json | None:
        return self.secrets.get(Key(namespace, name))

    def _cache(self, kind: Kind, **options: Any) -> Cache[Json]:
        return Cache(
            self.client,
            kind,
            dict,
            clock=self._clock,
            report=self._awaited.report(kind, lambda trouble: trouble.reason in UNREADABLE),
            **options,
        )


def secret_name(cluster: Json) -> str:
    """The Secret with a member's kubeconfig; empty where it is not in one."""
    source = (upgrade(cluster).get("spec") or {}).get("clusterSource") or {}
    found = source.get("kubeConfig") or {}
    return str(found.get("location") or "") if (found.get("locationType") or "Secret") == "Secret" else ""


def _checks_of(workload: Json) -> Iterable[str]:
    return [str(one.get("name")) for one in (workload.get("status") or {}).get("admissionChecks") or ()]


def _uid_of(workload: Json) -> Iterable[str]:
    return (str(workload["metadata"]["uid"]),)


def _clusters_of(workload: Json) -> Iterable[str]:
    return record_of(workload).on


def _owner_of(workload: Json) -> Iterable[str]:
    owner = controller_of(workload)
    return (str(owner["uid"]),) if owner and owner.get("uid") else ()
