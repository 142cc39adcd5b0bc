"""What an administrator may choose about queues. Read once at the entry point and passed down."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from shoal.controllers.demand import RaySidecars
from shoal.controllers.queues.jobs.configured import JobKind
from shoal.engine.kueue import KueueSettings as DecisionSettings
from shoal.engine.kueue import ShareStrategy, UsageSharing
from shoal.engine.kueue.read import Transformation
from shoal.errors import BadInput
from shoal.kube.selectors import label_selector

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class PodsReady(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to an admitted gang whose pods do not all become ready. Seconds."""

    timeout: Seconds = 1800.0
    """For all pods to be ready after the start; then the gang goes back to its queue."""
    recovery_timeout: Seconds = 1800.0
    """For a pod that was ready to be ready again."""
    block_admission: bool = False
    """Admit nothing new while an admitted gang is not ready."""
    requeue_by: Literal["Eviction", "Creation"] = "Eviction"
    """Which moment counts for its place in the queue afterwards."""
    backoff_limit: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """How often a gang may come back before it is switched off; not set: for ever."""
    backoff_base: Seconds = 60.0
    """Pause before the first new start; doubled with every further one."""
    backoff_most: Seconds = 3600.0
    """Longest such pause."""


SHORTEST_SAMPLING = 100_000
"""Microseconds. Kueue takes any interval above 0; every one of them is a plan and a status of each LocalQueue."""


class AdmissionFairSharing(msgspec.Struct, frozen=True, kw_only=True):
    """What Kueue calls admissionFairSharing: LocalQueues that had less lately go first in a ClusterQueue whose
    `admissionScope` asks for it."""

    half_life_seconds: Seconds = 0.0
    """After which usage counts half; 0: usage is not accumulated."""
    sampling_seconds: Annotated[float, msgspec.Meta(gt=0, le=86400)] = 300.0
    """How often what runs is added to the usage of its LocalQueue; no more often than ten times a second."""
    resource_weights: tuple[str, ...] = ()
    """`RESOURCE=WEIGHT`: how much one core, byte or device of a resource counts; 1 where it is not named."""
    per_user: bool = False
    """Within a LocalQueue, users that had less lately go first, too. Kueue does not know users."""

    @property
    def decisions(self) -> UsageSharing:
        return UsageSharing(
            half_life=round(self.half_life_seconds * 1_000_000),
            sampling=max(SHORTEST_SAMPLING, round(self.sampling_seconds * 1_000_000)),
            weights=dict(_weight(text) for text in self.resource_weights),
            per_user=self.per_user,
        )


