"""The parts of apps/v1 that Shoal reads: workloads that make pods from a template."""

from __future__ import annotations

import msgspec

from shoal.api.fields import ABSENT, PodTemplate
from shoal.api.meta import Condition, LabelSelector, Object, Part


class ReplicasStatus(Part):
    """The counts that Deployment, ReplicaSet and StatefulSet share."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    fully_labeled_replicas: int = 0
    current_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""
    collision_count: int | None = None
    conditions: tuple[Condition, ...] | None = None


class DeploymentSpec(Part):
    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: PodTemplate = ABSENT
    strategy: msgspec.Raw = ABSENT
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    paused: bool = False
    progress_deadline_seconds: int | None = None


class Deployment(Object):
    spec: DeploymentSpec = DeploymentSpec()
    status: ReplicasStatus = ReplicasStatus()


class ReplicaSetSpec(Part):
    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: PodTemplate = ABSENT
    min_ready_seconds: int = 0


class ReplicaSet(Object):
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicasStatus = ReplicasStatus()


class StatefulSetSpec(Part):
    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: PodTemplate = ABSENT
    service_name: str = ""
    pod_management_policy: str = "OrderedReady"
    update_strategy: msgspec.Raw = ABSENT
    volume_claim_templates: msgspec.Raw = ABSENT
    ordinals: msgspec.Raw = ABSENT
    min_ready_seconds: int = 0


class StatefulSet(Object):
    spec: StatefulSetSpec = StatefulSetSpec()
    status: ReplicasStatus = ReplicasStatus()


class DaemonSetSpec(Part):
    selector: LabelSelector = LabelSelector()
    template: PodTemplate = ABSENT


class DaemonSet(Object):
    spec: DaemonSetSpec = DaemonSetSpec()
    status: msgspec.Raw = ABSENT
