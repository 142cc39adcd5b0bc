"""Kueue's Workload at v1beta2: what a gang asks for, what it was given, and what happened to it.

Pod templates are dictionaries: queues read them, compare them with those of the job, and put them back into it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from shoal.api import kueue_cel
from shoal.api.core import Toleration
from shoal.api.fields import (
    Conditions,
    Int32,
    Resources,
    Rule,
    Timestamp,
)
from shoal.api.kueue import CheckName, Reference
from shoal.api.meta import Json, Object, Part

PodSetName = Annotated[str, Rule(max_length=63, pattern=r"^[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?$")]


OpenTemplate = Annotated[
    Json,
    Rule(required=True, type="object", x_kubernetes_preserve_unknown_fields=True, shape="PodTemplateSpec"),
]
"""A PodTemplateSpec with all its fields. The CRD leaves it open; `shoal.api.strict` knows them."""


class TopologyConstraint(Part):
    topology: Annotated[str, Rule(required=True, max_length=63)] = ""
    size: Annotated[Int32, Rule(required=True, minimum=1)] = 1


class TopologyRequest(Part):
    required: Annotated[str, Rule(max_length=63)] | None = None
    preferred: Annotated[str, Rule(max_length=63)] | None = None
    unconstrained: bool | None = None
    pod_index_label: Annotated[str, Rule(max_length=317)] | None = None
    sub_group_index_label: Annotated[str, Rule(max_length=317)] | None = None
    sub_group_count: Int32 | None = None
    pod_set_group_name: str | None = None
    pod_set_slice_required_topology: str | None = None
    pod_set_slice_size: Int32 | None = None
    podset_slice_required_topology_constraints: (
        Annotated[tuple[TopologyConstraint, ...], Rule(max_items=3, x_kubernetes_list_type="atomic")] | None
    ) = None


class PodSet(Part):
    """`count` like pods; `minCount` allows a smaller start."""

    rules: ClassVar = (
        (
            "has(self.minCount) ? self.minCount <= self.count : true",
            "minCount should be positive and less or equal to count",
        ),
    )

    name: Annotated[PodSetName, Rule(default="main")] = "main"
    template: OpenTemplate = msgspec.field(default_factory=dict)
    count: Annotated[Int32, Rule(required=True, default=1, minimum=0)] = 1
    min_count: Annotated[Int32, Rule(minimum=1)] | None = None
    topology_request: TopologyRequest | None = None


class PriorityClassRef(Part):
    rules: ClassVar = (
        (
            "(self.group == 'kueue.x-k8s.io' && self.kind == 'WorkloadPriorityClass') || "
            "(self.group == 'scheduling.k8s.io' && self.kind == 'PriorityClass')",
            "must name a WorkloadPriorityClass of kueue.x-k8s.io or a PriorityClass of scheduling.k8s.io",
        ),
    )

    group: Annotated[str, Rule(required=True, enum=["kueue.x-k8s.io", "scheduling.k8s.io"])] = ""
    kind: Annotated[str, Rule(required=True, enum=["WorkloadPriorityClass", "PriorityClass"])] = ""
    name: Annotated[Reference, Rule(required=True)] = ""


class PreemptionGate(Part):
    name: Annotated[str, Rule(required=True, max_length=316)] = ""


PodSets = Annotated[
    tuple[PodSet, ...],
    Rule(min_items=1, max_items=18, x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["name"]),
]


class WorkloadSpec(Part):
    rules: ClassVar = kueue_cel.PRIORITY
    union_rules: ClassVar = kueue_cel.PRIORITY

    pod_sets: PodSets = ()
    queue_name: Reference = ""
    priority_class_ref: PriorityClassRef | None = None
    priority: Int32 | None = None
    active: Annotated[bool, Rule(default=True)] = True
    maximum_execution_time_seconds: Annotated[Int32, Rule(minimum=1)] | None = None
    preemption_gates: (
        Annotated[
            tuple[PreemptionGate, ...],
            Rule(max_items=8, x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["name"]),
        ]
        | None
    ) = None


_Level = Annotated[str, Rule(max_length=63)]


class LevelRoots(Part):
    """Values that differ only in their middle."""

    prefix: _Level | None = None
    suffix: _Level | None = None
    roots: Annotated[
        tuple[_Level, ...], Rule(required=True, min_items=1, max_items=100_000, x_kubernetes_list_type="atomic")
    ] = ()


class LevelValues(Part):
    rules: ClassVar = (
        ("has(self.universal) != has(self.individual)", "exactly one of universal and individual must be set"),
    )

    universal: _Level | None = None
    individual: LevelRoots | None = None


class PodCounts(Part):
    rules: ClassVar = (
        ("has(self.universal) != has(self.individual)", "exactly one of universal and individual must be set"),
    )

    universal: Annotated[Int32, Rule(minimum=1)] | None = None
    individual: (
        Annotated[
            tuple[Annotated[Int32, Rule(minimum=1)], ...],
            Rule(min_items=1, max_items=100_000, x_kubernetes_list_type="atomic"),
        ]
        | None
    ) = None


class TopologySlice(Part):
    rules: ClassVar = (
        (
            "!has(self.podCounts.individual) || size(self.podCounts.individual) == self.domainCount",
            "podCounts.individual must have length equal to domainCount",
        ),
        (
            "self.valuesPerLevel.all(x, !has(x.individual) || size(x.individual.roots) == self.domainCount)",
            "valuesPerLevel.individual, if set, must have roots of length equal to domainCount of this "
            "TopologyAssignmentSlice",
        ),
    )

    domain_count: Annotated[Int32, Rule(required=True, minimum=1)] = 1
    values_per_level: Annotated[
        tuple[LevelValues, ...], Rule(required=True, min_items=1, max_items=16, x_kubernetes_list_type="atomic")
    ] = ()
    pod_counts: Annotated[PodCounts, Rule(required=True)] = PodCounts()


class TopologyDomain(Part):
    """v1beta1's spelling of one domain."""

    values: Annotated[tuple[_Level, ...], Rule(required=True, min_items=1, max_items=16)] = ()
    count: Annotated[Int32, Rule(required=True, minimum=1)] = 1


