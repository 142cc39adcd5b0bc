"""AppWrapper, SchedulingSpec and QuotaSubtree: MCAD's dialect, in its current and its legacy groups.

v1beta1 and v1beta2 share one group, one CRD and one stored shape, so one type holds the fields of both and `dialect`
says per object which rules apply. The lower-case names on the wire are MCAD's. Wrapped objects stay raw.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from shoal.api.core import Named, Toleration
from shoal.api.fields import (
    ABSENT,
    Embedded,
    Immutable,
    Int32,
    Int64,
    OpaqueList,
    OpaqueMap,
    Resources,
    Rule,
    Timestamp,
)
from shoal.api.meta import LabelSelector, Object, Part

Dialect = Literal["v1beta1", "v1beta2"]
Count = Annotated[Int32, Rule(minimum=0)]
MicroTime = Annotated[str, Rule(format="date-time")]

CONTROLLER_NAME = "workload.codeflare.dev/appwrapper-controller"
FINALIZER = "workload.codeflare.dev/finalizer"

# --- of both dialects


class PodSetInfo(Part):
    """What a queue injects into one pod set's template at admission."""

    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    node_selector: dict[str, str] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    scheduling_gates: tuple[Named, ...] | None = None


# --- v1beta1: wrapped objects under spec.resources


class CustomPodResource(Part):
    """Declared needs of `replicas` like pods; they replace what the template says."""

    replicas: Annotated[Count, Rule(required=True)] = 0
    requests: Annotated[Resources, Rule(required=True)] | None = None
    limits: Resources | None = None


class GenericItem(Part):
    """One wrapped object. Only the template, the declared pod resources and the completion status have an effect."""

    generic_template: Embedded = msgspec.field(default=ABSENT, name="generictemplate")
    custom_pod_resources: tuple[CustomPodResource, ...] | None = msgspec.field(default=None, name="custompodresources")
    completion_status: str = msgspec.field(default="", name="completionstatus")
    replicas: Int32 = 0
    min_available: Int32 | None = msgspec.field(default=None, name="minavailable")
    allocated: Int32 = 0
    priority: Int32 = 0
    priority_slope: float = msgspec.field(default=0.0, name="priorityslope")
    metadata: OpaqueMap = ABSENT
    pod_set_infos: tuple[PodSetInfo, ...] | None = None
    """Ours: set where a queue of Kueue's dialect has let this AppWrapper start."""


class LegacyItem(Part):
    """An item of the legacy group's typed list; read as a GenericItem around `template`."""

    template: Embedded = ABSENT
    type: str = ""
    replicas: Int32 = 0
    min_available: Int32 | None = msgspec.field(default=None, name="minavailable")
    allocated_replicas: Int32 = msgspec.field(default=0, name="allocatedreplicas")
    priority: float = 0.0
    priority_slope: float = msgspec.field(default=0.0, name="priorityslope")
    metadata: OpaqueMap = ABSENT


class WrappedResources(Part):
    generic_items: tuple[GenericItem, ...] | None = msgspec.field(default=None, name="GenericItems")
    items: tuple[LegacyItem, ...] | None = msgspec.field(default=None, name="Items")
    metadata: OpaqueMap = ABSENT


class Requeuing(Part):
    """How long to wait for `minAvailable` pods before the gang goes back to the queue, and how that wait grows."""

    time_in_seconds: Annotated[int, Rule(default=300, minimum=0)] = 300
    initial_time_in_seconds: int = 0
    max_time_in_seconds: Annotated[int, Rule(default=0, minimum=0)] = 0
    growth_type: Annotated[str, Rule(default="exponential")] = "exponential"
    num_requeuings: Annotated[int, Rule(default=0)] = 0
    max_num_requeuings: Annotated[int, Rule(default=0, minimum=0)] = 0


class DispatchDuration(Part):
    """`limit` seconds of run time after dispatch; 0 is unlimited."""

    limit: Annotated[int, Rule(minimum=0)] = 0
    expected: int = 0
    overrun: bool = False


class ClusterReference(Part):
    name: str = ""


class ClusterScheduling(Part):
    clusters: tuple[ClusterReference, ...] | None = None
    cluster_selector: LabelSelector | None = None


class Scheduling(Part):
    """`spec.schedulingSpec` of an AppWrapper and `spec` of a SchedulingSpec."""

    min_available: Annotated[int, Rule(minimum=0)] = 0
    node_selector: dict[str, str] | None = None
    requeuing: Requeuing = Requeuing()
    dispatch_duration: DispatchDuration = DispatchDuration()
    cluster_scheduling: ClusterScheduling | None = None
    dispatching_window: OpaqueMap = ABSENT


class ServiceTemplate(Part):
    spec: Annotated[OpaqueMap, Rule(required=True)] = ABSENT


# --- v1beta2: wrapped objects under spec.components


class PodSetPath(Part):
    """Where a pod template sits inside a component: `template.spec.template`, `…workerGroupSpecs[0].template`."""

    path: Annotated[str, Rule(required=True, min_length=1)] = ""
    replicas: Annotated[Int32, Rule(minimum=0)] | None = None
    annotations: dict[str, str] | None = None


class Component(Part):
    template: Annotated[Embedded, Rule(required=True)] = ABSENT
    pod_sets: tuple[PodSetPath, ...] | None = None
    pod_set_infos: tuple[PodSetInfo, ...] | None = None
    annotations: dict[str, str] | None = None


