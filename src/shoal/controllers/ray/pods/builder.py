"""From a RayCluster to its pods: pure, one head and any worker.

Called by the reconciler, by the gang accounting and by the conformance runner. The user's template is the base and
survives but for what makes it a node of this cluster; injected containers are always appended, because the first
one is Ray's.
"""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.pods import auth, fault_tolerance, history, start_command, tls
from shoal.controllers.ray.pods.autoscaler import add_autoscaler
from shoal.controllers.ray.pods.containers import add_volume, field, keep_env, mount, mounted_at, put_env, same_limits
from shoal.controllers.ray.pods.probes import add_probes
from shoal.controllers.ray.settings import MULTI_HOST_INDEXING, RaySettings

WAIT_CONTAINER = "wait-gcs-ready"
WAIT_AMOUNTS = {"cpu": "200m", "memory": "256Mi"}
START_VARIABLE = "KUBERAY_GEN_RAY_START_CMD"
DRAIN_VARIABLE = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
_DRAIN_SINCE = (2, 60, 0)
_DRAIN_MARGIN = 5


def head_pod(cluster: Json, settings: RaySettings) -> Json:
    """The head pod, without gang marks."""
    group = view.head(cluster)
    name = view.name(cluster)
    pod = _base(cluster, group, names.HEAD, names.HEAD_GROUP, settings)
    own_name = ((group.get("template") or {}).get("metadata") or {}).get("name")
    if own_name:
        pod["metadata"]["name"] = own_name
    if settings.fixed_head_name:
        pod["metadata"]["name"] = names.head_pod_prefix(name).rstrip("-")
    else:
        pod["metadata"]["generateName"] = names.head_pod_prefix(name)
    params = start_command.parameters(cluster, group, is_head=True, address="")
    fault_tolerance.prepare_head(pod, cluster, params)
    if view.autoscaling(cluster):
        add_autoscaler(pod, cluster, settings, shell(settings))
    _finish(pod, cluster, params, settings, is_head=True)
    pod["spec"]["containers"] += view.clone([*settings.head_sidecars])
    return pod


def worker_pod(
    cluster: Json, group: Json, settings: RaySettings, *, replica: int = 0, replica_name: str = "", host: int = 0
) -> Json:
    """One worker of a group. `replica_name` and `host` are for groups of several hosts per replica."""
    name = view.name(cluster)
    pod = _base(cluster, group, names.WORKER, view.group_name(group), settings)
    pod["metadata"]["generateName"] = names.worker_pod_prefix(name, view.group_name(group))
    if settings.gate(MULTI_HOST_INDEXING) or view.hosts(group) > 1:
        pod["metadata"]["labels"][names.REPLICA_INDEX] = str(replica)
    if view.hosts(group) > 1:
        pod["metadata"]["labels"][names.REPLICA_NAME] = replica_name
        pod["metadata"]["labels"][names.HOST_INDEX] = str(host)
    params = start_command.parameters(cluster, group, is_head=False, address=head_address(cluster, settings))
    if settings.inject_wait_for_head:
        _add_wait_for_head(pod["spec"], cluster, settings)
    fault_tolerance.prepare_worker(pod["spec"]["containers"][0], cluster)
    if view.autoscaling(cluster) and view.autoscaler_options(cluster).get("version") == "v2":
        pod["spec"]["restartPolicy"] = "Never"  # by option only: with v2 by variable the user writes the policy
    if settings.drain_workers:
        _add_drain(pod["spec"], cluster)
    _finish(pod, cluster, params, settings, is_head=False)
    pod["spec"]["containers"] += view.clone([*settings.worker_sidecars])
    return pod


def shell(settings: RaySettings) -> list[str]:
    return ["/bin/bash", "-cl" if settings.login_shell else "-c", "--"]


def head_host(cluster: Json, settings: RaySettings) -> str:
    return names.full_head_name(view.head_service_name(cluster), view.namespace(cluster), settings.cluster_domain)


