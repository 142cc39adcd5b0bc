"""Numbers that follow from a RayCluster: how many pods, and what they ask for.

Two readings on purpose. `desired_resources` is what KubeRay publishes in the status (templates as written, replicas
as written) and what tools compare; `gang_pods` counts what will really exist, injected containers included, because
admission depends on it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.api import quantity
from shoal.api.gpus import is_gpu
from shoal.api.meta import Json
from shoal.api.quantity import Quantity
from shoal.controllers.ray import view
from shoal.controllers.ray.pods import builder
from shoal.controllers.ray.settings import RaySettings

Amounts = dict[str, Quantity]


def wanted_replicas(group: Json) -> int:
    """Replicas (of `numOfHosts` pods each) between the bounds; none when the group is suspended."""
    if group.get("suspend") is True:
        return 0
    return max(min(view.replicas(group), view.max_replicas(group)), view.min_replicas(group))


def wanted_pods(group: Json) -> int:
    return wanted_replicas(group) * view.hosts(group)


def desired_workers(cluster: Json) -> int:
    return sum(wanted_pods(group) for group in view.groups(cluster))


def min_workers(cluster: Json) -> int:
    return sum(view.min_replicas(group) * view.hosts(group) for group in _active(cluster))


def max_workers(cluster: Json) -> int:
    total = sum(view.max_replicas(group) * view.hosts(group) for group in _active(cluster))
    return min(total, view.MAX_INT32)


def gang_size(cluster: Json) -> int:
    """Pods that must start together: with an autoscaler the minimum, else all."""
    return 1 + (min_workers(cluster) if view.autoscaling(cluster) else desired_workers(cluster))


def desired_resources(cluster: Json) -> Amounts:
    """Head and workers at `replicas` as written, as KubeRay publishes it."""
    return _sum(cluster, lambda group: max(0, view.replicas(group)))


def min_resources(cluster: Json) -> Amounts:
    return _sum(cluster, lambda group: view.min_replicas(group))


def gang_pods(cluster: Json, settings: RaySettings) -> list[tuple[str, int, Json]]:
    """Pod sets as they will exist: name, count and a pod with everything that is injected."""
    sets = [("head", 1, builder.head_pod(cluster, settings))]
    for group in view.groups(cluster):
        count = view.min_replicas(group) * view.hosts(group) if view.autoscaling(cluster) else wanted_pods(group)
        sets.append((view.group_name(group), count, builder.worker_pod(cluster, group, settings)))
    return sets


def pod_resources(spec: Json) -> Amounts:
    """The sum over containers of requests, limits standing in where there is no request."""
    total: Amounts = {}
    for container in spec.get("containers") or []:
        resources = container.get("resources") or {}
        wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, text in wanted.items():
            _add(total, name, quantity.parse(text), 1)
    return total


def total_of(amounts: Amounts, matches: str) -> str:
    """One of the published totals: `cpu`, `memory`, `gpu` or `tpu`."""
    total = Quantity(0)
    for name, amount in amounts.items():
        if (matches == "gpu" and is_gpu(name)) or (matches == "tpu" and name == "google.com/tpu") or name == matches:
            total = Quantity(total.nano + amount.nano, amount.format)
    return str(total)


def _sum(cluster: Json, replicas_of: Callable[[Json], int]) -> Amounts:
    total = pod_resources(view.pod_spec(view.head(cluster)))
    for group in _active(cluster):
        times = replicas_of(group) * view.hosts(group)
        for name, amount in pod_resources(view.pod_spec(group)).items():
            _add(total, name, amount, times)
    return total


def _active(cluster: Json) -> list[Json]:
    return [group for group in view.groups(cluster) if group.get("suspend") is not True]


def _add(total: Amounts, name: str, amount: Quantity, times: int) -> None:
    before = total.get(name)
    total[name] = Quantity(
        (before.nano if before else 0) + amount.nano * times, before.format if before else amount.format
    )
