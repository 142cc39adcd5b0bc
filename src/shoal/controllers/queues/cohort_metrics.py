"""What the queues below a cohort have together, for Prometheus, under Kueue's names.

Read from specs and statuses when Prometheus asks. A cohort that is only named by queues counts, too; one that lies
below itself is left out, as its queues are inactive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from shoal.api.kind import Key
from shoal.api.kueue import ResourceGroup
from shoal.controllers.queues.caches import QueueCaches
from shoal.controllers.queues.quota_metrics import amounts, units

_ROLE = "standalone"
Amounts = dict[tuple[str, str], float]
"""By flavor and resource."""


def above(caches: QueueCaches, cohort: str) -> list[str]:
    """The cohort and those above it, up to the root; empty where they go round."""
    path: list[str] = []
    while cohort:
        if cohort in path:
            return []
        path.append(cohort)
        found = caches.cohorts.get(Key("", cohort))
        cohort = found.spec.parent_name if found is not None else ""
    return path


def known(caches: QueueCaches) -> list[str]:
    """Every cohort that is there, or that a queue or a cohort names."""
    parents = {one.metadata.name: one.spec.parent_name for one in caches.cohorts.list()}
    named = {queue.spec.cohort_name for queue in caches.cluster_queues.list()}
    return sorted({*parents, *parents.values(), *named} - {""})


class CohortSums:
    """The cohorts as they are now."""

    def __init__(self, caches: QueueCaches) -> None:
        self._cohorts = {one.metadata.name: one for one in caches.cohorts.list()}
        self._queues: dict[str, list[Any]] = {}
        self._below: dict[str, list[str]] = {}
        for queue in caches.cluster_queues.list():
            if queue.spec.cohort_name:
                self._queues.setdefault(queue.spec.cohort_name, []).append(queue)
        for name, cohort in self._cohorts.items():
            if cohort.spec.parent_name:
                self._below.setdefault(cohort.spec.parent_name, []).append(name)
        self.names = [name for name in known(caches) if above(caches, name)]

    def quota(self, cohort: str) -> Amounts:
        """What may be used in it: its own quota and what those below lend."""
        found = self._cohorts.get(cohort)
        parts = [_quotas(found.spec.resource_groups if found is not None else None)[0]]
        parts += [_lent(*_quotas(queue.spec.resource_groups)) for queue in self._queues.get(cohort, ())]
        for name in self._below.get(cohort, ()):
            parts.append(_lent(self.quota(name), _quotas(self._cohorts[name].spec.resource_groups)[1]))
        return _total(parts)

    def reserved(self, cohort: str) -> Amounts:
        used = [amounts(queue.status.flavors_reservation) for queue in self._queues.get(cohort, ())]
        parts = [{(flavor, resource): amount for flavor, resource, amount in one} for one in used]
        return _total([*parts, *(self.reserved(name) for name in self._below.get(cohort, ()))])

    def admitted(self, cohort: str) -> int:
        here = sum(int(queue.status.admitted_workloads) for queue in self._queues.get(cohort, ()))
        return here + sum(self.admitted(name) for name in self._below.get(cohort, ()))


def cohort_families(sums: CohortSums, admitted: Counter[tuple[str, str]]) -> Iterator[Any]:
    """What prometheus_client calls metric families. `admitted`: how many were, by ClusterQueue's cohort and class."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels = ["cohort", "flavor", "resource", "replica_role"]
    quota = GaugeMetricFamily("kueue_cohort_subtree_quota", "Quota in a cohort and below it.", labels=labels)
    reserved = GaugeMetricFamily(
        "kueue_cohort_subtree_resource_reservations", "Quota that Workloads below a cohort hold.", labels=labels
    )
    active = GaugeMetricFamily(
        "kueue_cohort_subtree_admitted_active_workloads",
        "Workloads below a cohort that are admitted.",
        labels=["cohort", "replica_role"],
    )
    for name in sums.names:
        for family, found in ((quota, sums.quota(name)), (reserved, sums.reserved(name))):
            for (flavor, resource), amount in sorted(found.items()):
                if amount > 0:
                    family.add_metric([name, flavor, resource, _ROLE], amount)
        active.add_metric([name, _ROLE], sums.admitted(name))
    yield from (quota, reserved, active)
    total = CounterMetricFamily(
        "kueue_cohort_subtree_admitted_workloads",
        "Workloads below a cohort that were admitted.",
        labels=["cohort", "priority_class", "replica_role"],
    )
    for (cohort, named), count in sorted(admitted.items()):
        total.add_metric([cohort, named, _ROLE], count)
    yield total


def _quotas(groups: tuple[ResourceGroup, ...] | None) -> tuple[Amounts, Amounts]:
    """Nominal quotas, and those of them of which not all is lent."""
    nominal: Amounts = {}
    lending: Amounts = {}
    for group in groups or ():
        for flavor in group.flavors:
            for quota in flavor.resources:
                nominal[flavor.name, quota.name] = units(quota.nominal_quota)
                if quota.lending_limit is not None:
                    lending[flavor.name, quota.name] = units(quota.lending_limit)
    return nominal, lending


def _total(parts: list[Amounts]) -> Amounts:
    made: Amounts = {}
    for part in parts:
        for at, amount in part.items():
            made[at] = made.get(at, 0.0) + amount
    return made


def _lent(quota: Amounts, lending: Amounts) -> Amounts:
    return {at: min(amount, lending.get(at, amount)) for at, amount in quota.items()}