def head_address(cluster: Json, settings: RaySettings) -> str:
    return f"{head_host(cluster, settings)}:{view.head_port(cluster)}"


def overwrites_command(marked: Json) -> bool:
    """The cluster's or the pod's annotation says that the user starts Ray himself."""
    return view.annotations_of(marked).get(names.OVERWRITE_COMMAND, "").lower() == "true"


def _base(cluster: Json, group: Json, node_type: str, group_name: str, settings: RaySettings) -> Json:
    """The template as a pod of this cluster: its namespace, labels and owner, whatever the template says."""
    template = view.clone(group.get("template") or {})
    given = template.get("metadata") or {}
    name = view.name(cluster)
    labels = {
        names.IS_RAY_NODE: "yes",
        names.IDENTIFIER: names.identifier(name, node_type),
        names.APP_NAME: names.APP,
        names.CREATED_BY: names.OPERATOR,
        **settings.pod_labels,
        **(given.get("labels") or {}),
        **(group.get("labels") or {}),
        names.CLUSTER: name,
        names.NODE_TYPE: node_type,
        names.GROUP: group_name,
    }
    if view.origin(cluster) == "RayService":  # workers serve when ready; whether the head does is the service's matter
        labels[names.SERVE] = "false" if node_type == names.HEAD else "true"
    metadata: Json = {
        "namespace": view.namespace(cluster),
        "labels": labels,
        "annotations": {
            **view.image_environment(cluster),
            **settings.pod_annotations,
            **(given.get("annotations") or {}),
        },
        "ownerReferences": [view.owner_reference(cluster, "ray.io/v1", "RayCluster")],
    }
    if overwrites_command(cluster):
        metadata["annotations"][names.OVERWRITE_COMMAND] = "true"
    if given.get("finalizers"):
        metadata["finalizers"] = given["finalizers"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.get("spec") or {}}


def _finish(pod: Json, cluster: Json, params: dict[str, str], settings: RaySettings, *, is_head: bool) -> None:
    """What heads and workers share: command, variables, shared memory, ports, probes, token."""
    spec = pod["spec"]
    ray = spec["containers"][0]
    history.add_collector(pod, cluster, settings, host=head_host(cluster, settings), is_head=is_head)
    auth.prepare_pod(spec, cluster, settings)
    auth.prepare(ray, cluster, settings)
    for container in spec.get("initContainers") or []:
        if container.get("name") == WAIT_CONTAINER:
            auth.prepare(container, cluster, settings)
    tls.prepare(pod, cluster, settings, waits=(WAIT_CONTAINER,), is_head=is_head)
    _add_shared_memory(spec, ray, params)
    _set_command(pod, params, settings, is_head=is_head)
    _add_environment(spec, ray, cluster, settings, is_head=is_head)
    if all(port.get("name") != "metrics" for port in ray.get("ports") or []):
        ray["ports"] = [*(ray.get("ports") or []), {"name": "metrics", "containerPort": 8080}]
    if settings.inject_probes:
        add_probes(ray, cluster, params, is_head=is_head)


def _set_command(pod: Json, params: dict[str, str], settings: RaySettings, *, is_head: bool) -> None:
    """Start Ray, after what the user wants first; a user who starts it himself finds the line in a variable."""
    ray = pod["spec"]["containers"][0]
    line = start_command.command_line(params, is_head=is_head)
    put_env(ray, START_VARIABLE, line)
    user = " ".join([*(ray.get("command") or []), *(ray.get("args") or [])])
    if overwrites_command(pod) or "ray start" in user:
        return
    start = f"{start_command.ULIMIT}; {line}"
    ray["command"] = shell(settings)
    ray["args"] = [f"{user} && {start}" if user else start]


