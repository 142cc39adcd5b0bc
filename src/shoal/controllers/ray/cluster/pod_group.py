"""Clusters that another batch scheduler starts as gangs: its group object and its marks on pods.

Chosen operator-wide, as KubeRay does. Volcano and scheduler-plugins have a PodGroup, whose numbers follow the cluster
and count everything that is injected; YuniKorn reads task groups from the pods; KAI a queue. Pure; called by the
reconciler.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.labels import POD_GROUP
from shoal.api.meta import Json
from shoal.api.quantity import Quantity
from shoal.controllers.ray import names, view
from shoal.controllers.ray.cluster import counts
from shoal.controllers.ray.settings import KAI, SCHEDULER_PLUGINS, VOLCANO, YUNIKORN, RaySettings

ASKED_BY = "ray.io/gang-scheduling-enabled"
PRIORITY_CLASS = "ray.io/priority-class-name"
VOLCANO_QUEUE = "volcano.sh/queue-name"
KAI_QUEUE = "kai.scheduler/queue"
_SCHEDULER_NAMES = {SCHEDULER_PLUGINS: "scheduler-plugins-scheduler"}
_YUNIKORN = "yunikorn.apache.org/"
_TOPOLOGY = "volcano.sh/network-topology-"


def wants_pod_group(cluster: Json, settings: RaySettings) -> bool:
    """Is there a group object? scheduler-plugins needs to be asked, Volcano has one for every cluster."""
    return settings.batch_scheduler == VOLCANO or (
        settings.batch_scheduler == SCHEDULER_PLUGINS and ASKED_BY in view.labels(cluster)
    )


def pod_group_kind(settings: RaySettings) -> Kind:
    return kinds.VOLCANO_POD_GROUP if settings.batch_scheduler == VOLCANO else kinds.POD_GROUP


def pod_group(cluster: Json, settings: RaySettings) -> Json:
    """Head and minimum workers (all of them without autoscaling), with everything that is injected."""
    total: dict[str, Quantity] = {}
    for _, count, pod in counts.gang_pods(cluster, settings):
        for name, amount in counts.pod_resources(pod["spec"]).items():
            before = total.get(name)
            total[name] = Quantity((before.nano if before else 0) + amount.nano * count, amount.format)
    kind, is_volcano = pod_group_kind(settings), settings.batch_scheduler == VOLCANO
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": _volcano_name(cluster) if is_volcano else view.name(cluster),
            "namespace": view.namespace(cluster),
            "ownerReferences": [view.owner_reference(cluster, "ray.io/v1", "RayCluster")],
        },
        "spec": {
            "minMember": counts.gang_size(cluster),
            "minResources": {name: str(amount) for name, amount in sorted(total.items())},
            **(_volcano_spec(view.labels(cluster)) if is_volcano else {}),
        },
    }


def join(pod: Json, cluster: Json, settings: RaySettings, group: str) -> None:
    """Mark a pod, or a template of one, as a member; `group` is its worker group, `headgroup` or `submitter`."""
    scheduler, asked = settings.batch_scheduler, view.labels(cluster)
    if scheduler == SCHEDULER_PLUGINS and ASKED_BY not in asked:
        return
    metadata = pod["metadata"]
    labels, annotations = dict(metadata.get("labels") or {}), dict(metadata.get("annotations") or {})
    copied: dict[str, str] = {}
    match scheduler:
        case "scheduler-plugins":
            labels[POD_GROUP] = view.name(cluster)
        case "volcano":
            copied = {VOLCANO_QUEUE: VOLCANO_QUEUE, PRIORITY_CLASS: PRIORITY_CLASS}
            annotations["scheduling.k8s.io/group-name"] = _volcano_name(cluster)
            annotations["volcano.sh/task-spec"] = group
        case "yunikorn":
            copied = {f"{_YUNIKORN}app-id": "applicationId", f"{_YUNIKORN}queue": "queue"}
            if ASKED_BY in asked:
                annotations[f"{_YUNIKORN}task-groups"] = task_groups(cluster, settings)
                annotations[f"{_YUNIKORN}task-group-name"] = group
        case "kai-scheduler":
            copied = {KAI_QUEUE: KAI_QUEUE}
        case _:
            return
    labels.update({target: asked[source] for source, target in copied.items() if asked.get(source)})
    metadata["labels"], metadata["annotations"] = labels, annotations
    pod["spec"]["schedulerName"] = _SCHEDULER_NAMES.get(scheduler, scheduler)


def task_groups(cluster: Json, settings: RaySettings) -> str:
    """YuniKorn's, as JSON; a user that writes them on the cluster knows better."""
    given = view.annotations_of(cluster).get(f"{_YUNIKORN}task-groups")
    if given:
        return given
    groups: list[dict[str, Any]] = []
    for name, count, pod in counts.gang_pods(cluster, settings):
        spec = pod["spec"]
        group: dict[str, Any] = {
            "name": names.HEAD_GROUP if name == "head" and not groups else name,
            "minMember": count,
            "minResource": {key: str(amount) for key, amount in sorted(counts.pod_resources(spec).items())},
        }
        group.update({field: spec[field] for field in ("nodeSelector", "tolerations", "affinity") if spec.get(field)})
        groups.append(group)
    return msgspec.json.encode(groups).decode()


def warnings_of_scheduler(cluster: Json, settings: RaySettings) -> list[str]:
    """What would keep its pods pending."""
    if settings.batch_scheduler == KAI and not view.labels(cluster).get(KAI_QUEUE):
        return [f"label {KAI_QUEUE} is missing; KAI leaves its pods pending without a queue"]
    if settings.batch_scheduler == YUNIKORN and not view.labels(cluster).get(f"{_YUNIKORN}app-id"):
        return [f"label {_YUNIKORN}app-id is missing; YuniKorn takes its pods for applications of their own"]
    return []


def _volcano_name(cluster: Json) -> str:
    """After the RayJob that made the cluster, where one did."""
    of_job = view.origin(cluster) == "RayJob"
    return f"ray-{(of_job and view.labels(cluster).get(names.ORIGIN_NAME)) or view.name(cluster)}-pg"


def _volcano_spec(labels: dict[str, str]) -> Json:
    spec: Json = {}
    if labels.get(VOLCANO_QUEUE):
        spec["queue"] = labels[VOLCANO_QUEUE]
    if labels.get(PRIORITY_CLASS):
        spec["priorityClassName"] = labels[PRIORITY_CLASS]
    if labels.get(f"{_TOPOLOGY}mode"):
        spec["networkTopology"] = {"mode": labels[f"{_TOPOLOGY}mode"]}
        tier = labels.get(f"{_TOPOLOGY}highest-tier-allowed", "")
        if tier.isascii() and tier.isdigit():
            spec["networkTopology"]["highestTierAllowed"] = int(tier)
    return spec
