"""The names that people and other controllers read on what goes from one cluster to another."""

from __future__ import annotations

from shoal.controllers.queues.checks.multikueue import EPOCH

RECORD = "shoal.dev/dispatch"
"""Annotation of a hub's Workload: in which clusters something of it may be."""
HUB_WORKLOAD = "shoal.dev/hub-workload"
"""Annotation of every copy: UID of the Workload at the hub."""
HUB_NAMESPACE = "shoal.dev/hub-namespace"
"""Annotation of a member's namespace: UID of the one namespace at the hub from which it takes gangs."""
HUB = "shoal.dev/hub"
"""Label of the copy of an AppWrapper of v1beta1: which hub it belongs to."""
PRICE = "shoal.dev/price"
"""Annotation of a MultiKueueCluster: what the policy `cheapest` goes by."""
WEIGHT = "shoal.dev/weight"
"""Annotation of a MultiKueueCluster: its share under the policy `spread`; 1 where there is none."""
IDENTITY = "shoal.dev/cluster-uid"
"""Annotation of a MultiKueueCluster: UID of the `kube-system` namespace that answered first."""
SELECTOR = "shoal.dev/cluster-selector"
"""Annotation of a job or an AppWrapper: label selector of the MultiKueueClusters that may run it."""
PREFERRED = "shoal.dev/preferred-clusters"
"""Annotation of a job or an AppWrapper: label selector of the MultiKueueClusters that it goes to first."""
POLICY = "shoal.dev/cluster-policy"
"""Annotation of a job or an AppWrapper: its own policy, instead of the one of the settings."""
FORGOTTEN = "shoal.dev/forgotten"
"""Annotation of a MultiKueueCluster that does not answer: since when a person says that nothing runs there any more."""
DRAINING = "shoal.dev/draining"
"""Annotation of a cordoned MultiKueueCluster: `move`, its gangs go to other members, one after the other."""
CORDONED = "shoal.dev/cordoned"
"""Annotation of a MultiKueueCluster that takes no new gangs: since when."""
KINDS = "shoal.dev/kinds"
"""Annotation of a MultiKueueCluster without Shoal: kinds of the objects that were ever sent there."""
ASKED = "shoal.dev/asked"
"""Annotation of a hub's Lease in a member: what the member asks, again and again."""
GRANTED = "shoal.dev/granted"
"""Annotation of a hub's Lease in a member: the last question that the hub has granted."""
REMOVALS = "shoal.dev/removals"
"""Annotation of a MultiKueueCluster: what must go there once it answers again."""

__all__ = [
    "ASKED",
    "CORDONED",
    "DRAINING",
    "EPOCH",
    "FORGOTTEN",
    "GRANTED",
    "HUB",
    "HUB_NAMESPACE",
    "HUB_WORKLOAD",
    "IDENTITY",
    "KINDS",
    "POLICY",
    "PREFERRED",
    "PRICE",
    "RECORD",
    "REMOVALS",
    "SELECTOR",
    "WEIGHT",
]
