"""What follows from a change of a queue, a cohort, a flavor, a topology, a check, a namespace or a priority class.

Called by the caches with each change, in the order of the watch. The engine is told the new fact, Workloads that it
concerns are told again, and the objects that show it publish their status. Nothing is written or decided here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from shoal.api import kinds, kueue_names
from shoal.api.kind import Key, Kind
from shoal.api.objects import key_of, label
from shoal.controllers.planning import PlanningLoop
from shoal.controllers.queues.caches import QueueCaches, workload_key
from shoal.controllers.queues.changes import asks_otherwise, concerns_us
from shoal.controllers.queues.checks import rules_of
from shoal.controllers.queues.facts import QueueFacts
from shoal.controllers.queues.jobs import BY_KIND
from shoal.controllers.queues.metrics import QueueMetrics
from shoal.controllers.queues.publishing import Publishing
from shoal.controllers.queues.queue_status import KEPT, named_by
from shoal.controllers.queues.stored import StoredWorkload
from shoal.controllers.queues.workloads import class_of
from shoal.engine.kueue import read
from shoal.engine.model import Namespace
from shoal.errors import BadInput
from shoal.kube.cache import Change

log = logging.getLogger(__name__)


class QueueChanges:
    """`update_all(workloads)` tells them to the engine again and looks at them; `look(key)` only looks at one;
    `namespace_changed(name)`: its labels may be others."""

    def __init__(
        self,
        planning: PlanningLoop,
        caches: QueueCaches,
        facts: QueueFacts,
        publishing: Publishing,
        metrics: QueueMetrics,
        update_all: Callable[[Iterable[StoredWorkload]], None],
        look: Callable[[Key], None],
        namespace_changed: Callable[[str], None],
    ) -> None:
        self._planning, self._caches, self._facts = planning, caches, facts
        self._publishing, self._metrics = publishing, metrics
        self._update_all, self._look, self._namespace_changed = update_all, look, namespace_changed

    def take(self, kind: Kind, change: Change) -> None:
        if not concerns_us(change):
            return
        if kind in (kinds.CLUSTER_QUEUE, kinds.LOCAL_QUEUE) and not asks_otherwise(change):
            self._activity_changed(kind, change.key)
            return
        name, obj = change.key.name, change.new
        match kind:
            case kinds.CLUSTER_QUEUE:
                self._cluster_queue_changed(change)
            case kinds.COHORT:
                self._update_or_remove(f"Cohort/{name}", obj, read.cohort)
                self._metrics.forget_cohorts()
                self._publishing.shares()
            case kinds.RESOURCE_FLAVOR:
                self._update_or_remove(f"ResourceFlavor/{name}", obj, read.flavor)
                self._publishing.cluster_queues()
                for one in filter(None, (change.old, change.new)):
                    if one.spec.topology_name:
                        self._publishing.now(kinds.TOPOLOGY, Key("", one.spec.topology_name))
            case kinds.TOPOLOGY:
                self._update_or_remove(f"Topology/{name}", obj, read.topology)
                self._publishing.cluster_queues()
            case kinds.LOCAL_QUEUE:
                self._local_queue_changed(change)
            case kinds.ADMISSION_CHECK | kinds.PROVISIONING_REQUEST_CONFIG:
                self._checks_changed()
            case kinds.NAMESPACE:
                if obj is None:
                    self._planning.remove_fact(f"Namespace/{name}")
                else:
                    self._planning.update_fact(Namespace(name=name, labels=dict(obj.metadata.labels or {})))
                    self._namespace_changed(name)
            case kinds.WORKLOAD_PRIORITY_CLASS:
                self._class_changed(name)
            case kinds.PRIORITY_CLASS:
                self._class_changed("")  # of jobs that name none of ours, the pods' class may count
        if kind in (*KEPT, kinds.LOCAL_QUEUE):
            self._publishing.now(kind, change.key)
        self._planning.replan()

    def _activity_changed(self, kind: Kind, key: Key) -> None:
        """A queue is active now, or no longer: what we stored there ourselves. Queues that stand on it say so, too; the
        engine has decided it by what made it so."""
        self._publishing.now(kind, key)
        if kind == kinds.CLUSTER_QUEUE:
            self._publishing.local_queues(key.name)

    def _cluster_queue_changed(self, change: Change) -> None:
        name, old, new = change.key.name, change.old, change.new
        self._update_cluster_queue(name)
        self._update_all(self._workloads_of(name))
        self._publishing.local_queues(name)
        self._note_what_it_names(change)
        self._publishing.cohorts_above(name)
        if new is None:
            self._metrics.forget(name)
        if new is None or old is None or new.spec.cohort_name != old.spec.cohort_name:
            self._metrics.forget_cohorts()

    def _note_what_it_names(self, change: Change) -> None:
        """Flavors and checks that are to be deleted stay for as long as a queue names them."""
        for queue in filter(None, (change.old, change.new)):
            for kind in (kinds.RESOURCE_FLAVOR, kinds.ADMISSION_CHECK):
                for name in named_by(queue, kind):
                    self._publishing.now(kind, Key("", name))

    def _local_queue_changed(self, change: Change) -> None:
        self._update_or_remove(f"LocalQueue/{change.key}", change.new, read.local_queue)
        self._update_all(self._caches.workloads.by_index("queue", str(change.key)))
        if change.new is None:
            self._metrics.forget_local(change.key.name, change.key.namespace)
        for one in filter(None, (change.old, change.new)):
            self._publishing.soon(kinds.CLUSTER_QUEUE, Key("", one.spec.cluster_queue))

    def _checks_changed(self) -> None:
        for check in self._caches.checks:
            self._publishing.now(kinds.ADMISSION_CHECK, check)
        self._publishing.cluster_queues()
        for queue in self._caches.cluster_queues.list():
            self._update_cluster_queue(queue.metadata.name)
            if rules_of(queue):
                self._update_all(self._workloads_of(queue.metadata.name))

    def _class_changed(self, name: str) -> None:
        """Jobs with this label of a priority class: their Workloads take over its value, or can be made now."""
        for kind, cache in self._caches.jobs.items():
            for job in cache.list():
                if label(job, kueue_names.PRIORITY_CLASS) == name:
                    self._look(workload_key(BY_KIND[kind], job))
        for workload in self._caches.workloads.list() if name else ():
            if class_of(workload) == name and self._caches.job_of(key_of(workload)) is None:
                self._look(key_of(workload))

    def _workloads_of(self, cluster_queue: str) -> list[StoredWorkload]:
        found = self._caches.workloads.by_index("reserved", cluster_queue)
        for local in self._caches.local_queues_of(cluster_queue):
            found += self._caches.workloads.by_index("queue", str(key_of(local)))
        return list({one.metadata.uid: one for one in found}.values())

    def _update_cluster_queue(self, name: str) -> None:
        self._update_or_remove(f"ClusterQueue/{name}", self._caches.cluster_queue(name), self._facts.cluster_queue)

    def _update_or_remove(self, key: str, obj: Any, made: Callable[[Any], Any]) -> None:
        if obj is None:
            self._planning.remove_fact(key)
            return
        try:
            self._planning.update_fact(made(obj))
        except (BadInput, AttributeError, KeyError, TypeError, ValueError) as error:
            log.warning("%s is left out: %s", key, error)
            self._planning.remove_fact(key)
