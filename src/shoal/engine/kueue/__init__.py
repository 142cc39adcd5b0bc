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

Where things are: facts · demand (what a gang asks for) · quota/ (trees) · flavors/ (assignments) · preemption/ and
fair_sharing/ (victims, shares) · usage (what LocalQueues had) · index/ (who is next) · cycle/ (who is where, deciding)
· decisions, explain, places, unheard, views (answers) · read, limits (from objects).
"""

from shoal.engine.kueue.decisions import Evict, QueueDecisions, Reserve, Wait
from shoal.engine.kueue.facts import (
    ClusterQueue,
    Cohort,
    ConsumedUsage,
    Flavor,
    FlavorQuota,
    FlavorResource,
    Fungibility,
    Gates,
    KueueSettings,
    Limits,
    LocalQueue,
    LocalQueueUsage,
    Preemption,
    ResourceGroup,
    ShareStrategy,
    Terms,
    TopologyFact,
    UsageSharing,
    order_time,
    terms_of,
)
from shoal.engine.kueue.kueue import Kueue
from shoal.engine.kueue.places import Places
from shoal.engine.kueue.preemption.candidates import Loss, loss_of
from shoal.engine.kueue.topology import stored_placement
from shoal.engine.kueue.unheard import Known

__all__ = [
    "ClusterQueue",
    "Cohort",
    "ConsumedUsage",
    "Evict",
    "Flavor",
    "FlavorQuota",
    "FlavorResource",
    "Fungibility",
    "Gates",
    "Known",
    "Kueue",
    "KueueSettings",
    "Limits",
    "LocalQueue",
    "LocalQueueUsage",
    "Loss",
    "Places",
    "Preemption",
    "QueueDecisions",
    "Reserve",
    "ResourceGroup",
    "ShareStrategy",
    "Terms",
    "TopologyFact",
    "UsageSharing",
    "Wait",
    "loss_of",
    "order_time",
    "stored_placement",
    "terms_of",
]