class TopologyPlace(Part):
    """Where the pods of a pod set go; v1beta1 has `domains` in the place of `slices`."""

    rules: ClassVar = (
        (
            "!has(self.slices) || self.slices.all(x, size(x.valuesPerLevel) == size(self.levels))",
            "valuesPerLevel must have the same length as the number of levels in this TopologyAssignment",
        ),
    )

    levels: Annotated[
        tuple[Annotated[str, Rule(max_length=317)], ...],
        Rule(required=True, min_items=1, max_items=16, x_kubernetes_list_type="atomic"),
    ] = ()
    slices: Annotated[tuple[TopologySlice, ...], Rule(max_items=1000, x_kubernetes_list_type="atomic")] | None = None
    domains: Annotated[tuple[TopologyDomain, ...], Rule(max_items=100_000, x_kubernetes_list_type="atomic")] | None = (
        None
    )


class PodSetAssignment(Part):
    """What a pod set was given: a flavor per resource, the usage of all its pods, its count."""

    name: Annotated[PodSetName, Rule(default="main")] = "main"
    flavors: dict[str, Reference] | None = None
    resource_usage: Resources | None = None
    count: Annotated[Int32, Rule(minimum=0)] | None = None
    topology_assignment: TopologyPlace | None = None
    delayed_topology_request: Annotated[str, Rule(enum=["Pending", "Ready"])] | None = None


class Admission(Part):
    cluster_queue: Annotated[Reference, Rule(required=True)] = ""
    pod_set_assignments: Annotated[
        tuple[PodSetAssignment, ...],
        Rule(required=True, max_items=18, x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["name"]),
    ] = ()


class RequeueState(Part):
    count: Annotated[Int32, Rule(minimum=0)] | None = None
    requeue_at: Timestamp | None = None