class AppWrapperSpec(Part):
    """Exactly one of `resources` (v1beta1) and `components` (v1beta2) holds the wrapped objects."""

    rules: ClassVar = (
        (
            "has(self.resources) != has(self.components)",
            "exactly one of spec.resources (v1beta1) and spec.components (v1beta2) must be set",
        ),
    )

    priority: Int32 = 0
    priority_slope: float = msgspec.field(default=0.0, name="priorityslope")
    resources: WrappedResources | None = None
    scheduling_spec: Scheduling = Scheduling()
    service: ServiceTemplate | None = None
    selector: LabelSelector | None = None
    components: tuple[Component, ...] | None = None
    suspend: bool = False
    managed_by: Annotated[str, Rule(cel=Immutable)] = ""


class AppWrapperCondition(Part):
    """A condition of either dialect: v1beta1 keeps a history with MicroTimes, v1beta2 one condition per type."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_update_micro_time: MicroTime | None = None
    last_transition_micro_time: MicroTime | None = None
    last_transition_time: Timestamp | None = None
    observed_generation: Int64 = 0


class PendingPod(Part):
    pod_name: str = msgspec.field(default="", name="podname")
    conditions: OpaqueList = ABSENT


class ComponentStatus(Part):
    name: str = ""
    kind: str = ""
    api_version: str = ""
    pod_sets: tuple[PodSetPath, ...] | None = None
    conditions: tuple[AppWrapperCondition, ...] | None = None


class AppWrapperStatus(Part):
    state: str = ""
    queue_job_state: str = msgspec.field(default="", name="queuejobstate")
    can_run: bool = msgspec.field(default=False, name="canrun")
    is_dispatched: bool = msgspec.field(default=False, name="isdispatched")
    conditions: tuple[AppWrapperCondition, ...] | None = None
    controller_first_timestamp: MicroTime | None = msgspec.field(default=None, name="controllerfirsttimestamp")
    controller_first_dispatch_timestamp: MicroTime | None = msgspec.field(
        default=None, name="controllerfirstdispatchtimestamp"
    )
    system_priority: float = msgspec.field(default=0.0, name="systempriority")
    sender: str = ""
    filter_ignore: bool = msgspec.field(default=False, name="filterignore")
    local: bool = False
    pending: Int32 = 0
    running: Int32 = 0
    succeeded: Int32 = msgspec.field(default=0, name="Succeeded")
    failed: Int32 = 0
    template: Int32 = 0
    message: str = ""
    pending_pod_conditions: tuple[PendingPod, ...] | None = msgspec.field(default=None, name="pendingpodconditions")
    total_cpu: Int64 = msgspec.field(default=0, name="totalcpu")
    total_memory: Int64 = msgspec.field(default=0, name="totalmemory")
    total_gpu: Int64 = msgspec.field(default=0, name="totalgpu")
    requeueing_time_in_seconds: int = 0
    number_of_requeueings: int = 0
    phase: str = ""
    resetting_count: Int32 = 0
    component_status: tuple[ComponentStatus, ...] | None = None
    admission: str = ""
    """Ours, as compact JSON: what was admitted (epoch, generation, quota seats, assignment), stored before the first
    object exists. A text, so that `kubectl describe` keeps it on one line."""
    explanation: str = ""
    """Ours, as compact JSON: why it waits, as `shoal why` prints it."""


class AppWrapper(Object):
    spec: Annotated[AppWrapperSpec, Rule(required=True)] = AppWrapperSpec()
    status: AppWrapperStatus = AppWrapperStatus()


def dialect(wrapper: AppWrapper) -> Dialect | None:
    """Whose rules this object follows; None when it carries both shapes or neither and can never work."""
    has_resources, has_components = wrapper.spec.resources is not None, wrapper.spec.components is not None
    if has_resources == has_components:
        return None
    return "v1beta1" if has_resources else "v1beta2"


def wrapped_items(wrapper: AppWrapper) -> tuple[GenericItem, ...]:
    """The wrapped objects of a v1beta1 wrapper; items of the legacy typed list come as generic ones."""
    resources = wrapper.spec.resources or WrappedResources()
    legacy = tuple(
        GenericItem(generic_template=item.template, replicas=item.replicas, metadata=item.metadata)
        for item in resources.items or ()
        if item.template
    )
    return (*(resources.generic_items or ()), *legacy)


# --- SchedulingSpec and QuotaSubtree


class SchedulingSpec(Object):
    """Stored for compatibility; no controller reads it."""

    spec: Scheduling = Scheduling()


class Quotas(Part):
    requests: Resources | None = None
    hard_limit: Annotated[bool, Rule(default=False)] = False
    disabled: bool = False


class QuotaChild(Part):
    name: str = ""
    namespace: str = ""
    path: str = ""
    quotas: Quotas = Quotas()


class QuotaSubtreeSpec(Part):
    parent: str = ""
    parent_namespace: str = ""
    children: tuple[QuotaChild, ...] | None = None


class Allocated(Part):
    requests: dict[str, str] | None = None


class QuotaAllocation(Part):
    name: str = ""
    namespace: str = ""
    path: str = ""
    allocated: Allocated = Allocated()
    borrowed: Allocated | None = None
    """Ours: what members of this node hold above it, on quota of its ancestors."""
    consumer_count: Int32 = 0
    """Ours: how many gangs are charged here. Their names are for those who may read them: a Question tells."""
    consumers: tuple[str, ...] | None = None
    """Written by earlier versions, and taken away: names of gangs, in any namespace."""


class QuotaSubtreeStatus(Part):
    total_allocation: QuotaAllocation | None = None
    children: tuple[QuotaAllocation, ...] | None = None


class QuotaSubtree(Object):
    """Nodes of one quota tree; the label `tree` says which."""

    spec: QuotaSubtreeSpec = QuotaSubtreeSpec()
    status: QuotaSubtreeStatus = QuotaSubtreeStatus()
