"""codeflare-sdk's `RayJob` and its company over Shoal's Python door.

Imported by `codeflare`, whose names these are, too. A job has a Ray cluster of its own (`cluster_config`) or goes into
one that is there (`cluster_name`); what has no meaning here is refused, not ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.labels import KUEUE_PRIORITY_CLASS, KUEUE_QUEUE, RAY_CLUSTER_NAME
from shoal.api.meta import Json
from shoal.compat import codeflare_login as login
from shoal.compat.codeflare_shapes import ClusterConfiguration, manifest
from shoal.errors import BadInput
from shoal.kube.errors import NotFound
from shoal.sdk import acts, following, packing, shapes, submitting
from shoal.sdk.blocking import carried_out
from shoal.sdk.connecting import connected
from shoal.sdk.following import GangView


class CodeflareRayJobStatus(Enum):
    COMPLETE = 1
    RUNNING = 2
    FAILED = 3
    SUSPENDED = 4
    UNKNOWN = 5


_STATUS = {
    "waiting": CodeflareRayJobStatus.SUSPENDED,
    "starting": CodeflareRayJobStatus.RUNNING,
    "running": CodeflareRayJobStatus.RUNNING,
    "succeeded": CodeflareRayJobStatus.COMPLETE,
    "failed": CodeflareRayJobStatus.FAILED,
}


class ManagedClusterConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The Ray cluster of a job. Memory as a number is in gigabytes, as in codeflare-sdk."""

    num_workers: int = 1
    head_cpu_requests: int | str = 2
    head_cpu_limits: int | str = 2
    head_memory_requests: int | str = 8
    head_memory_limits: int | str = 8
    head_accelerators: dict[str, int | str] = {}
    worker_cpu_requests: int | str = 1
    worker_cpu_limits: int | str = 1
    worker_memory_requests: int | str = 2
    worker_memory_limits: int | str = 2
    worker_accelerators: dict[str, int | str] = {}
    envs: dict[str, str] = {}
    image: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    def spec(self, name: str) -> Json:
        """As a RayCluster's."""
        same = {field: getattr(self, field) for field in self.__struct_fields__ if not field.endswith("_accelerators")}
        config = ClusterConfiguration(
            name=name, head_extended_resource_requests=self.head_accelerators,
            worker_extended_resource_requests=self.worker_accelerators, **same,
        )  # fmt: skip
        made: Json = manifest(config, "")["spec"]
        return made


class CodeFlareRayJob:
    """`RayJob(job_name="train", entrypoint="python train.py", cluster_config=ManagedClusterConfig()).submit()`."""

    def __init__(
        self,
        job_name: str,
        entrypoint: str,
        cluster_name: str | None = None,
        cluster_config: ManagedClusterConfig | None = None,
        namespace: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        ttl_seconds_after_finished: int = 0,
        active_deadline_seconds: int | None = None,
        local_queue: str | None = None,
        priority_class: str | None = None,
    ) -> None:
        if (cluster_name is None) == (cluster_config is None):
            raise BadInput("give either cluster_name or cluster_config")
        if cluster_name is not None and local_queue is not None:
            raise BadInput("local_queue: a Ray cluster that is there has its quota already; queue the cluster instead")
        self.name, self.entrypoint, self.cluster_name = job_name, entrypoint, cluster_name
        self.namespace = namespace or login.namespace()
        self._config, self._queue, self._priority = cluster_config, local_queue, priority_class
        self._runtime_env = dict(runtime_env or {})
        self._limits = {
            "ttlSecondsAfterFinished": ttl_seconds_after_finished, "activeDeadlineSeconds": active_deadline_seconds
        }  # fmt: skip

    def submit(self) -> str:
        """Its name. A queue that is not there is refused before anything is created."""
        carried_out(self._submit())
        print(f"Successfully submitted RayJob {self.name}")
        return self.name

    def status(self, print_to_console: bool = True) -> tuple[CodeflareRayJobStatus, bool]:
        """How it fares, and whether it has succeeded."""
        view = carried_out(self._look())
        found = _STATUS[view.outcome.stage] if view is not None else CodeflareRayJobStatus.UNKNOWN
        if print_to_console:
            said = f": {view.reason}" if view is not None and view.reason else ""
            print(f"{self.name} is {found.name}{said}")
        return found, found is CodeflareRayJobStatus.COMPLETE

    def stop(self) -> bool:
        """As `shoal hold`: `resubmit` lets it run again."""
        return carried_out(self._held(on=True))

    def resubmit(self) -> bool:
        return carried_out(self._held(on=False))

    def delete(self) -> bool:
        return carried_out(self._delete())

    def manifest(self, queue: str | None) -> Json:
        """The RayJob as it is written, without the folder that travels."""
        spec: Json = {"entrypoint": self.entrypoint, "submissionMode": "K8sJobMode"}
        environment = {name: value for name, value in self._runtime_env.items() if not self._travels(name)}
        spec |= shapes.driver_fields(
            runtime_env=environment, metadata={}, submission_id="", cpus=0, gpus=0, resources={}
        )
        spec |= {field: value for field, value in self._limits.items() if value}
        labels = {}
        if self._config is not None:
            spec |= {"rayClusterSpec": self._config.spec(self.name), "shutdownAfterJobFinishes": True}
            chosen = {KUEUE_QUEUE: queue, KUEUE_PRIORITY_CLASS: self._priority}
            labels = {**self._config.labels, **{label: value for label, value in chosen.items() if value}}
        else:
            spec["clusterSelector"] = {RAY_CLUSTER_NAME: self.cluster_name}
        metadata = {"name": self.name, "namespace": self.namespace, **({"labels": labels} if labels else {})}
        return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata, "spec": spec}

    def _travels(self, name: str) -> bool:
        return name == "working_dir" and "://" not in str(self._runtime_env[name])

    async def _submit(self) -> None:
        folder = self._runtime_env.get("working_dir")
        travels = folder is not None and self._travels("working_dir")
        if travels and self._config is None:
            raise BadInput(
                "runtime_env: a folder travels with a job that has a Ray cluster of its own; give an address"
            )
        archive = packing.pack(Path(str(folder))) if travels else b""
        async with connected(login.choice(), login.MANAGER) as client:
            queue = self._queue
            if queue is None and self._config is not None:
                queue = await login.default_queue(client, self.namespace)
            job = self.manifest(queue)
            if archive:
                await submitting.create_with_code(client, job, archive)
            else:
                await submitting.create(client, kinds.RAY_JOB, job, self.namespace)

    async def _look(self) -> GangView | None:
        async with connected(login.choice(), login.MANAGER) as client:
            try:
                found = await client.get(kinds.RAY_JOB, self.name, self.namespace)
            except NotFound:
                return None
            return await following.look(client, kinds.RAY_JOB, found)

    async def _held(self, *, on: bool) -> bool:
        async with connected(login.choice(), login.MANAGER) as client:
            await acts.hold(client, kinds.RAY_JOB, await client.get(kinds.RAY_JOB, self.name, self.namespace), on=on)
        return True

    async def _delete(self) -> bool:
        async with connected(login.choice(), login.MANAGER) as client:
            await acts.stop(client, kinds.RAY_JOB, await client.get(kinds.RAY_JOB, self.name, self.namespace))
        return True