class ReclaimablePod(Part):
    name: Annotated[PodSetName, Rule(required=True)] = ""
    count: Annotated[Int32, Rule(required=True, minimum=0)] = 0


class PodSetUpdate(Part):
    """What an admission check adds to a pod set's template at the start."""

    name: Annotated[PodSetName, Rule(required=True)] = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    node_selector: dict[str, str] | None = None
    tolerations: (
        Annotated[tuple[Toleration, ...], Rule(max_items=8, x_kubernetes_list_type="atomic", cel=kueue_cel.TOLERATIONS)]
        | None
    ) = None


class CheckState(Part):
    name: Annotated[CheckName, Rule(required=True)] = ""
    state: Annotated[str, Rule(required=True, enum=["Pending", "Ready", "Retry", "Rejected"])] = ""
    last_transition_time: Annotated[Timestamp, Rule(required=True)] | None = None
    message: Annotated[str, Rule(required=True, max_length=32768)] = ""
    requeue_after_seconds: Int32 | None = None
    retry_count: Annotated[Int32, Rule(minimum=0)] | None = None
    pod_set_updates: Annotated[tuple[PodSetUpdate, ...], Rule(max_items=18, x_kubernetes_list_type="atomic")] | None = (
        None
    )


class PodSetRequest(Part):
    name: Annotated[PodSetName, Rule(default="main")] = "main"
    resources: Resources | None = None


class EvictionCount(Part):
    reason: Annotated[str, Rule(required=True, max_length=316)] = ""
    underlying_cause: Annotated[str, Rule(required=True, max_length=316)] = ""
    count: Annotated[Int32, Rule(required=True, minimum=0)] = 0


class SchedulingStats(Part):
    evictions: (
        Annotated[
            tuple[EvictionCount, ...],
            Rule(x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["reason", "underlyingCause"]),
        ]
        | None
    ) = None


class UnhealthyNode(Part):
    name: Annotated[str, Rule(required=True)] = ""


class PreemptionGateState(Part):
    name: Annotated[str, Rule(required=True, max_length=316)] = ""
    position: str = ""
    last_transition_time: Timestamp | None = None


ClusterName = Annotated[str, Rule(max_length=256)]


class WorkloadStatus(Part):
    rules: ClassVar = kueue_cel.CLUSTER
    union_rules: ClassVar = kueue_cel.CLUSTER

    conditions: Conditions | None = None
    admission: Admission | None = None
    requeue_state: RequeueState | None = None
    reclaimable_pods: (
        Annotated[
            tuple[ReclaimablePod, ...],
            Rule(max_items=18, x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["name"]),
        ]
        | None
    ) = None
    admission_checks: (
        Annotated[
            tuple[CheckState, ...],
            Rule(max_items=8, x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["name"]),
        ]
        | None
    ) = None
    resource_requests: (
        Annotated[
            tuple[PodSetRequest, ...],
            Rule(max_items=18, x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["name"]),
        ]
        | None
    ) = None
    accumulated_past_execution_time_seconds: Int32 | None = None
    scheduling_stats: SchedulingStats | None = None
    nominated_cluster_names: (
        Annotated[tuple[ClusterName, ...], Rule(max_items=20, x_kubernetes_list_type="set")] | None
    ) = None
    cluster_name: ClusterName | None = None
    unhealthy_nodes: (
        Annotated[
            tuple[UnhealthyNode, ...],
            Rule(max_items=8, x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["name"]),
        ]
        | None
    ) = None
    preemption_gates: (
        Annotated[
            tuple[PreemptionGateState, ...],
            Rule(max_items=8, x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["name"]),
        ]
        | None
    ) = None


class Workload(Object):
    rules: ClassVar = (*kueue_cel.RESERVED, *kueue_cel.REFERENCE)
    union_rules: ClassVar = (*kueue_cel.RESERVED, *kueue_cel.REFERENCE)

    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()
