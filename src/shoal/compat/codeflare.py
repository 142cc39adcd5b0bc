"""codeflare-sdk's names over Shoal's Python door: a notebook that imports these runs with `import` lines changed.

    from shoal.compat.codeflare import Cluster, ClusterConfiguration, TokenAuthentication

Ray clusters are created with the user's own rights in the namespace and queue that the configuration names; what has no
meaning here is refused, not ignored. Everything below is `shoal.sdk`; nothing decides.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.labels import KUEUE_QUEUE
from shoal.api.meta import Json
from shoal.compat.codeflare_jobs import CodeFlareRayJob, CodeflareRayJobStatus, ManagedClusterConfig
from shoal.compat.codeflare_login import (
    MANAGER,
    KubeConfigFileAuthentication,
    TokenAuthentication,
    choice,
    default_queue,
    set_api_client,
)
from shoal.compat.codeflare_login import (
    namespace as login_namespace,
)
from shoal.compat.codeflare_shapes import ClusterConfiguration, manifest
from shoal.errors import ShoalError
from shoal.kube.errors import NotFound
from shoal.sdk import acts, following, places, rows, submitting
from shoal.sdk.blocking import carried_out
from shoal.sdk.connecting import connected
from shoal.sdk.following import GangView

__all__ = [
    "Cluster",
    "ClusterConfiguration",
    "CodeFlareClusterStatus",
    "CodeflareRayJobStatus",
    "KubeConfigFileAuthentication",
    "ManagedClusterConfig",
    "RayCluster",
    "RayClusterDetails",
    "RayClusterStatus",
    "RayJob",
    "RayJobClient",
    "TokenAuthentication",
    "get_cluster",
    "list_all_clusters",
    "list_all_queued",
    "list_local_queues",
    "set_api_client",
    "view_clusters",
]


class CodeFlareClusterStatus(Enum):
    READY = 1
    STARTING = 2
    QUEUED = 3
    QUEUEING = 4
    FAILED = 5
    UNKNOWN = 6
    SUSPENDED = 7


_STATUS = {
    "waiting": CodeFlareClusterStatus.QUEUED,
    "starting": CodeFlareClusterStatus.STARTING,
    "running": CodeFlareClusterStatus.READY,
    "succeeded": CodeFlareClusterStatus.UNKNOWN,
    "failed": CodeFlareClusterStatus.FAILED,
}


class CodeFlareRayStatus(Enum):
    READY = "ready"
    UNHEALTHY = "unhealthy"
    FAILED = "failed"
    UNKNOWN = "unknown"
    SUSPENDED = "suspended"


class RayJobClient:
    """Ray's own client of a cluster's dashboard is not wrapped: Ray is not needed here."""

    def __init__(self, *ignored: Any, **also: Any) -> None:
        raise ShoalError("submit with RayJob(…, cluster_name=NAME), or with: shoal session NAME -- ray job submit …")


class RayClusterDetails(msgspec.Struct, frozen=True, kw_only=True):
    """As `Cluster.details()` gives it."""

    name: str
    namespace: str
    status: CodeFlareClusterStatus
    num_workers: int
    queue: str
    message: str = ""

    def _repr_html_(self) -> str:
        from shoal.sdk.display import table

        return table(f"RayCluster {self.namespace}/{self.name}", [
            ("status", self.status.name), ("workers", str(self.num_workers)), ("queue", self.queue or "none"),
            ("message", self.message),
        ])  # fmt: skip


class CodeFlareCluster:
    """`Cluster(ClusterConfiguration(name="lab", num_workers=2)).up()`."""

    def __init__(self, config: ClusterConfiguration) -> None:
        self.config = config
        self.namespace = config.namespace or login_namespace()
        self.resource = manifest(config, self.namespace)

    @property
    def _kind(self) -> Kind:
        return kinds.APP_WRAPPER_V1BETA2 if self.config.appwrapper else kinds.RAY_CLUSTER

    def up(self) -> None:
        """Create it. A queue that is not there is refused before anything is created."""
        carried_out(self._create())
        print(f"Ray Cluster: '{self.config.name}' has successfully been created")

    apply = up

    def down(self) -> None:
        carried_out(self._delete())
        print(f"Ray Cluster: '{self.config.name}' has successfully been deleted")

    def status(self, print_to_console: bool = True) -> tuple[CodeFlareClusterStatus, bool]:
        """How it fares, and whether it is ready."""
        view = carried_out(self._look())
        found = _STATUS[view.outcome.stage] if view is not None else CodeFlareClusterStatus.UNKNOWN
        if print_to_console:
            said = f": {view.reason}" if view is not None and view.reason else ""
            print(f"{self.config.name} is {found.name}{said}")
        return found, found is CodeFlareClusterStatus.READY

    def wait_ready(self, timeout: int | None = None, dashboard_check: bool = True) -> None:
        """Until it runs. Raises TimeoutError, and ShoalError where it ends instead."""
        carried_out(self._ready(timeout))

    def details(self, print_to_console: bool = True) -> RayClusterDetails:
        view = carried_out(self._look())
        found = RayClusterDetails(
            name=self.config.name, namespace=self.namespace, num_workers=self.config.num_workers,
            status=_STATUS[view.outcome.stage] if view is not None else CodeFlareClusterStatus.UNKNOWN,
            queue=self.config.local_queue or "", message=view.reason if view is not None else "",
        )  # fmt: skip
        if print_to_console:
            print(found)
        return found

    def cluster_uri(self) -> str:
        """For clients inside the cluster; from elsewhere: `shoal session NAME`."""
        return f"ray://{self.config.name}-head-svc.{self.namespace}.svc:10001"

    def cluster_dashboard_uri(self) -> str:
        return f"http://{self.config.name}-head-svc.{self.namespace}.svc:8265"

    def local_client_url(self) -> str:
        return self.cluster_uri()

    @property
    def job_client(self) -> RayJobClient:
        return RayJobClient()

    async def _create(self) -> None:
        async with connected(choice(), MANAGER) as client:
            if self.config.local_queue is None and (queue := await default_queue(client, self.namespace)):
                self.resource["metadata"].setdefault("labels", {})[KUEUE_QUEUE] = queue
            await submitting.create(client, self._kind, self.resource, self.namespace)

    async def _delete(self) -> None:
        async with connected(choice(), MANAGER) as client:
            found = await client.get(self._kind, self.config.name, self.namespace)
            await acts.stop(client, self._kind, found)

    async def _look(self) -> GangView | None:
        async with connected(choice(), MANAGER) as client:
            try:
                found = await client.get(self._kind, self.config.name, self.namespace)
            except NotFound:
                return None
            return await following.look(client, self._kind, found)

    async def _ready(self, timeout: int | None) -> None:
        import asyncio

        async with asyncio.timeout(timeout), connected(choice(), MANAGER) as client:
            found = await client.get(self._kind, self.config.name, self.namespace)
            async for view in following.follow(client, self._kind, found):
                if view.outcome.stage == "running":
                    return
            raise ShoalError(f"{self.config.name} did not start: {view.state} {view.reason}")


Cluster, RayCluster = CodeFlareCluster, RayClusterDetails
RayJob, RayClusterStatus = CodeFlareRayJob, CodeFlareRayStatus
"""The names that notebooks import."""


def get_cluster(cluster_name: str, namespace: str | None = None, **ignored: Any) -> CodeFlareCluster:
    """A Ray cluster that is there, by its name."""
    namespace = namespace or login_namespace()

    async def found() -> Json:
        async with connected(choice(), MANAGER) as client:
            stored: Json = await client.get(kinds.RAY_CLUSTER, cluster_name, namespace)
            return stored

    stored = carried_out(found())
    groups = (stored.get("spec") or {}).get("workerGroupSpecs") or ()
    workers = sum(int(one.get("replicas") or 0) for one in groups)
    queue = (stored["metadata"].get("labels") or {}).get(KUEUE_QUEUE)
    config = ClusterConfiguration(name=cluster_name, namespace=namespace, num_workers=workers, local_queue=queue)
    made = CodeFlareCluster(config)
    made.resource = stored
    return made


def list_all_clusters(namespace: str, print_to_console: bool = True) -> list[dict[str, Any]]:
    """Ray clusters, and AppWrappers that hold some, as `shoal get` shows them."""
    return _listed(namespace, print_to_console, lambda row: row["kind"] in ("RayCluster", "AppWrapper"))


def list_all_queued(namespace: str, print_to_console: bool = True, appwrapper: bool = False) -> list[dict[str, Any]]:
    """Those that wait."""
    wanted = "AppWrapper" if appwrapper else "RayCluster"
    states = ("waiting", "Pending", "Queued", "Suspended", "suspended", "QuotaReserved")
    return _listed(namespace, print_to_console, lambda row: row["kind"] == wanted and row["state"] in states)


def view_clusters(namespace: str | None = None) -> None:
    """The list as text: there are no widgets here."""
    list_all_clusters(namespace or login_namespace())


def list_local_queues(namespace: str | None = None, flavors: list[str] | None = None) -> list[dict[str, Any]]:
    """LocalQueues with the flavors of their ClusterQueue, those that have all of `flavors`."""

    async def found() -> list[dict[str, Any]]:
        async with connected(choice(), MANAGER) as client:
            queues = await places.queues(client, namespace or login_namespace())
            quotas = await places.quotas(client)
        of: dict[str, list[str]] = {}
        for row in quotas:
            names = of.setdefault(row["clusterQueue"], [])
            names += [row["flavor"]] if row["flavor"] not in names else []
        return [{"name": one["name"], "flavors": of.get(one["clusterQueue"], [])} for one in queues]

    return [one for one in carried_out(found()) if set(flavors or ()) <= set(one["flavors"])]


def _listed(namespace: str, say: bool, wanted: Any) -> list[dict[str, Any]]:
    async def found() -> list[dict[str, Any]]:
        async with connected(choice(), MANAGER) as client:
            return await rows.rows_of(client, namespace)

    chosen = [row for row in carried_out(found()) if wanted(row)]
    if say:
        for row in chosen:
            print(f"{row['namespace']}/{row['name']}: {row['state']} {row['reason']}".rstrip())
    return chosen
