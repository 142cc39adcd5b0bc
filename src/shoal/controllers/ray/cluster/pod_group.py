"""A PodGroup for clusters that are scheduled by Kubernetes' scheduler-plugins instead of Shoal's own scheduler.

Chosen operator-wide, asked for by a label on the cluster, as KubeRay does; unlike there its numbers follow the cluster.
Pure; called by the reconciler.
"""

from __future__ import annotations

from shoal.api.labels import POD_GROUP
from shoal.api.meta import Json
from shoal.api.quantity import Quantity
from shoal.controllers.ray import view
from shoal.controllers.ray.cluster import counts
from shoal.controllers.ray.settings import RaySettings

SCHEDULER_PLUGINS = "scheduler-plugins"
SCHEDULER_NAME = "scheduler-plugins-scheduler"
ASKED_BY = "ray.io/gang-scheduling-enabled"
POD_LABEL = POD_GROUP


def wants_pod_group(cluster: Json, settings: RaySettings) -> bool:
    return settings.batch_scheduler == SCHEDULER_PLUGINS and ASKED_BY in view.labels(cluster)


def pod_group(cluster: Json, settings: RaySettings) -> Json:
    """Head and minimum workers (all of them without autoscaling), with everything that is injected."""
    total: dict[str, Quantity] = {}
    for _, count, pod in counts.gang_pods(cluster, settings):
        for name, amount in counts.pod_resources(pod["spec"]).items():
            before = total.get(name)
            total[name] = Quantity((before.nano if before else 0) + amount.nano * count, amount.format)
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {
            "name": view.name(cluster),
            "namespace": view.namespace(cluster),
            "ownerReferences": [view.owner_reference(cluster, "ray.io/v1", "RayCluster")],
        },
        "spec": {
            "minMember": counts.gang_size(cluster),
            "minResources": {name: str(amount) for name, amount in sorted(total.items())},
        },
    }


def join(pod: Json, cluster: Json) -> None:
    pod["metadata"]["labels"][POD_LABEL] = view.name(cluster)
    pod["spec"]["schedulerName"] = SCHEDULER_NAME
