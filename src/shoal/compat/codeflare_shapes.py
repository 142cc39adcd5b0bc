"""codeflare-sdk's configuration of a Ray cluster, and the manifest that it becomes. Pure."""

from __future__ import annotations

import msgspec

from shoal.api.meta import Json
from shoal.errors import BadInput
from shoal.sdk import shapes
from shoal.sdk.shapes import ClusterShape, PodShape


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
    write_to_file: bool = False
    """Nothing is written; `resource` is the manifest."""
    verify_tls: bool = True
    """Of connections to Ray from here: `shoal session` makes them, over the API server."""


def manifest(config: ClusterConfiguration, namespace: str) -> Json:
    """The RayCluster, or the AppWrapper with it. Requests that differ from limits are kept."""
    shape = ClusterShape(
        workers=config.num_workers, image=config.image, environment=dict(config.envs),
        head=_pod(config.head_cpu_limits, config.head_memory_limits, config.head_extended_resource_requests),
        worker=_pod(config.worker_cpu_limits, config.worker_memory_limits, config.worker_extended_resource_requests),
    )  # fmt: skip
    if config.write_to_file:
        raise BadInput("write_to_file: nothing is written here; Cluster(…).resource is the manifest")
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
    others = {name: str(value) for name, value in extended.items() if name not in ("nvidia.com/gpu", "gpu")}
    gpu = extended.get("nvidia.com/gpu", extended.get("gpu", 0))
    return PodShape(cpu=str(cpu), memory=_gigabytes(memory), gpu=str(gpu), resources=others)


def _gigabytes(value: int | str) -> str:
    return f"{value}G" if isinstance(value, int) else value