def _weight(text: str) -> tuple[str, float]:
    name, _, weight = text.rpartition("=")
    try:
        found = float(weight)
    except ValueError:
        found = -1.0
    if not name or not 0 <= found < float("inf"):
        raise BadInput(f"admission_fair_sharing.resource_weights: {text!r}; write RESOURCE=WEIGHT, such as cpu=2")
    return name, found


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    supply: Literal["fit", "off"] = "fit"
    """`fit`: a gang with quota starts once all its pods can be placed; `off`: quota and checks alone decide."""
    pods_ready: PodsReady | None = None
    """What Kueue calls waitForPodsReady. Not set: a gang may take as long as it likes to become ready."""
    recovery_seconds: Seconds = 300.0
    """For how long a gang may lack pods that it has lost while it keeps another from being whole; 0: for ever."""
    preemption_pause_seconds: Seconds | None = None
    """How long a gang that may evict others waits for them to end by themselves; their quota is kept for it. Not set:
    where gangs of the cohort ended within ten lately, until those have run for twenty; where as much as it needs of
    its own queue's quota comes back within five anyway, twenty; where too few have ended to tell, six for gangs that
    have just started; elsewhere not at all. 0: never."""
    drain_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    """How long workers of a queued Ray cluster have after Ray was told that they go (its own drain call), where a grown
    cluster shrinks or a gang is preempted; 0: they go at once. A ClusterQueue's annotation `shoal.dev/drain-seconds`
    goes before it."""
    provisioning_seconds: Seconds | None = None
    """How long a ProvisioningRequest may stay without an answer before it counts as failed; not set: for ever."""
    fair_sharing: bool = False
    """Share borrowed quota by dominant resource instead of by priority alone."""
    preemption_strategies: tuple[ShareStrategy, ...] = ("LessThanOrEqualToFinalShare", "LessThanInitialShare")
    """Fair sharing: when a gang may preempt in a queue with a larger share, tried in order, as Kueue's
    `fairSharing.preemptionStrategies`."""
    admission_fair_sharing: AdmissionFairSharing | None = None
    """Usage decides between LocalQueues of one ClusterQueue. Not set: it does not, whatever `admissionScope` says."""
    quota_check_strategy: Literal["BlockUndeclared", "IgnoreUndeclared"] = "BlockUndeclared"
    """Gangs that ask for a resource of which their queue has no quota: `BlockUndeclared` keeps them waiting,
    `IgnoreUndeclared` does not count that resource."""
    partial_admission: bool = True
    """Let `minCount` of a pod set shrink a gang so that it fits."""
    priority_boost: bool = False
    """Read the annotation `kueue.x-k8s.io/priority-boost` of Workloads."""
    device_tolerations: bool = False
    """Does the API server let pods that ask for a device tolerate a taint of that name? The embedded one does."""
    manage_jobs_without_queue_name: bool = False
    """Hold jobs without a queue label, too, until they name a queue. AppWrappers wait in line anyway."""
    managed_namespaces: str = ""
    """Label selector of the namespaces whose jobs go by queues, such as `team in (a,b),!trial`; empty: all."""
    local_queue_metrics: bool = True
    """Tell metrics of every LocalQueue; without them a scrape of many queues is shorter."""
    local_queue_metrics_selector: str = ""
    """Label selector of the LocalQueues whose metrics are told; empty: all."""
    excluded_namespaces: tuple[str, ...] = ("kube-system",)
    """Where no job is queued, whatever its label says."""
    ray_sidecars: RaySidecars = RaySidecars()
    """As the Ray operator is told by its own file; they count in a gang's demand."""
    job_kinds: tuple[JobKind, ...] = ()
    """Custom kinds of jobs that queues hold, as a list in JSON, or `@FILE` with YAML."""
    copied_labels: tuple[str, ...] = ()
    """Keys of job labels that its Workload carries, too."""
    excluded_prefixes: tuple[str, ...] = ()
    """Resources whose names begin so need no quota."""
    transformations: tuple[Transformation, ...] = ()
    """What a request for one resource (`input`) counts in quota: `outputs` for each whole unit of it, times what is
    asked of the resource `multiply_by`, instead of the input (`replace`) or beside it. A list in JSON, or `@FILE`
    with YAML."""
    frameworks: tuple[str, ...] = ()
    """Kinds of jobs that queues hold, by Kueue's names, such as `batch/job,ray.io/rayjob,pod`; empty: all."""
    explicit_status: bool = False
    """Say of a new gang that it waits, before it was looked at: one more write for each."""
    keep_finished_seconds: Seconds | None = None
    """How long a finished Workload is kept; not set: as long as its job."""
    keep_deactivated_seconds: Seconds | None = None
    """How long a job is kept that its queue has switched off for good (a check said no, too many tries, too long a
    run); then it is deleted. Not set: for ever."""
    check_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=86400)] = 30.0
    """How often everything is compared again, whatever was heard."""
    events: bool = True
    """Write events about jobs and Workloads."""

    def __post_init__(self) -> None:
        for name in ("managed_namespaces", "local_queue_metrics_selector"):
            try:
                label_selector(getattr(self, name))
            except BadInput as error:
                raise ValueError(f"{name}: {error}") from None

    @property
    def decisions(self) -> DecisionSettings:
        pause = self.preemption_pause_seconds
        return DecisionSettings(
            fair_sharing=self.fair_sharing,
            share_strategies=self.preemption_strategies,
            usage_sharing=self.admission_fair_sharing.decisions if self.admission_fair_sharing is not None else None,
            ignore_undeclared=self.quota_check_strategy == "IgnoreUndeclared",
            partial_admission=self.partial_admission,
            patience=None if pause is None else round(pause * 1_000_000),
            wait_for_pods_ready=self.pods_ready is not None and self.pods_ready.block_admission,
        )
