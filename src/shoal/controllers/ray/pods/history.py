"""The collector beside every Ray node of a cluster with `historyServerOptions`: it keeps logs and events for later.

Ray's agents send it their events, it reads the logs in a directory that both mount and puts all of it into the storage
that its variables name; KubeRay's history server reads it there. Pure; called by the pod builder, by validation and by
those who count what a cluster asks for.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.pods import auth
from shoal.controllers.ray.pods.autoscaler import LOGS, LOGS_VOLUME
from shoal.controllers.ray.pods.containers import add_volume, field, has_env, keep_env, mount, mounted_at, put_env
from shoal.controllers.ray.settings import HISTORY_SERVER, RaySettings

CONTAINER = "ray-history-collector"
EVENTS_PORT = "8084"
AMOUNTS = {"limits": {"cpu": "200m", "memory": "256Mi"}, "requests": {"cpu": "50m", "memory": "64Mi"}}
_OURS = (
    "POD_IP", "FQ_RAY_IP", "RAY_CLUSTER_NAME", "RAY_CLUSTER_NAMESPACE", "RAY_ROLE", "OWNER_KIND", "OWNER_NAME",
    "EVENTS_PORT",
)  # fmt: skip
_NEEDED = {"GCS": ("GCS_BUCKET",), "S3": ("S3_REGION",), "ALIYUNOSS": ("OSS_BUCKET", "OSS_ENDPOINT", "OSS_REGION")}
_AZURE = {
    "connection_string": ("AZURE_STORAGE_CONNECTION_STRING",),
    "workload_identity": ("AZURE_STORAGE_ACCOUNT_URL",),
    "default": ("AZURE_STORAGE_ACCOUNT_URL",),
}
_EVENTS = ",".join(
    f"{kind}_EVENT"
    for kind in (
        "TASK_DEFINITION", "TASK_LIFECYCLE", "ACTOR_TASK_DEFINITION", "TASK_PROFILE", "DRIVER_JOB_DEFINITION",
        "DRIVER_JOB_LIFECYCLE", "ACTOR_DEFINITION", "ACTOR_LIFECYCLE", "NODE_DEFINITION", "NODE_LIFECYCLE",
    )
)  # fmt: skip


def collector_options(spec: Json) -> Json | None:
    """Of a RayClusterSpec; None where there is nothing to collect."""
    found = spec.get("historyServerOptions")
    options = found.get("collectorOptions") if isinstance(found, dict) else None
    return options if isinstance(options, dict) else None


def resources(options: Json) -> Json:
    given = options.get("resources")
    return view.clone(AMOUNTS if given is None else given)


def add_collector(pod: Json, cluster: Json, settings: RaySettings, *, host: str, is_head: bool) -> None:
    """`host` is the head's name, by which workers find it."""
    options = collector_options(view.spec(cluster))
    if options is None or not settings.gate(HISTORY_SERVER):
        return
    spec = pod["spec"]
    ray = spec["containers"][0]
    logs = mounted_at(ray, LOGS) or LOGS_VOLUME
    add_volume(spec, {"name": logs, "emptyDir": {}})
    mount(ray, logs, LOGS)
    container = _container(cluster, options, host, is_head=is_head)
    auth.prepare(container, cluster, settings)
    mount(container, logs, LOGS)
    spec["containers"].append(container)


def tell_ray(ray: Json, pod_spec: Json) -> None:
    """Ray's own variables, where a collector listens beside it."""
    if all(one.get("name") != CONTAINER for one in pod_spec["containers"]):
        return
    keep_env(ray, "RAY_enable_ray_event", "true")
    keep_env(ray, "RAY_enable_core_worker_ray_event_to_aggregator", "true")
    agent = "RAY_DASHBOARD_AGGREGATOR_AGENT"
    keep_env(ray, f"{agent}_EVENTS_EXPORT_ADDR", f"http://localhost:{EVENTS_PORT}/v1/events")
    keep_env(ray, f"{agent}_EXPOSABLE_EVENT_TYPES", _EVENTS)
    keep_env(ray, f"{agent}_PUBLISHER_HTTP_ENDPOINT_EXPOSABLE_EVENT_TYPES", _EVENTS)


def _container(cluster: Json, options: Json, host: str, *, is_head: bool) -> Json:
    container: Json = {
        "name": CONTAINER,
        "image": options.get("image"),
        "imagePullPolicy": options.get("imagePullPolicy") or "IfNotPresent",
        "resources": resources(options),
        "env": view.clone(options.get("env") or []),
    }
    put_env(container, "POD_IP", field("status.podIP"))
    put_env(container, "RAY_CLUSTER_NAME", view.name(cluster))
    put_env(container, "RAY_CLUSTER_NAMESPACE", view.namespace(cluster))
    put_env(container, "RAY_ROLE", "Head" if is_head else "Worker")
    put_env(container, "EVENTS_PORT", EVENTS_PORT)
    put_env(container, "FQ_RAY_IP", host)
    labels = view.metadata(cluster).get("labels") or {}
    for variable, label in (("OWNER_KIND", names.ORIGIN_KIND), ("OWNER_NAME", names.ORIGIN_NAME)):
        if labels.get(label):
            put_env(container, variable, str(labels[label]))
    if is_head and not has_env(container, "RAY_DASHBOARD_ADDRESS"):
        put_env(container, "RAY_DASHBOARD_ADDRESS", f"http://localhost:{view.dashboard_port(cluster)}")
    return container


def problems_of_history(cluster: Json) -> Iterator[str]:
    """What a collector would fail of, in words that name the field."""
    options = collector_options(view.spec(cluster))
    if options is None:
        yield "spec.historyServerOptions needs collectorOptions"
        return
    where = "spec.historyServerOptions.collectorOptions"
    if not options.get("image"):
        yield f"{where} needs an image"
    for group in (view.head(cluster), *view.groups(cluster)):
        if any(one.get("name") == CONTAINER for one in view.containers(group)):
            owner = f"worker group {view.group_name(group)!r}" if group.get("groupName") else "spec.headGroupSpec"
            yield f"{owner} has a container {CONTAINER!r}, which is the collector's name; rename it"
    found = {str(one.get("name")): one for one in options.get("env") or []}
    for name in _OURS:
        if name in found:
            yield f"{where}.env sets {name}, which the operator sets; remove it"
    yield from _problems_of_storage(found, where)


def _problems_of_storage(found: dict[str, Json], where: str) -> Iterator[str]:
    backend = str((found.get("STORAGE_BACKEND") or {}).get("value") or "")
    if not backend:
        yield f"{where}.env needs STORAGE_BACKEND with a value, such as S3, GCS, AZUREBLOB or ALIYUNOSS"
        return

    def given(name: str) -> bool:
        return bool((found.get(name) or {}).get("value") or (found.get(name) or {}).get("valueFrom"))

    needed = _NEEDED.get(backend.upper(), ())
    if backend.upper() == "AZUREBLOB":
        mode = str((found.get("AZURE_STORAGE_AUTH_MODE") or {}).get("value") or "").strip().lower()
        needed = _AZURE.get(mode, ())
        either = ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_URL")
        if not needed and not any(given(name) for name in either):
            yield f"{where}.env needs {either[0]} or {either[1]} for STORAGE_BACKEND AZUREBLOB"
    for name in needed:
        if not given(name):
            yield f"{where}.env needs {name} for STORAGE_BACKEND {backend}"
