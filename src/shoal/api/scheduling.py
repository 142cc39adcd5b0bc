"""PriorityClass of scheduling.k8s.io/v1, and the PodGroup of scheduling.x-k8s.io that gang schedulers share."""

from __future__ import annotations

from typing import Annotated

from shoal.api.fields import Int32, Resources, Rule, Timestamp
from shoal.api.labels import POD_GROUP
from shoal.api.meta import Object, Part

POD_GROUP_LABEL = POD_GROUP


class PriorityClass(Object):
    value: int = 0
    global_default: bool = False
    description: str = ""
    preemption_policy: str = ""


class PodGroupSpec(Part):
    """A gang for a pod scheduler: `min_member` pods or none."""

    min_member: Annotated[Int32, Rule(minimum=1)] = 0
    min_resources: Resources | None = None
    schedule_timeout_seconds: Int32 | None = None


class PodGroupStatus(Part):
    phase: str = ""
    occupied_by: str = ""
    scheduled: Int32 = 0
    running: Int32 = 0
    succeeded: Int32 = 0
    failed: Int32 = 0
    schedule_start_time: Timestamp | None = None


class PodGroup(Object):
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()
