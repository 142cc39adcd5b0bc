"""codeflare-sdk's names over Shoal's Python door: a notebook that imports these runs with `import` lines changed.

    from shoal.compat.codeflare import Cluster, ClusterConfiguration, TokenAuthentication

Ray clusters are created with the user's own rights in the namespace and queue that the configuration names; what has no
meaning here is refused, not ignored. Everything below is `shoal.sdk`; nothing decides.
"""

from __future__ import annotations

import os
import tempfile
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.labels import KUEUE_QUEUE
from shoal.api.meta import Json
from shoal.errors import BadInput, ShoalError
from shoal.sdk import acts, following, rows, shapes, submitting
from shoal.sdk.blocking import carried_out
from shoal.sdk.connecting import ClusterChoice, connected
from shoal.sdk.following import GangView
from shoal.sdk.shapes import ClusterShape, PodShape

__all__ = [
    "Cluster",
    "ClusterConfiguration",
    "CodeFlareClusterStatus",
    "KubeConfigFileAuthentication",
    "RayClusterDetails",
    "TokenAuthentication",
    "get_cluster",
    "list_all_clusters",
    "list_all_queued",
]
MANAGER = "shoal-sdk"
_logged_in: list[ClusterChoice] = []


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


class TokenAuthentication:
    """`TokenAuthentication(token=…, server=…).login()`: a kubeconfig of this process alone."""

    def __init__(self, token: str, server: str, skip_tls: bool = False, ca_cert_path: str | None = None) -> None:
        self._token, self._server, self._skip_tls, self._ca = token, server, skip_tls, ca_cert_path
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def login(self) -> str:
        cluster: Json = {"server": self._server}
        if self._skip_tls:
            cluster["insecure-skip-tls-verify"] = True
        elif self._ca:
            cluster["certificate-authority"] = self._ca
        named = {"cluster": "here", "user": "me"}
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": cluster}], "contexts": [{"name": "here", "context": named}],
            "users": [{"name": "me", "user": {"token": self._token}}],
        }  # fmt: skip
        self._folder = tempfile.TemporaryDirectory(prefix="shoal-login-")
        path = Path(self._folder.name) / "kubeconfig"
        path.touch(mode=0o600)
        path.write_bytes(msgspec.yaml.encode(config))
        _logged_in[:] = [ClusterChoice(kubeconfig=path)]
        return f"Logged into {self._server}"

    def logout(self) -> str:
        _logged_in.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
        return f"Successfully logged out of {self._server}"


