"""Queues as Kueue has them: quota, cohorts, flavors, preemption, fair sharing."""

from .decisions import Decisions, Evict, Reserve, Wait
from .facts import (
    ClusterQueue,
    Cohort,
    Flavor,
    FlavorQuota,
    FlavorResource,
    Fungibility,
    Limits,
    LocalQueue,
    Preemption,
    ResourceGroup,
    Settings,
    Terms,
)
from .kueue import Kueue

__all__ = [
    "ClusterQueue", "Cohort", "Decisions", "Evict", "Flavor", "FlavorQuota", "FlavorResource", "Fungibility", "Kueue",
    "Limits", "LocalQueue", "Preemption", "Reserve", "ResourceGroup", "Settings", "Terms", "Wait",
]  # fmt: skip
