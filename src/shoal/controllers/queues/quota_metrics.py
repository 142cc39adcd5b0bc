"""Quota and usage of queues for Prometheus, under Kueue's names and with its labels.

Read from what is stored when Prometheus asks: quotas from the specs, usage from the statuses that the controller keeps.
Amounts are in units as Kueue gives them: cores, bytes, devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import Any

from shoal.api.kueue import ClusterQueue, FlavorUsage, LocalQueue
from shoal.api.quantity import NANO, parse
from shoal.controllers.queues.caches import QueueCaches
from shoal.errors import BadInput

_OF_CLUSTER_QUEUE = ["cohort", "cluster_queue", "flavor", "resource", "replica_role"]
_OF_LOCAL_QUEUE = ["name", "namespace", "flavor", "resource", "replica_role"]
_ROLE = "standalone"


def quota_families(caches: QueueCaches) -> Iterator[Any]:
    """What prometheus_client calls metric families."""
    yield from _quotas(caches.cluster_queues.list())
    yield from _usage_of_cluster_queues(caches.cluster_queues.list())
    yield from _local_queues(caches.local_queues.list())


def _quotas(queues: Iterable[ClusterQueue]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    nominal = GaugeMetricFamily("kueue_cluster_queue_nominal_quota", "Nominal quota.", labels=_OF_CLUSTER_QUEUE)
    borrowing = GaugeMetricFamily(
        "kueue_cluster_queue_borrowing_limit", "Borrowing limit; +Inf where it is not set.", labels=_OF_CLUSTER_QUEUE
    )
    lending = GaugeMetricFamily(
        "kueue_cluster_queue_lending_limit", "Lending limit; +Inf where it is not set.", labels=_OF_CLUSTER_QUEUE
    )
    for queue in queues:
        for group in queue.spec.resource_groups or ():
            for flavor in group.flavors:
                for quota in flavor.resources:
                    labels = [queue.spec.cohort_name, queue.metadata.name, flavor.name, quota.name, _ROLE]
                    nominal.add_metric(labels, units(quota.nominal_quota))
                    borrowing.add_metric(labels, _limit(quota.borrowing_limit))
                    lending.add_metric(labels, _limit(quota.lending_limit))
    yield from (nominal, borrowing, lending)


def _usage_of_cluster_queues(queues: list[Any]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    reserved = GaugeMetricFamily(
        "kueue_cluster_queue_resource_reservation", "Quota that Workloads hold.", labels=_OF_CLUSTER_QUEUE
    )
    used = GaugeMetricFamily(
        "kueue_cluster_queue_resource_usage", "Quota that admitted Workloads hold.", labels=_OF_CLUSTER_QUEUE
    )
    for queue in queues:
        cohort, name, status = queue.spec.cohort_name, queue.metadata.name, queue.status
        for family, usages in ((reserved, status.flavors_reservation), (used, status.flavors_usage)):
            for flavor, resource, amount in amounts(usages):
                family.add_metric([cohort, name, flavor, resource, _ROLE], amount)
    yield from (reserved, used)


def _local_queues(queues: list[Any]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    named = ["name", "namespace", "replica_role"]
    pending = GaugeMetricFamily(
        "kueue_local_queue_pending_workloads",
        "Workloads of a LocalQueue that wait for quota.",
        labels=["name", "namespace", "status", "replica_role"],
    )
    reserving = GaugeMetricFamily(
        "kueue_local_queue_reserving_active_workloads", "Workloads of a LocalQueue that hold quota.", labels=named
    )
    admitted = GaugeMetricFamily(
        "kueue_local_queue_admitted_active_workloads", "Workloads of a LocalQueue that are admitted.", labels=named
    )
    reserved = GaugeMetricFamily(
        "kueue_local_queue_resource_reservation", "Quota that its Workloads hold.", labels=_OF_LOCAL_QUEUE
    )
    used = GaugeMetricFamily(
        "kueue_local_queue_resource_usage", "Quota that its admitted Workloads hold.", labels=_OF_LOCAL_QUEUE
    )
    for queue in queues:
        name, status = [queue.metadata.name, queue.metadata.namespace], queue.status
        for state in ("active", "inadmissible"):
            count = status.pending_workloads if (state == "active") is _is_active(queue) else 0
            pending.add_metric([*name, state, _ROLE], count)
        reserving.add_metric([*name, _ROLE], status.reserving_workloads)
        admitted.add_metric([*name, _ROLE], status.admitted_workloads)
        for family, usages in ((reserved, status.flavors_reservation), (used, status.flavors_usage)):
            for flavor, resource, amount in amounts(usages):
                family.add_metric([*name, flavor, resource, _ROLE], amount)
    yield from (pending, reserving, admitted, reserved, used)


def _is_active(queue: LocalQueue) -> bool:
    return any(one.type == "Active" and one.status == "True" for one in queue.status.conditions or ())


def amounts(usages: tuple[FlavorUsage, ...] | None) -> Iterator[tuple[str, str, float]]:
    """Flavor, resource and amount of a status."""
    for flavor in usages or ():
        for one in flavor.resources:
            yield flavor.name, one.name, units(one.total)


def _limit(text: str | int | float | None) -> float:
    return inf if text is None else units(text)


def units(text: str | int | float) -> float:
    """A stored quantity as a number; one that cannot be read counts nothing."""
    try:
        return parse(text).nano / NANO
    except BadInput:
        return 0.0
