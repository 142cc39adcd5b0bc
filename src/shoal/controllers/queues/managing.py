"""Which jobs are a queue's to start: by their label, or by a setting all of them, in the namespaces that take part.

Asked by admission before a job is stored and by the queue controller afterwards; both must answer alike. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.api import kinds, kueue_names
from shoal.api.labels import NAMESPACE_NAME
from shoal.api.meta import Json
from shoal.api.objects import label
from shoal.controllers.queues.jobs import GangJob
from shoal.controllers.queues.settings import QueueSettings
from shoal.kube.selectors import label_selector

BY_LABEL_ALONE = (kinds.APP_WRAPPER_V1BETA2, kinds.POD)
"""AppWrappers wait in line without a queue, too; most pods are parts of something else."""
DEFAULT = "default"
"""Name of the LocalQueue, and of the WorkloadPriorityClass, of jobs that name none."""


class Managing:
    def __init__(self, settings: QueueSettings) -> None:
        self._excluded = frozenset(settings.excluded_namespaces)
        self._selects = label_selector(settings.managed_namespaces)
        self.by_labels = bool(settings.managed_namespaces.strip())
        """Do labels of a namespace matter?"""
        self._unnamed = settings.manage_jobs_without_queue_name

    def has_part(self, namespace: str, labels: Mapping[str, str] | None = None) -> bool:
        """Do jobs of this namespace go by queues? `labels` are needed where `by_labels` says so."""
        if namespace in self._excluded:
            return False
        return not self.by_labels or self._selects({NAMESPACE_NAME: namespace, **(labels or {})})

    def waits_unnamed(self, kind: GangJob) -> bool:
        """Are jobs of this kind held that name no queue? They wait until they do."""
        return self._unnamed and kind.kind not in BY_LABEL_ALONE

    def is_queued(self, kind: GangJob, job: Json, *, child: bool = False) -> bool:
        """Is it for a queue to start this job, in a namespace that has part? Not what another job that is held made,
        nor what no queue can hold."""
        named = bool(label(job, kueue_names.QUEUE)) or self.waits_unnamed(kind)
        return named and not child and not kind.is_skipped(job)
