"""What is wrong with a RayCluster: all problems at once, each with its field and what to change.

Called by the reconciler always and by the admission webhook where there is one. Pure: a cluster in, sentences out;
an empty list means valid. Also refuses what Shoal does not do yet, rather than ignoring it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from shoal.api import quantity
from shoal.api.meta import Json
from shoal.controllers.ray import names, services, view
from shoal.controllers.ray.pods import auth, fault_tolerance, start_command
from shoal.controllers.ray.settings import (
    DELETION_POLICY,
    EMBEDDED_STORAGE,
    ROLLING_UPGRADE,
    RaySettings,
)
from shoal.controllers.ray.template_shape import AUTOSCALER, HISTORY, POD_TEMPLATE, SERVICE, TLS, problems_of_shape
from shoal.controllers.ray.template_shape import NETWORK_POLICY as NETWORK_SHAPE
from shoal.controllers.ray.validation.extras import needs_gate, problems_of_addresses
from shoal.controllers.ray.validation.gated import problems_of_gated
from shoal.errors import BadInput

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)

_PRIORITY_SINCE = (2, 56, 0)
_KUBERNETES_TOKEN_SINCE = (2, 55, 0)
_RESOURCE_PARAMS = ("num-cpus", "num-gpus", "memory", "resources")
_TWICE = "groupName is used twice; give every group its own name"


def problems_of_metadata(cluster: Json) -> list[str]:
    name = view.name(cluster)
    problems = []
    if len(name) > names.LONGEST_CLUSTER:
        problems.append(f"metadata.name has {len(name)} characters; use at most {names.LONGEST_CLUSTER}")
    if not DNS_1035.fullmatch(name):
        problems.append(f"metadata.name {name!r} must be lower-case letters, digits and '-', starting with a letter")
    return problems


def problems_of_group_names(cluster: Json) -> list[str]:
    """Names that two groups share: all that KubeRay's webhook looks at in a spec."""
    groups = view.spec(cluster).get("workerGroupSpecs")
    found = [group.get("groupName") for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []
    twice = (index for index, name in enumerate(found) if name in found[:index])
    return [f"spec.workerGroupSpecs[{index}] ({found[index]}): {_TWICE}" for index in twice]


def problems_of_cluster(cluster: Json, settings: RaySettings) -> list[str]:
    """Everything that is wrong, in the order of the fields."""
    return [*problems_of_metadata(cluster), *problems_of_spec(cluster, settings), *problems_of_status(cluster)]


def problems_of_spec(cluster: Json, settings: RaySettings) -> list[str]:
    if not isinstance(cluster.get("spec"), dict):
        return ["spec is missing"]
    misshapen = [*problems_of_shapes(view.spec(cluster))]
    if misshapen:
        return misshapen
    try:
        return [
            *_head(cluster),
            *problems_of_addresses(cluster),
            *_groups(cluster, settings),
            *_fault_tolerance(cluster, settings),
            *_autoscaling(cluster),
            *_autoscaler_can_start(cluster),
            *_auth(cluster, settings),
            *problems_of_gated(cluster, settings),
            *_upgrade(cluster, settings),
        ]
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        return [f"spec has a field of the wrong type: {error}"]  # where no schema checked it before us


def problems_of_shapes(spec: Json) -> Iterator[str]:
    """What our CRDs leave open; nothing else is looked at before this is right."""
    head, groups = spec.get("headGroupSpec") or {}, spec.get("workerGroupSpecs") or []
    if not isinstance(head, dict) or not isinstance(groups, list) or not all(isinstance(one, dict) for one in groups):
        yield "spec.headGroupSpec must be an object and spec.workerGroupSpecs a list of objects"
        return
    yield from problems_of_shape(head.get("template"), POD_TEMPLATE, "spec.headGroupSpec.template")
    yield from problems_of_shape(head.get("headService"), SERVICE, "spec.headGroupSpec.headService")
    for index, group in enumerate(groups):
        yield from problems_of_shape(group.get("template"), POD_TEMPLATE, f"spec.workerGroupSpecs[{index}].template")
    yield from problems_of_shape(spec.get("autoscalerOptions"), AUTOSCALER, "spec.autoscalerOptions")
    yield from problems_of_shape(spec.get("networkPolicy"), NETWORK_SHAPE, "spec.networkPolicy")
    yield from problems_of_shape(spec.get("historyServerOptions"), HISTORY, "spec.historyServerOptions")
    yield from problems_of_shape(spec.get("tlsOptions"), TLS, "spec.tlsOptions")


def problems_of_status(cluster: Json) -> list[str]:
    true = {
        condition.get("type")
        for condition in (cluster.get("status") or {}).get("conditions") or []
        if condition.get("status") == "True"
    }
    if {"RayClusterSuspending", "RayClusterSuspended"} <= true:
        return ["status says both suspending and suspended; remove one of the two conditions"]
    return []


def warnings_of_cluster(cluster: Json) -> list[str]:
    """What works but will disappoint."""
    found = []
    for group in view.groups(cluster):
        if view.group_name(group) == "head":
            found.append("worker group 'head' has the name that queues use for the head's pod set; choose another")
        policy = view.pod_spec(group).get("restartPolicy")
        if view.autoscaling(cluster) and not view.uses_autoscaler_v2(cluster) and policy not in (None, "Never"):
            found.append(
                f"worker group {view.group_name(group)!r}: restartPolicy {policy} hides failures from the autoscaler"
            )
    found += _other_namespaces(cluster)
    if services.wants_serve_service(cluster) and services.serve_service(cluster) is None:
        found.append(
            f"annotation {names.SERVE_SERVICE} asks for a Service of Ray Serve, but the head has no port named serve "
            "or serve-…; name one, or name no ports at all"
        )
    resources = view.ray_container(view.head(cluster)).get("resources") or {}
    memory = (resources.get("limits") or {}).get("memory") or (resources.get("requests") or {}).get("memory")
    if memory is not None and quantity.parse(memory).units < 2 * 2**30:
        found.append(f"the head has {memory} of memory; Ray's head needs about 2Gi and is killed with less")
    return found


def warnings_of_bounds(cluster: Json, pods: list[Json]) -> list[str]:
    """Bounds that were drawn below what runs: Ray's autoscaler, not the operator, decides which pods go, and when."""
    if not view.autoscaling(cluster):
        return []
    found = []
    for group in view.groups(cluster):
        name, most = view.group_name(group), view.max_replicas(group) * view.hosts(group)
        running = sum(view.labels(pod).get(names.GROUP) == name and not view.deleting(pod) for pod in pods)
        if running > most:
            found.append(
                f"worker group {name!r} has {running} pods, more than its maxReplicas allow ({most}); Ray's autoscaler "
                "takes them away as they become idle"
            )
    return found


def _other_namespaces(cluster: Json) -> list[str]:
    """Pods are made where their cluster is, whatever a template says."""
    found = []
    for group in (view.head(cluster), *view.groups(cluster)):
        asked = ((group.get("template") or {}).get("metadata") or {}).get("namespace")
        if asked and asked != view.namespace(cluster):
            where = view.group_name(group) or "head"
            found.append(
                f"the template of {where!r} names namespace {asked!r}, which is ignored: its pods are made in "
                f"{view.namespace(cluster)!r}; remove metadata.namespace or create the cluster there"
            )
    return found


# --- head and groups


def _head(cluster: Json) -> Iterator[str]:
    head = view.head(cluster)
    if not view.containers(head):
        yield "spec.headGroupSpec.template needs at least one container"
    service = ((head.get("headService") or {}).get("metadata") or {}).get("name")
    if service is not None and (len(str(service)) > 63 or not DNS_1035.fullmatch(str(service))):
        yield f"spec.headGroupSpec.headService.metadata.name {str(service)[:80]!r} is not the name of a Service"
    yield from _start_params(head, "spec.headGroupSpec")


def _groups(cluster: Json, settings: RaySettings) -> Iterator[str]:
    seen: set[str] = set()
    for index, group in enumerate(view.groups(cluster)):
        name = view.group_name(group)
        where = f"spec.workerGroupSpecs[{index}] ({name})"
        if name in seen:
            yield f"{where}: {_TWICE}"
        seen.add(name)
        if name == names.HEAD_GROUP or not _group_name_works(name):
            yield f"{where}: groupName must be letters, digits and '-' and not {names.HEAD_GROUP!r}"
        if not view.containers(group):
            yield f"{where}: the template needs at least one container"
        yield from _start_params(group, where)
        yield from _bounds(cluster, group, where)
        yield from _group_autoscaling(cluster, group, where)
        if group.get("suspend") is True:
            if not settings.gate(DELETION_POLICY):
                yield f"{where}: suspend {needs_gate(DELETION_POLICY)}"
            if view.autoscaling(cluster):
                yield f"{where}: suspend does not go together with autoscaling"


def _group_name_works(name: str) -> bool:
    return bool(name) and DNS_1123.fullmatch(name.lower()) is not None and _LABEL_VALUE.fullmatch(name) is not None


def _bounds(cluster: Json, group: Json, where: str) -> Iterator[str]:
    low, high = view.min_replicas(group), view.max_replicas(group)
    if low < 0 or high < 0:
        yield f"{where}: minReplicas and maxReplicas must not be negative"
    elif low > high:
        yield f"{where}: minReplicas {low} is above maxReplicas {high}"
    hosts = group.get("numOfHosts")
    if hosts is not None and int(hosts) < 1:
        yield f"{where}: numOfHosts must be at least 1"


def _group_autoscaling(cluster: Json, group: Json, where: str) -> Iterator[str]:
    idle = group.get("idleTimeoutSeconds")
    if idle is not None:
        if int(idle) < 0:
            yield f"{where}: idleTimeoutSeconds must not be negative"
        if not view.uses_autoscaler_v2(cluster):
            yield f"{where}: idleTimeoutSeconds needs spec.autoscalerOptions.version: v2"
    if group.get("priority"):
        version = view.ray_version(cluster)
        if version is None or version < _PRIORITY_SINCE:
            yield f"{where}: priority needs spec.rayVersion 2.56.0 or newer"
        if not view.uses_autoscaler_v2(cluster):
            yield f"{where}: priority needs spec.autoscalerOptions.version: v2"


def _start_params(group: Json, where: str) -> Iterator[str]:
    params = view.start_params(group)
    resources = group.get("resources") or {}
    both = [key for key in _RESOURCE_PARAMS if params.get(key)]
    if resources and both:
        yield f"{where}: resources are given twice, by `resources` and by rayStartParams {', '.join(both)}; keep one"
    for key, value in sorted(params.items()):
        if not start_command.FLAG.fullmatch(key):
            yield f"{where}: rayStartParams has a key that is no flag: {key[:40]!r}"
        if "\0" in value:
            yield f"{where}: rayStartParams.{key} contains a NUL byte"
    if "labels" in params:
        yield f"{where}: write Ray labels into `labels`, not into rayStartParams"
    if params.get("resources") and start_command.resources_json(params["resources"]) is None:
        yield f"{where}: rayStartParams.resources is not a JSON object: {params['resources'][:60]}"
    for name, text in sorted(resources.items()):
        try:
            quantity.parse(text)
        except BadInput as error:
            yield f"{where}: resources.{name}: {error}"
    for key, value in sorted((group.get("labels") or {}).items()):
        yield from (f"{where}: labels: {problem}" for problem in problems_of_label(str(key), value))


def problems_of_label(key: str, value: Any) -> Iterator[str]:
    prefix, _, name = key.rpartition("/")
    if not _LABEL_NAME.fullmatch(name) or (prefix and (len(prefix) > 253 or not _DNS_SUBDOMAIN.fullmatch(prefix))):
        yield f"{key[:80]!r} is not a label key"
    if not isinstance(value, str) or not _LABEL_VALUE.fullmatch(value):
        yield f"{str(value)[:80]!r} is not a label value"


# --- fault tolerance


def _fault_tolerance(cluster: Json, settings: RaySettings) -> Iterator[str]:
    options = fault_tolerance.options(cluster)
    annotations = view.annotations_of(cluster)
    head = view.ray_container(view.head(cluster))
    params = view.start_params(view.head(cluster))
    if params.get("redis-username") or view.env_value(head, "REDIS_USERNAME") is not None:
        yield "the Redis user goes into spec.gcsFaultToleranceOptions.redisUsername, not into rayStartParams or env"
    if options is None:
        if view.env_value(head, "RAY_REDIS_ADDRESS") is not None and not fault_tolerance.enabled(cluster):
            yield "RAY_REDIS_ADDRESS is set without fault tolerance; use spec.gcsFaultToleranceOptions.redisAddress"
        return
    if annotations.get(names.FT_ENABLED):
        yield f"annotation {names.FT_ENABLED} and spec.gcsFaultToleranceOptions exclude each other; keep the options"
    if annotations.get(names.STORAGE_NAMESPACE):
        yield f"annotation {names.STORAGE_NAMESPACE}: use spec.gcsFaultToleranceOptions.externalStorageNamespace"
    if params.get("redis-password") or view.env_value(head, "REDIS_PASSWORD") is not None:
        yield "the Redis password goes into spec.gcsFaultToleranceOptions.redisPassword, not into rayStartParams or env"
    if view.env_value(head, "RAY_REDIS_ADDRESS") is not None:
        yield "RAY_REDIS_ADDRESS: use spec.gcsFaultToleranceOptions.redisAddress"
    if options.get("backend") == "rocksdb":
        yield from _embedded_storage(cluster, options, settings)
    elif options.get("storage") is not None:
        yield "spec.gcsFaultToleranceOptions.storage is for backend rocksdb"


def _embedded_storage(cluster: Json, options: Json, settings: RaySettings) -> Iterator[str]:
    if not settings.gate(EMBEDDED_STORAGE):
        yield f"spec.gcsFaultToleranceOptions.backend rocksdb {needs_gate(EMBEDDED_STORAGE)}"
    for field in ("redisAddress", "redisUsername", "redisPassword", "externalStorageNamespace"):
        if options.get(field) not in (None, ""):
            yield f"spec.gcsFaultToleranceOptions.{field} is for backend redis"
    storage = options.get("storage") or {}
    if storage.get("claimName") and any(
        storage.get(key) not in (None, []) for key in ("size", "storageClassName", "accessModes")
    ):
        yield "spec.gcsFaultToleranceOptions.storage: claimName excludes size, storageClassName and accessModes"
    head = view.ray_container(view.head(cluster))
    if any(entry.get("name") in ("RAY_gcs_storage", "RAY_gcs_storage_path") for entry in head.get("env") or []):
        yield "the head's RAY_gcs_storage variables are set by the operator; remove them"
    for mount in head.get("volumeMounts") or []:
        at_path = mount.get("mountPath") == fault_tolerance.STORAGE_PATH
        if at_path or mount.get("name") == fault_tolerance.STORAGE_VOLUME:
            yield f"the head mounts {mount.get('mountPath')}, which is for the embedded store; remove the mount"
    volumes = view.pod_spec(view.head(cluster)).get("volumes") or []
    if any(volume.get("name") == fault_tolerance.STORAGE_VOLUME for volume in volumes):
        yield f"the head has a volume named {fault_tolerance.STORAGE_VOLUME}, which is the operator's"


# --- autoscaling, auth, upgrades, what is gated


def _autoscaling(cluster: Json) -> Iterator[str]:
    options = view.autoscaler_options(cluster)
    by_env = view.env_value(view.ray_container(view.head(cluster)), "RAY_enable_autoscaler_v2")
    if by_env in ("1", "true") and not view.autoscaling(cluster):
        yield "RAY_enable_autoscaler_v2 needs spec.enableInTreeAutoscaling: true"
    if by_env is not None and options.get("version") and view.autoscaling(cluster):
        yield "choose the autoscaler by spec.autoscalerOptions.version or by RAY_enable_autoscaler_v2, not by both"
    if options.get("idleTimeoutSeconds") is not None and int(options["idleTimeoutSeconds"]) < 0:
        yield "spec.autoscalerOptions.idleTimeoutSeconds must not be negative"
    if any(entry.get("name") == "KUBERAY_GEN_AUTOSCALER_START_CMD" for entry in options.get("env") or []):
        yield "spec.autoscalerOptions.env: KUBERAY_GEN_AUTOSCALER_START_CMD is set by the operator"
    if view.autoscaling(cluster) and options.get("version") == "v2":
        if view.pod_spec(view.head(cluster)).get("restartPolicy") not in (None, "", "Never"):
            yield "spec.headGroupSpec: restartPolicy must be Never or unset with autoscaler v2"
        for group in view.groups(cluster):
            if view.pod_spec(group).get("restartPolicy") not in (None, "", "Never"):
                name = view.group_name(group)
                yield f"worker group {name!r}: restartPolicy must be Never or unset with autoscaler v2"


def _autoscaler_can_start(cluster: Json) -> Iterator[str]:
    """Ray's autoscaler ends at once when it finds no worker groups or a group without a number of CPUs."""
    if not view.autoscaling(cluster):
        return
    if "workerGroupSpecs" not in view.spec(cluster):
        yield "spec.workerGroupSpecs is missing, without which Ray's autoscaler does not start; write at least []"
    for group in (view.head(cluster), *view.groups(cluster)):
        resources = view.ray_container(group).get("resources") or {}
        told = (
            any(name.lower() == "cpu" for name in group.get("resources") or {})
            or view.start_params(group).get("num-cpus")
            or "cpu" in (resources.get("limits") or {})
            or "cpu" in (resources.get("requests") or {})
        )
        if view.containers(group) and not told:
            where = f"worker group {view.group_name(group)!r}" if group.get("groupName") else "spec.headGroupSpec"
            yield f"{where}: Ray's autoscaler needs to know its CPUs; set resources.limits.cpu of the Ray container"


def _auth(cluster: Json, settings: RaySettings) -> Iterator[str]:
    options = view.spec(cluster).get("authOptions")
    if not isinstance(options, dict) or auth.given_by_agent(cluster, settings):
        return
    version = view.ray_version(cluster)
    if options.get("enableK8sTokenAuth") is True:
        if options.get("mode") != "token":
            yield "spec.authOptions.enableK8sTokenAuth needs mode: token"
        if version is None or version < _KUBERNETES_TOKEN_SINCE:
            yield "spec.authOptions.enableK8sTokenAuth needs spec.rayVersion 2.55.0 or newer"
        if options.get("secretName"):
            yield "spec.authOptions: secretName and enableK8sTokenAuth exclude each other"
    elif (options.get("mode") or "token") == "token" and (version is None or version < auth.TOKEN_SINCE):
        yield "spec.authOptions: a token needs spec.rayVersion 2.52.0 or newer"


def _upgrade(cluster: Json, settings: RaySettings) -> Iterator[str]:
    strategy = view.spec(cluster).get("upgradeStrategy")
    if not isinstance(strategy, dict) or strategy.get("type") is None:
        return
    if strategy["type"] == "Rolling" and not settings.gate(ROLLING_UPGRADE):
        yield f"spec.upgradeStrategy.type: use Recreate or None; Rolling {needs_gate(ROLLING_UPGRADE)}"
    elif strategy["type"] not in ("Recreate", "Rolling", "None"):
        yield f"spec.upgradeStrategy.type {strategy['type']!r}: use Recreate or None"
    if view.origin(cluster) in ("RayJob", "RayService"):
        yield f"spec.upgradeStrategy is not for clusters made by a {view.origin(cluster)}"
