"""Kueue's dialect at v1beta2, the version that Shoal stores and computes with.

Controllers and the engine's facts come from these types only; v1beta1 objects are converted first (`kueue_convert`).
Workload has a module of its own. Limits and enums are Kueue's, because its users rely on being refused early.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from shoal.api import kueue_cel
from shoal.api.core import Taint, Toleration
from shoal.api.fields import (
    Amount,
    Conditions,
    Immutable,
    Int32,
    Int64,
    Resources,
    Rule,
    Timestamp,
)
from shoal.api.meta import LabelSelector, Object, Part

_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

Reference = Annotated[str, Rule(max_length=253, pattern=_SUBDOMAIN)]
CheckName = Annotated[str, Rule(max_length=316)]
StopPolicy = Annotated[str, Rule(enum=["None", "Hold", "HoldAndDrain"], default="None")]


class FairSharing(Part):
    """`weight` against which shares are compared; absent is 1, zero never borrows ahead of anyone."""

    weight: Annotated[Amount, Rule(default=1)] = "1"


class FairSharingStatus(Part):
    weighted_share: Int64 = 0


# --- quota: shared by ClusterQueue and Cohort


class FlavorResourceQuota(Part):
    name: Annotated[str, Rule(required=True)] = ""
    nominal_quota: Annotated[Amount, Rule(required=True)] = "0"
    borrowing_limit: Amount | None = None
    lending_limit: Amount | None = None


class FlavorQuotas(Part):
    name: Annotated[Reference, Rule(required=True)] = ""
    resources: Annotated[
        tuple[FlavorResourceQuota, ...],
        Rule(
            required=True, min_items=1, max_items=64, x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["name"]
        ),
    ] = ()


class ResourceGroup(Part):
    """Resources that are assigned together from one of the flavors, tried in order."""

    rules: ClassVar = (
        (
            "self.flavors.all(x, size(x.resources) == size(self.coveredResources))",
            "flavors must have the same number of resources as the coveredResources",
        ),
    )

    covered_resources: Annotated[
        tuple[Annotated[str, Rule(max_length=317)], ...], Rule(required=True, min_items=1, max_items=64)
    ] = ()
    flavors: Annotated[
        tuple[FlavorQuotas, ...],
        Rule(
            required=True, min_items=1, max_items=64, x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["name"]
        ),
    ] = ()


ResourceGroups = Annotated[tuple[ResourceGroup, ...], Rule(max_items=16, x_kubernetes_list_type="atomic")]


class ResourceUsage(Part):
    name: Annotated[str, Rule(required=True)] = ""
    total: Amount = "0"
    borrowed: Amount = "0"


class FlavorUsage(Part):
    name: Annotated[Reference, Rule(required=True)] = ""
    resources: Annotated[
        tuple[ResourceUsage, ...],
        Rule(required=True, max_items=64, x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["name"]),
    ] = ()


FlavorUsages = Annotated[
    tuple[FlavorUsage, ...],
    Rule(max_items=256, x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["name"]),
]

# --- ClusterQueue


class FlavorFungibility(Part):
    """Whether to try the next flavor before borrowing in, or preempting for, this one."""

    when_can_borrow: Annotated[str, Rule(enum=["MayStopSearch", "TryNextFlavor"], default="MayStopSearch")] = (
        "MayStopSearch"
    )
    when_can_preempt: Annotated[str, Rule(enum=["MayStopSearch", "TryNextFlavor"], default="TryNextFlavor")] = (
        "TryNextFlavor"
    )
    preference: Annotated[str, Rule(enum=["BorrowingOverPreemption", "PreemptionOverBorrowing"])] | None = None

    rules: ClassVar = kueue_cel.PREFERENCE
    union_rules: ClassVar = kueue_cel.PREFERENCE


class BorrowWithinCohort(Part):
    policy: Annotated[str, Rule(enum=["Never", "LowerPriority"], default="Never")] = "Never"
    max_priority_threshold: Int32 | None = None


class Preemption(Part):
    rules: ClassVar = (
        (
            "!(self.reclaimWithinCohort == 'Never' && has(self.borrowWithinCohort) && "
            "self.borrowWithinCohort.policy != 'Never')",
            "reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never",
        ),
    )

    reclaim_within_cohort: Annotated[str, Rule(enum=["Never", "LowerPriority", "Any"], default="Never")] = "Never"
    within_cluster_queue: Annotated[
        str, Rule(enum=["Never", "LowerPriority", "LowerOrNewerEqualPriority"], default="Never")
    ] = "Never"
    borrow_within_cohort: Annotated[BorrowWithinCohort, Rule(default={})] | None = None


class AdmissionCheckRule(Part):
    """A check for workloads that get one of `onFlavors`, or any flavor when that is empty."""

    name: Annotated[CheckName, Rule(required=True)] = ""
    on_flavors: Annotated[tuple[Reference, ...], Rule(max_items=64, x_kubernetes_list_type="set")] | None = None


class AdmissionChecksStrategy(Part):
    admission_checks: (
        Annotated[
            tuple[AdmissionCheckRule, ...],
            Rule(min_items=1, max_items=64, x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["name"]),
        ]
        | None
    ) = None


class AdmissionScope(Part):
    admission_mode: Annotated[
        str, Rule(required=True, enum=["UsageBasedAdmissionFairSharing", "NoAdmissionFairSharing"])
    ] = ""


class MigrationConstraints(Part):
    last_acceptable_flavor_name: Reference = ""


class ConcurrentMigration(Part):
    mode: Annotated[str, Rule(enum=["TryPreferredFlavors", "RetainFirstAdmission"])] | None = None
    constraints: MigrationConstraints | None = None


class ConcurrentAdmissionPolicy(Part):
    migration: ConcurrentMigration | None = None


class ClusterQueueSpec(Part):
    rules: ClassVar = kueue_cel.COHORT
    union_rules: ClassVar = kueue_cel.ANY_COHORT

    resource_groups: ResourceGroups | None = None
    cohort_name: Reference = ""
    queueing_strategy: Annotated[str, Rule(enum=["StrictFIFO", "BestEffortFIFO"], default="BestEffortFIFO")] = (
        "BestEffortFIFO"
    )
    namespace_selector: LabelSelector | None = None
    flavor_fungibility: Annotated[FlavorFungibility, Rule(default={})] = FlavorFungibility()
    preemption: Annotated[Preemption, Rule(default={})] = Preemption()
    admission_checks_strategy: AdmissionChecksStrategy | None = None
    stop_policy: StopPolicy = "None"
    fair_sharing: FairSharing | None = None
    admission_scope: AdmissionScope | None = None
    concurrent_admission_policy: Annotated[ConcurrentAdmissionPolicy, Rule(cel=Immutable)] | None = None


class ClusterQueueStatus(Part):
    conditions: Conditions | None = None
    flavors_reservation: FlavorUsages | None = None
    flavors_usage: FlavorUsages | None = None
    pending_workloads: Int32 = 0
    reserving_workloads: Int32 = 0
    admitted_workloads: Int32 = 0
    fair_sharing: FairSharingStatus | None = None


class ClusterQueue(Object):
    spec: ClusterQueueSpec = ClusterQueueSpec()
    status: ClusterQueueStatus = ClusterQueueStatus()


# --- LocalQueue


class LocalQueueSpec(Part):
    cluster_queue: Annotated[Reference, Rule(cel=Immutable)] = ""
    stop_policy: StopPolicy = "None"
    fair_sharing: FairSharing | None = None


class AdmissionFairSharingStatus(Part):
    consumed_resources: Resources | None = None
    last_update: Timestamp | None = None


class LocalQueueFairSharingStatus(Part):
    weighted_share: Int64 = 0
    admission_fair_sharing_status: AdmissionFairSharingStatus | None = None


MOST_FLAVORS = 64
"""As many flavors as the status of a LocalQueue tells of; a ClusterQueue may have more."""
LocalFlavorUsages = Annotated[
    tuple[FlavorUsage, ...],
    Rule(max_items=MOST_FLAVORS, x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["name"]),
]


class LocalQueueStatus(Part):
    conditions: Conditions | None = None
    pending_workloads: Int32 = 0
    reserving_workloads: Int32 = 0
    admitted_workloads: Int32 = 0
    flavors_reservation: LocalFlavorUsages | None = None
    flavors_usage: LocalFlavorUsages | None = None
    fair_sharing: LocalQueueFairSharingStatus | None = None


class LocalQueue(Object):
    spec: LocalQueueSpec = LocalQueueSpec()
    status: LocalQueueStatus = LocalQueueStatus()


# --- Cohort


class CohortSpec(Part):
    parent_name: Reference = ""
    resource_groups: ResourceGroups | None = None
    fair_sharing: FairSharing | None = None


class CohortStatus(Part):
    fair_sharing: FairSharingStatus | None = None


class Cohort(Object):
    """A node of the quota tree. One that is only referred to exists too, without quota or limits."""

    spec: CohortSpec = CohortSpec()
    status: CohortStatus = CohortStatus()


# --- ResourceFlavor


class ResourceFlavorSpec(Part):
    """Labels both constrain and are injected; taints must be tolerated; tolerations are injected."""

    rules: ClassVar = (
        (
            "!has(self.topologyName) || (has(self.nodeLabels) && self.nodeLabels.size() >= 1)",
            "at least one nodeLabel is required when topology is set",
        ),
        *(
            (
                f"!has(oldSelf.topologyName) || (has(self.{name}) ?"
                f" has(oldSelf.{name}) && self.{name} == oldSelf.{name} : !has(oldSelf.{name}))",
                f"{name} {'is' if name == 'topologyName' else 'are'} immutable when topologyName is set",
            )
            for name in ("nodeLabels", "tolerations", "topologyName")
        ),
    )

    node_labels: Annotated[dict[str, str], Rule(max_properties=8)] | None = None
    node_taints: (
        Annotated[
            tuple[Taint, ...],
            Rule(
                max_items=8,
                x_kubernetes_list_type="atomic",
                cel=kueue_cel.TAINTS,
            ),
        ]
        | None
    ) = None
    tolerations: (
        Annotated[tuple[Toleration, ...], Rule(max_items=8, x_kubernetes_list_type="atomic", cel=kueue_cel.TOLERATIONS)]
        | None
    ) = None
    topology_name: Annotated[Reference, Rule(cel=Immutable)] = ""


class ResourceFlavor(Object):
    spec: ResourceFlavorSpec = ResourceFlavorSpec()


# --- AdmissionCheck, ProvisioningRequestConfig, WorkloadPriorityClass


class CheckParameters(Part):
    api_group: Annotated[str, Rule(required=True, max_length=253)] = ""
    kind: Annotated[str, Rule(required=True, max_length=63)] = ""
    name: Annotated[str, Rule(required=True, max_length=63)] = ""


class AdmissionCheckSpec(Part):
    controller_name: Annotated[str, Rule(required=True, min_length=1, max_length=253, cel=Immutable)] = ""
    parameters: CheckParameters | None = None
    retry_delay_minutes: Int64 | None = None


class AdmissionCheckStatus(Part):
    conditions: Conditions | None = None


class AdmissionCheck(Object):
    spec: AdmissionCheckSpec = AdmissionCheckSpec()
    status: AdmissionCheckStatus = AdmissionCheckStatus()


class RetryStrategy(Part):
    backoff_limit_count: Annotated[Int32, Rule(default=3, minimum=0)] = 3
    backoff_base_seconds: Annotated[Int32, Rule(default=60, minimum=0)] = 60
    backoff_max_seconds: Annotated[Int32, Rule(default=1800, minimum=0)] = 1800


class NodeSelectorUpdate(Part):
    key: Annotated[str, Rule(required=True, max_length=317)] = ""
    value_from_provisioning_class_detail: Annotated[str, Rule(required=True, max_length=32768)] = ""


class PodSetUpdates(Part):
    node_selector: (
        Annotated[
            tuple[NodeSelectorUpdate, ...],
            Rule(max_items=8, x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["key"]),
        ]
        | None
    ) = None


class ProvisioningRequestConfigSpec(Part):
    provisioning_class_name: Annotated[Reference, Rule(required=True)] = ""
    parameters: Annotated[dict[str, Annotated[str, Rule(max_length=255)]], Rule(max_properties=100)] | None = None
    managed_resources: Annotated[tuple[str, ...], Rule(max_items=100, x_kubernetes_list_type="set")] | None = None
    retry_strategy: Annotated[
        RetryStrategy, Rule(default={"backoffLimitCount": 3, "backoffBaseSeconds": 60, "backoffMaxSeconds": 1800})
    ] = RetryStrategy()
    pod_set_updates: PodSetUpdates | None = None
    pod_set_merge_policy: (
        Annotated[str, Rule(enum=["IdenticalPodTemplates", "IdenticalWorkloadSchedulingRequirements"])] | None
    ) = None


class ProvisioningRequestConfig(Object):
    spec: ProvisioningRequestConfigSpec = ProvisioningRequestConfigSpec()


class WorkloadPriorityClass(Object):
    value: Annotated[Int32, Rule(required=True)] = 0
    description: Annotated[str, Rule(max_length=2048)] = ""
