"""Reading a RayCluster as it travels: plain dictionaries, with the defaults of its schema applied on the way out.

Templates must survive unread, so clusters are not decoded into types; these functions are the only place that knows
where a field lives and what its absence means. They never change what they are given.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from shoal.api.labels import IMAGE_ENVIRONMENT
from shoal.api.meta import Json
from shoal.controllers.ray import names

MAX_INT32 = 2**31 - 1
_VERSION = re.compile(r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)

clone = copy.deepcopy


def spec(cluster: Json) -> Json:
    return cluster.get("spec") or {}


def metadata(thing: Json) -> Json:
    return thing.get("metadata") or {}


def labels(thing: Json) -> dict[str, str]:
    return metadata(thing).get("labels") or {}


def annotations_of(thing: Json) -> dict[str, str]:
    return metadata(thing).get("annotations") or {}


def image_environment(obj: Json) -> dict[str, str]:
    """The annotation that chooses the environment of all its pods on one machine, if it is there."""
    found = annotations_of(obj).get(IMAGE_ENVIRONMENT)
    return {IMAGE_ENVIRONMENT: found} if found else {}


def name(thing: Json) -> str:
    return str(metadata(thing).get("name") or "")


def namespace(thing: Json) -> str:
    return str(metadata(thing).get("namespace") or "default")


def uid(thing: Json) -> str:
    return str(metadata(thing).get("uid") or "")


def generation(thing: Json) -> int:
    return int(metadata(thing).get("generation") or 0)


def deleting(thing: Json) -> bool:
    return bool(metadata(thing).get("deletionTimestamp"))


def head(cluster: Json) -> Json:
    return spec(cluster).get("headGroupSpec") or {}


def groups(cluster: Json) -> list[Json]:
    return [group for group in spec(cluster).get("workerGroupSpecs") or [] if isinstance(group, dict)]


def group_name(group: Json) -> str:
    return str(group.get("groupName") or "")


def start_params(group: Json) -> dict[str, str]:
    return {str(key): _text(value) for key, value in (group.get("rayStartParams") or {}).items()}


def pod_spec(group: Json) -> Json:
    return (group.get("template") or {}).get("spec") or {}


def containers(group: Json) -> list[Json]:
    return list(pod_spec(group).get("containers") or [])


def ray_container(group: Json) -> Json:
    """The first container is Ray's, always."""
    found = containers(group)
    return found[0] if found else {}


def env_value(container: Json, variable: str) -> str | None:
    """The last value of a variable, `""` when it comes from elsewhere, None when it is not set."""
    for entry in reversed(container.get("env") or []):
        if entry.get("name") == variable:
            return str(entry.get("value") or "")
    return None


def autoscaling(cluster: Json) -> bool:
    return spec(cluster).get("enableInTreeAutoscaling") is True


def autoscaler_options(cluster: Json) -> Json:
    return spec(cluster).get("autoscalerOptions") or {}


def uses_autoscaler_v2(cluster: Json) -> bool:
    if autoscaler_options(cluster).get("version") == "v2":
        return True
    return env_value(ray_container(head(cluster)), "RAY_enable_autoscaler_v2") in ("1", "true")


def suspended(cluster: Json) -> bool:
    """Asked to be suspended: by the user or, when idle, by Ray's autoscaler. A missing field means no."""
    return spec(cluster).get("suspend") is True or spec(cluster).get("idleSuspend") is True


def replicas(group: Json) -> int:
    """`replicas` as written; its absence means the minimum."""
    written = group.get("replicas")
    return min_replicas(group) if written is None else int(written)


def min_replicas(group: Json) -> int:
    return int(group.get("minReplicas") or 0)


def max_replicas(group: Json) -> int:
    written = group.get("maxReplicas")
    return MAX_INT32 if written is None else int(written)


def hosts(group: Json) -> int:
    return max(1, int(group.get("numOfHosts") or 1))


def workers_to_delete(group: Json) -> list[str]:
    return [str(pod) for pod in (group.get("scaleStrategy") or {}).get("workersToDelete") or []]


def head_port(cluster: Json) -> str:
    return start_params(head(cluster)).get("port") or "6379"


def dashboard_port(cluster: Json) -> int:
    """The port that others reach the dashboard at: the head container's port of that name, else Ray's own."""
    return container_port(ray_container(head(cluster)), "dashboard", 8265)


def container_port(container: Json, port_name: str, default: int) -> int:
    for port in container.get("ports") or []:
        if port.get("name") == port_name:
            return int(port.get("containerPort") or default)
    return default


def head_service_name(cluster: Json) -> str:
    given = ((head(cluster).get("headService") or {}).get("metadata") or {}).get("name")
    return str(given) if given else names.head_service(name(cluster))


def origin(cluster: Json) -> str:
    """The kind that made this cluster; a user's own is a RayCluster."""
    return labels(cluster).get(names.ORIGIN_KIND) or "RayCluster"


def ray_version(cluster: Json) -> tuple[int, int, int] | None:
    return parse_version(str(spec(cluster).get("rayVersion") or ""))


def parse_version(text: str) -> tuple[int, int, int] | None:
    """`2.53.0rc1` as (2, 53, 0), `2.53` and `2.53.x` too; None for what is not a version."""
    found = _VERSION.match(text.strip())
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def owner_reference(owner: Json, api_version: str, kind: str) -> Json:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name(owner),
        "uid": uid(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def stored_part(status: Json) -> Json:
    """A status without texts that are empty, as KubeRay stores it: clients take a `state` that is there for one of its
    words."""
    return {key: value for key, value in status.items() if value != ""}
