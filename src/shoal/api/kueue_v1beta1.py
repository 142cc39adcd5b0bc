"""Kueue's v1beta1 where it differs from v1beta2. These shapes exist for the CRDs; code reads the converted v1beta2."""

from __future__ import annotations

from typing import Annotated, ClassVar

from shoal.api import kueue, kueue_cel, kueue_workload
from shoal.api.fields import ABSENT, Conditions, Int32, OpaqueList, OpaqueMap, Rule
from shoal.api.kueue import CheckName, FairSharing, FlavorUsages, LocalFlavorUsages, Reference, ResourceGroups
from shoal.api.kueue_other import ClusterProfileReference, KubeConfig, MultiKueueClusterStatus
from shoal.api.labels import KUEUE_WORKLOAD_PRIORITY, POD_PRIORITY
from shoal.api.meta import LabelSelector, Object, Part


class FlavorFungibility(Part):
    """`Borrow` and `Preempt` are older words for MayStopSearch."""

    when_can_borrow: Annotated[str, Rule(enum=["Borrow", "MayStopSearch", "TryNextFlavor"], default="Borrow")] = (
        "Borrow"
    )
    when_can_preempt: Annotated[
        str, Rule(enum=["Preempt", "MayStopSearch", "TryNextFlavor"], default="TryNextFlavor")
    ] = "TryNextFlavor"
    preference: Annotated[str, Rule(enum=["BorrowingOverPreemption", "PreemptionOverBorrowing"])] | None = None


class ClusterQueueSpec(Part):
    resource_groups: ResourceGroups | None = None
    cohort: Reference = ""
    queueing_strategy: Annotated[str, Rule(enum=["StrictFIFO", "BestEffortFIFO"], default="BestEffortFIFO")] = (
        "BestEffortFIFO"
    )
    namespace_selector: LabelSelector | None = None
    flavor_fungibility: Annotated[FlavorFungibility, Rule(default={})] = FlavorFungibility()
    preemption: Annotated[kueue.Preemption, Rule(default={})] = kueue.Preemption()
    admission_checks: Annotated[tuple[CheckName, ...], Rule(max_items=64)] | None = None
    admission_checks_strategy: kueue.AdmissionChecksStrategy | None = None
    stop_policy: kueue.StopPolicy = "None"
    fair_sharing: FairSharing | None = None
    admission_scope: kueue.AdmissionScope | None = None
    concurrent_admission_policy: kueue.ConcurrentAdmissionPolicy | None = None


class ClusterQueueStatus(Part):
    conditions: Conditions | None = None
    flavors_reservation: FlavorUsages | None = None
    flavors_usage: FlavorUsages | None = None
    pending_workloads: Int32 = 0
    reserving_workloads: Int32 = 0
    admitted_workloads: Int32 = 0
    pending_workloads_status: OpaqueMap = ABSENT
    fair_sharing: kueue.LocalQueueFairSharingStatus | None = None


class ClusterQueue(Object):
    spec: ClusterQueueSpec = ClusterQueueSpec()
    status: ClusterQueueStatus = ClusterQueueStatus()


class LocalQueueStatus(Part):
    conditions: Conditions | None = None
    pending_workloads: Int32 = 0
    reserving_workloads: Int32 = 0
    admitted_workloads: Int32 = 0
    flavors_reservation: LocalFlavorUsages | None = None
    flavor_usage: LocalFlavorUsages | None = None
    flavors: OpaqueList = ABSENT
    fair_sharing: kueue.LocalQueueFairSharingStatus | None = None


class LocalQueue(Object):
    spec: kueue.LocalQueueSpec = kueue.LocalQueueSpec()
    status: LocalQueueStatus = LocalQueueStatus()


class CohortStatus(Part):
    fair_sharing: kueue.LocalQueueFairSharingStatus | None = None


class Cohort(Object):
    spec: kueue.CohortSpec = kueue.CohortSpec()
    status: CohortStatus = CohortStatus()


class WorkloadSpec(Part):
    rules: ClassVar = kueue_cel.OLD_PRIORITY
    union_rules: ClassVar = kueue_cel.OLD_PRIORITY

    pod_sets: kueue_workload.PodSets = ()
    queue_name: Reference = ""
    priority_class_name: Reference = ""
    priority_class_source: Annotated[
        str,
        Rule(enum=[KUEUE_WORKLOAD_PRIORITY, POD_PRIORITY, ""]),
    ] = ""
    priority: Int32 | None = None
    active: Annotated[bool, Rule(default=True)] = True
    maximum_execution_time_seconds: Annotated[Int32, Rule(minimum=1)] | None = None
    preemption_gates: Annotated[tuple[kueue_workload.PreemptionGate, ...], Rule(max_items=8)] | None = None


class WorkloadStatus(kueue_workload.WorkloadStatus):
    accumulated_past_exexcution_time_seconds: Int32 | None = None


class Workload(Object):
    rules: ClassVar = (*kueue_cel.RESERVED, *kueue_cel.SOURCE)
    union_rules: ClassVar = kueue_cel.SOURCE

    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()


class MultiKueueClusterSpec(Part):
    kube_config: KubeConfig | None = None
    cluster_profile_ref: ClusterProfileReference | None = None


class MultiKueueCluster(Object):
    spec: MultiKueueClusterSpec = MultiKueueClusterSpec()
    status: MultiKueueClusterStatus = MultiKueueClusterStatus()
