"""The parts of batch/v1 that Shoal reads: Job, as a wrapped object, as a submitter and as a queued kind."""

from __future__ import annotations

import msgspec

from shoal.api.fields import ABSENT, PodTemplate
from shoal.api.meta import LabelSelector, Object, Part


class JobSpec(Part):
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str = "NonIndexed"
    backoff_limit: int = 6
    backoff_limit_per_index: int | None = None
    max_failed_indexes: int | None = None
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    suspend: bool = False
    manual_selector: bool | None = None
    selector: LabelSelector | None = None
    template: PodTemplate = ABSENT
    pod_failure_policy: msgspec.Raw = ABSENT
    success_policy: msgspec.Raw = ABSENT
    pod_replacement_policy: str = ""
    managed_by: str = ""


class JobCondition(Part):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_probe_time: str | None = None
    last_transition_time: str | None = None


class JobStatus(Part):
    active: int = 0
    ready: int | None = None
    succeeded: int = 0
    failed: int = 0
    terminating: int | None = None
    start_time: str | None = None
    completion_time: str | None = None
    completed_indexes: str = ""
    failed_indexes: str = ""
    conditions: tuple[JobCondition, ...] | None = None
    uncounted_terminated_pods: msgspec.Raw = ABSENT


class Job(Object):
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()
