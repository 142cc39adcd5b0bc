"""Queues as Kueue has them: quota trees, flavors, preemption, fair sharing, and the cycle that uses them.

    kueue = Kueue(Settings(fair_sharing=True))
    kueue.update(fact)              # ClusterQueue, Cohort, LocalQueue, Flavor, model.Namespace, model.Gang
    kueue.remove(fact)              # only its name counts
    decisions = kueue.plan(now)     # .reserved, .evicted, .waiting; .plan() in the words of both dialects
    kueue.explain("Workload/ns/x")  # why it waits and what would help; changes nothing
    kueue.cycle(now)                # one head per queue, for comparison with Kueue step by step

A Gang's `queue` is its LocalQueue; what else its Workload says travels as `Terms` in `gang.details["kueue"]`. `read`
makes all of these from Kubernetes objects. Decisions count as carried out at once: a reserved gang holds its quota
and a victim counts as leaving from the moment they are returned. The facts told afterwards are the truth: telling a
gang as `waiting` again undoes its reservation, so tell only facts that include one's own writes.

Where things are: facts · demand (a gang's wishes) · tree, forest, share (quota) · eligible, assign, assignment,
shrink (flavors) · candidates, classical, fair, preempt, reach (victims) · waiting, record, register, state (who is
where) · entry, order, cycle, planner (deciding) · decisions, explain, places, views (answers) · read, limits (from
objects).
"""

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
from .places import Places

__all__ = [
    "ClusterQueue",
    "Cohort",
    "Decisions",
    "Evict",
    "Flavor",
    "FlavorQuota",
    "FlavorResource",
    "Fungibility",
    "Kueue",
    "Limits",
    "LocalQueue",
    "Places",
    "Preemption",
    "Reserve",
    "ResourceGroup",
    "Settings",
    "Terms",
    "Wait",
]