class KubeConfigFileAuthentication:
    def __init__(self, kube_config_path: str | None = None) -> None:
        self._path = kube_config_path

    def load_kube_config(self) -> str:
        path = Path(self._path or os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config").expanduser()
        if not path.is_file():
            raise BadInput(f"{path} is not there; give kube_config_path")
        _logged_in[:] = [ClusterChoice(kubeconfig=path)]
        return f"Loaded user config file at path {path}"


class ClusterConfiguration(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Memory as a number is in gigabytes, as in codeflare-sdk."""

    name: str
    namespace: str | None = None
    num_workers: int = 1
    head_cpu_requests: int | str = 2
    head_cpu_limits: int | str = 2
    head_memory_requests: int | str = 8
    head_memory_limits: int | str = 8
    head_extended_resource_requests: dict[str, int | str] = {}
    worker_cpu_requests: int | str = 1
    worker_cpu_limits: int | str = 1
    worker_memory_requests: int | str = 2
    worker_memory_limits: int | str = 2
    worker_extended_resource_requests: dict[str, int | str] = {}
    envs: dict[str, str] = {}
    image: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    local_queue: str | None = None
    appwrapper: bool = False


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
        self.resource = manifest(config)

    @property
    def namespace(self) -> str:
        return self.config.namespace or "default"

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

    async def _create(self) -> None:
        async with connected(_choice(), MANAGER) as client:
            await submitting.create(client, self._kind, self.resource, self.namespace)

    async def _delete(self) -> None:
        async with connected(_choice(), MANAGER) as client:
            found = await client.get(self._kind, self.config.name, self.namespace)
            await acts.stop(client, self._kind, found)

    async def _look(self) -> GangView | None:
        from shoal.kube.errors import NotFound

        async with connected(_choice(), MANAGER) as client:
            try:
                found = await client.get(self._kind, self.config.name, self.namespace)
            except NotFound:
                return None
            return await following.look(client, self._kind, found)

    async def _ready(self, timeout: int | None) -> None:
        import asyncio

        async with asyncio.timeout(timeout), connected(_choice(), MANAGER) as client:
            found = await client.get(self._kind, self.config.name, self.namespace)
            async for view in following.follow(client, self._kind, found):
                if view.outcome.stage == "running":
                    return
            raise ShoalError(f"{self.config.name} did not start: {view.state} {view.reason}")


Cluster = CodeFlareCluster
"""The name that notebooks import."""


def get_cluster(cluster_name: str, namespace: str = "default", **ignored: Any) -> CodeFlareCluster:
    """A Ray cluster that is there, by its name."""

    async def found() -> Json:
        async with connected(_choice(), MANAGER) as client:
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


def _listed(namespace: str, say: bool, wanted: Any) -> list[dict[str, Any]]:
    async def found() -> list[dict[str, Any]]:
        async with connected(_choice(), MANAGER) as client:
            return await rows.rows_of(client, namespace)

    chosen = [row for row in carried_out(found()) if wanted(row)]
    if say:
        for row in chosen:
            print(f"{row['namespace']}/{row['name']}: {row['state']} {row['reason']}".rstrip())
    return chosen


def manifest(config: ClusterConfiguration) -> Json:
    """The RayCluster, or the AppWrapper with it. Requests that differ from limits are kept."""
    shape = ClusterShape(
        workers=config.num_workers, image=config.image, environment=dict(config.envs),
        head=_pod(config.head_cpu_limits, config.head_memory_limits, config.head_extended_resource_requests),
        worker=_pod(config.worker_cpu_limits, config.worker_memory_limits, config.worker_extended_resource_requests),
    )  # fmt: skip
    namespace = config.namespace or "default"
    made = shapes.ray_cluster(shape, config.name, namespace, queue=config.local_queue or "")
    made["metadata"].setdefault("labels", {}).update(config.labels)
    if config.annotations:
        made["metadata"]["annotations"] = dict(config.annotations)
    groups = [
        ("head", made["spec"]["headGroupSpec"]),
        *(("worker", one) for one in made["spec"].get("workerGroupSpecs") or ()),
    ]
    for role, group in groups:
        requests = group["template"]["spec"]["containers"][0]["resources"]["requests"]
        requests["cpu"] = str(getattr(config, f"{role}_cpu_requests"))
        requests["memory"] = _gigabytes(getattr(config, f"{role}_memory_requests"))
    if not config.appwrapper:
        return made
    labels = made["metadata"].pop("labels", {})
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": config.name, "namespace": namespace, **({"labels": labels} if labels else {})},
        "spec": {"components": [{"template": made}]},
    }


def _pod(cpu: int | str, memory: int | str, extended: dict[str, int | str]) -> PodShape:
    others = {name: value for name, value in extended.items() if name not in ("nvidia.com/gpu", "gpu")}
    if others:
        raise BadInput(f"extended resources other than nvidia.com/gpu cannot be asked for here: {', '.join(others)}")
    gpu = extended.get("nvidia.com/gpu", extended.get("gpu", 0))
    return PodShape(cpu=str(cpu), memory=_gigabytes(memory), gpu=str(gpu))


def _gigabytes(value: int | str) -> str:
    return f"{value}G" if isinstance(value, int) else value


def _choice() -> ClusterChoice:
    return _logged_in[0] if _logged_in else ClusterChoice()