def _add_environment(spec: Json, ray: Json, cluster: Json, settings: RaySettings, *, is_head: bool) -> None:
    host, service = head_host(cluster, settings), view.head_service_name(cluster)
    for entry in settings.container_env:
        if all(kept.get("name") != entry.get("name") for kept in ray.get("env") or []):
            ray["env"] = [*(ray.get("env") or []), view.clone(entry)]
    followers = list(spec.get("initContainers") or []) + ([] if is_head else [ray])
    for container in followers:
        put_env(container, "FQ_RAY_IP", host)
        put_env(container, "RAY_IP", service)
    put_env(ray, "RAY_CLUSTER_NAME", field(f"metadata.labels['{names.CLUSTER}']"))
    put_env(ray, "RAY_CLUSTER_NAMESPACE", field("metadata.namespace"))
    put_env(ray, "RAY_CLOUD_INSTANCE_ID", field("metadata.name"))
    put_env(ray, "RAY_NODE_TYPE_NAME", field(f"metadata.labels['{names.GROUP}']"))
    port = view.head_port(cluster)
    keep_env(ray, "RAY_PORT", port)
    keep_env(ray, "RAY_ADDRESS", f"127.0.0.1:{port}" if is_head else f"{host}:{port}")
    keep_env(ray, "RAY_USAGE_STATS_KUBERAY_IN_USE", "1")
    if is_head:
        tags = f"kuberay_version={settings.version};kuberay_crd={view.origin(cluster)}"
        put_env(ray, "RAY_USAGE_STATS_EXTRA_TAGS", tags)
    keep_env(ray, "RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE", "1")
    history.tell_ray(ray, spec)
    if view.origin(cluster) == "RayService":
        keep_env(ray, "RAY_timeout_ms_task_wait_for_death_info", "0")
        keep_env(ray, "RAY_gcs_server_request_timeout_seconds", "5")
        keep_env(ray, "RAY_SERVE_KV_TIMEOUT_S", "5")


def _add_shared_memory(spec: Json, ray: Json, params: dict[str, str]) -> None:
    if mounted_at(ray, "/dev/shm") is not None or "plasma-directory" in params:
        return
    resources = ray.get("resources") or {}
    size = (resources.get("limits") or {}).get("memory") or (resources.get("requests") or {}).get("memory")
    directory: Json = {"medium": "Memory"}
    if size is not None:
        directory["sizeLimit"] = size
    add_volume(spec, {"name": "shared-mem", "emptyDir": directory})
    mount(ray, "shared-mem", "/dev/shm")


def _add_wait_for_head(spec: Json, cluster: Json, settings: RaySettings) -> None:
    """Last of the init containers: wait until the head answers, quietly for two minutes, then saying why not."""
    ray = spec["containers"][0]
    address = start_command.quoted(head_address(cluster, settings))
    script = (
        "waited=0; "
        f"until ray health-check --address {address} > /tmp/shoal-head-check 2>&1; do "
        'if [ $waited -ge 120 ]; then echo "waiting for the head since ${waited} s:"; cat /tmp/shoal-head-check; fi; '
        "waited=$((waited + 5)); sleep 5; done"
    )
    container: Json = {
        "name": WAIT_CONTAINER,
        "image": ray.get("image"),
        "command": shell(settings),
        "args": [script],
        "resources": same_limits(WAIT_AMOUNTS),
    }
    for copied in ("imagePullPolicy", "securityContext", "env", "envFrom", "volumeMounts"):
        if ray.get(copied):
            container[copied] = view.clone(ray[copied])
    spec["initContainers"] = [*(spec.get("initContainers") or []), container]


def _add_drain(spec: Json, cluster: Json) -> None:
    """A worker that must go finishes what it runs, as long as its pod's grace period allows.

    `ray start` of these versions is the container's main process, takes SIGTERM as a call to drain its node for up to
    half a minute and leaves as soon as it is idle. A pod with a grace period of its own gets a deadline that fits it.
    """
    version, grace = view.ray_version(cluster), spec.get("terminationGracePeriodSeconds")
    if grace is not None and version is not None and version >= _DRAIN_SINCE:
        keep_env(spec["containers"][0], DRAIN_VARIABLE, str(max(0, int(grace) - _DRAIN_MARGIN)))
