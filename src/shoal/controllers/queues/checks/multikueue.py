"""Gangs whose pods run in another cluster: quota is counted here, room and pods there.

Asked by the queue controller, which never starts or stops such a job itself; `controllers/multicluster` places it and
keeps a finalizer on its Workload for as long as anything of it may exist in another cluster. Pure.
"""

from __future__ import annotations

from typing import Protocol

from shoal.api.kueue import AdmissionCheck, ClusterQueue
from shoal.api.kueue_workload import Workload
from shoal.api.labels import HELD_ELSEWHERE, KUEUE_MULTIKUEUE, KUEUE_MULTIKUEUE_ORIGIN
from shoal.api.meta import Json
from shoal.api.objects import annotation, finalizers, label
from shoal.controllers.queues.checks.rules import rules_of

EPOCH = "shoal.dev/epoch"
"""Annotation of what another cluster's Shoal has put here: in which round of its dispatch."""


class ChecksByName(Protocol):
    def check(self, name: str) -> AdmissionCheck | None: ...


def is_copy(workload: Workload) -> bool:
    """Made by another cluster's hub, which brings its job only once it was admitted."""
    return bool(annotation(workload, EPOCH) or label(workload, KUEUE_MULTIKUEUE_ORIGIN))


def is_same_round(workload: Workload, job: Json) -> bool:
    """A job that arrives late, from a round that is over, gets nothing of the next one's Workload."""
    return annotation(workload, EPOCH) == annotation(job, EPOCH)


def is_held(workload: Json | Workload) -> bool:
    return HELD_ELSEWHERE in finalizers(workload)


def is_managed(job: Json) -> bool:
    """Does the job itself say that it runs in another cluster?"""
    return bool((job.get("spec") or {}).get("managedBy") == KUEUE_MULTIKUEUE)


def is_dispatched(workload: Workload, job: Json | None) -> bool:
    """Must nothing of it be started or stopped here?"""
    return is_held(workload) or (job is not None and is_managed(job))


def dispatches(cluster_queue: ClusterQueue | None, caches: ChecksByName) -> bool:
    """Does this queue give its gangs to other clusters?"""
    return bool(dispatching_check(cluster_queue, caches))


def dispatching_check(cluster_queue: ClusterQueue | None, caches: ChecksByName) -> str:
    """The check by which this queue gives its gangs to other clusters; empty where there is none."""
    for name in rules_of(cluster_queue):
        found = caches.check(name)
        if found is not None and found.spec.controller_name == KUEUE_MULTIKUEUE:
            return name
    return ""
