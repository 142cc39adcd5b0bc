"""Kueue's decisions behind a few verbs: tell a fact, withdraw it, ask for decisions, ask why.

The engine (and the conformance runner) calls this; it owns the state and hands out only frozen data. Facts may come
in any order and as often as they like: the same facts give the same decisions. Decisions count as carried out at
once; the facts that follow confirm or correct them.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shoal.engine.kueue.cycle.planner import QueuePlanner
from shoal.engine.kueue.cycle.register import Register
from shoal.engine.kueue.cycle.state import QueueState
from shoal.engine.kueue.decisions import QueueDecisions, Wait, bounded
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.explain import explain, fits_without
from shoal.engine.kueue.facts import (
    ClusterQueue,
    Cohort,
    Flavor,
    KueueSettings,
    LocalQueue,
    LocalQueueUsage,
    TopologyFact,
    Usage,
)
from shoal.engine.kueue.flavors.assign import shown
from shoal.engine.kueue.index.heads import IndexedHeads
from shoal.engine.kueue.index.protocol import Heads
from shoal.engine.kueue.places import Places, line, places, waiting_amounts, waiting_counts
from shoal.engine.kueue.quota.tree import QuotaTreeNode
from shoal.engine.kueue.surplus import SurplusUse, usage_of_one
from shoal.engine.kueue.unheard import BEHIND, Known, why_waiting
from shoal.engine.model import Explanation, Gang, Namespace, NodeFact, PodFact, Shortfall

KueueFact = ClusterQueue | Cohort | LocalQueue | Flavor | TopologyFact | Namespace | Gang | NodeFact | PodFact


class Kueue:
    def __init__(
        self, settings: KueueSettings | None = None, heads: Callable[[QueueState], Heads] = IndexedHeads
    ) -> None:
        """`heads` finds the gangs to try: by index, or plainly."""
        self.settings = settings or KueueSettings()
        self.state = QueueState(self.settings)
        self.heads = self.state.heads = heads(self.state)
        self.register = Register(self.state)
        self.planner = QueuePlanner(self.state, self.register)

    @property
    def members(self) -> dict[str, QueueMember]:
        """Every gang that is not finished, by key."""
        return self.register.members

    @property
    def now(self) -> int:
        return self.register.now

    def update(self, fact: KueueFact) -> None:
        """Tell a fact, new or changed."""
        match fact:
            case Gang():
                self.register.update_gang(fact)
            case PodFact():
                self.register.places_changed(self.state.topologies.update_pod(fact))
            case NodeFact():
                self.register.places_changed(self.state.topologies.update_node(fact))
            case ClusterQueue():
                self.register.update_cluster_queue(fact)
            case Cohort():
                self.register.update_cohort(fact)
            case LocalQueue():
                self.register.update_local_queue(fact)
            case Flavor():
                self.register.update_flavor(fact)
            case Namespace():
                self.register.update_namespace(fact.name, fact.labels)
            case TopologyFact():
                self.register.update_topology(fact)

    def remove(self, fact: KueueFact) -> None:
        """Withdraw a fact; only its name counts."""
        match fact:
            case Gang():
                self.register.remove_gang(fact.key)
            case ClusterQueue():
                self.register.remove_cluster_queue(fact.name)
            case Cohort():
                self.register.remove_cohort(fact.name)
            case LocalQueue():
                self.register.remove_local_queue(fact.namespace, fact.name)
            case Flavor():
                self.register.remove_flavor(fact.name)
            case Namespace():
                self.register.update_namespace(fact.name, None)
            case TopologyFact():
                self.register.remove_topology(fact.name)
            case NodeFact():
                self.register.places_changed(self.state.topologies.remove_node(fact.name))
            case PodFact():
                self.register.places_changed(self.state.topologies.remove_pod(fact.uid))

    def set_surplus(self, changed: dict[str, SurplusUse | None], leaving: set[str]) -> None:
        """What elastic gangs have of quota beyond their admission, by UID of the pods that are news; None: no more.
        `leaving`: those of them that were told to. What is not there any more is free."""
        ledger = self.state.surplus
        freed = set()
        for uid, use in changed.items():
            before = ledger.put(uid, use)
            (ledger.leaving.add if uid in leaving else ledger.leaving.discard)(uid)
            if before is not None and not before.charges_as(use):
                freed.add(before.queue)
        for name in sorted(freed & self.state.records.keys()):
            self.register.freed(name)

    def quota_root(self, key: str) -> QuotaTreeNode | None:
        """The tree that decides on quota for this gang; its generation grows with every change there."""
        member = self.members.get(key)
        record = self.state.records.get(member.queue) if member is not None else None
        return record.node.root() if record is not None else None

    def quota_turn(self, key: str) -> object:
        """Another one whenever what pods of this gang's LocalQueue lack of quota may be something else."""
        member = self.members.get(key)
        record = self.state.records.get(member.queue) if member is not None else None
        if member is None or record is None:
            return None
        state, root = self.state, record.node.root()
        local = state.local_queues.get((member.gang.namespace, member.gang.queue))
        stopped = bool(record.inactive) or (local is not None and local.stopped)
        return root.generation, tuple(state.rooms_in(root)) if state.rooms else (), stopped

    def growth(self, key: str, pod_set: str) -> tuple[Usage, tuple[Shortfall, ...]]:
        """What one more pod of this gang, which holds quota, would be charged, and what quota lacks for it."""
        member = self.members.get(key)
        record = self.state.records.get(member.queue) if member is not None else None
        usage = usage_of_one(member, pod_set) if member is not None and member.holds else None
        if member is None or record is None or usage is None or member.evicted:
            return {}, (_no_growth("it was given no quota for such pods"),)
        local = self.state.local_queues.get((member.gang.namespace, member.gang.queue))
        if record.inactive or (local is not None and local.stopped):
            return usage, (_no_growth(f"ClusterQueue {record.name} or its LocalQueue gives out no quota now"),)
        if any(part.name == pod_set and part.topology is not None for part in member.assignment):
            return usage, (_no_growth("a gang with places in a topology does not grow"),)
        self.state.forest.settled()
        root = record.node.root()
        with self.state.rooms_kept(root), self.state.surplus.charged(root, self.state.records):
            short = [(at, amount, record.node.available(at)) for at, amount in sorted(usage.items())]
        return usage, tuple(
            Shortfall(
                kind="quota",
                resource=at.resource,
                missing=amount - available,
                needed=amount,
                available=available,
                place=record.name,
                pod_set=pod_set,
                message=f"insufficient unused quota for {at.resource} in flavor {at.flavor},"
                f" {shown(at, amount - available)} more needed",
            )
            for at, amount, available in short
            if amount > available
        )

    def cycle(self, now: int) -> QueueDecisions:
        """Exactly one cycle with one head per cluster queue, for comparison with Kueue step by step."""
        self.register.begin(now)
        return self.planner.cycle()

    def plan(self, now: int, most: int | None = None) -> QueueDecisions:
        """Decide everything that can be decided now, or until about so many gangs are given quota."""
        self.register.begin(now)
        decisions = self.planner.settle(most)
        ignored = self._notify_ignored()
        return msgspec.structs.replace(decisions, waiting=decisions.waiting + ignored) if ignored else decisions

    def explain(self, key: str) -> Explanation | None:
        """Why this gang waits, in full. Changes nothing; None for a gang that is unknown or has quota."""
        return explain(key, self.state, self.register)

    def fits_without(self, key: str, leaving: str) -> bool:
        """Would this waiting gang get quota if the gang `leaving` were gone? Changes nothing."""
        return fits_without(key, leaving, self.state, self.register)

    def waiting_beside(self, key: str, most: int) -> list[str]:
        """Keys of gangs that wait in queues which share quota with this gang's, the first of each queue."""
        member = self.members.get(key)
        record = self.state.records.get(member.queue) if member is not None else None
        if record is None:
            return []
        beside = [self.state.records.get(node.name) for node in record.node.root().queues()]
        return [one.key for other in beside if other is not None for one in other.waiting.everyone()[:most]]

    def places(self, key: str) -> Places | None:
        """Where a waiting gang stands; None for one that is in no queue or has quota."""
        return places(key, self.state, self.register)

    def line(self, cluster_queue: str) -> list[Gang]:
        """All that wait for the quota of this queue, the next one first."""
        return line(cluster_queue, self.state)

    def waiting_counts(self, cluster_queue: str) -> tuple[int, int]:
        """How many of a queue's gangs would be tried, and how many are inadmissible."""
        return waiting_counts(cluster_queue, self.state)

    def waiting_amounts(self, cluster_queue: str) -> dict[str, int]:
        """What a queue's waiting gangs ask for together."""
        return waiting_amounts(cluster_queue, self.state)

    def reason(self, key: str, known: Known) -> Wait | None:
        """Why this gang waits as of now, in the words of its condition: cheap, as equal gangs share what is `known`.
        None: nothing else is to be said than what a plan said last."""
        member = self.members.get(key)
        if member is None or member.holds or member.gang.state != "waiting" or self.register.is_asleep(member):
            return None
        ignored = self._ignored(member)
        if ignored is not None:
            return ignored
        record = self.state.records.get(member.queue)
        if record is None or member.uid not in record.waiting:
            return None
        self.state.forest.settled()
        found = why_waiting(member, record, self.state, self.register.now, known)
        return None if found is None or found.message == BEHIND else found

    def usage(self, namespace: str, name: str) -> LocalQueueUsage | None:
        """What a LocalQueue had lately, where usage is shared; None: nothing is known yet."""
        return self.state.usage.view(namespace, name) if self.state.usage is not None else None

    def next_wake(self) -> int | None:
        """The moment at which a gang's back-off ends, so that a plan is worth asking for then."""
        return self.register.next_wake()

    def _notify_ignored(self) -> tuple[Wait, ...]:
        """Say once, for every gang that is not looked at, why."""
        found = [self._ignored(self.members[key]) for key in sorted(self.register.unnotified)]
        self.register.unnotified.clear()
        return tuple(one for one in found if one is not None)

    def _ignored(self, member: QueueMember) -> Wait | None:
        message = self.register.why_ignored(member)
        if not message:
            return None
        reason = "Suspended" if " is inactive" in message else "Misconfigured"
        return Wait(
            gang=member.key, uid=member.uid, cluster_queue=member.queue, reason=reason, message=bounded(message)
        )


def _no_growth(message: str) -> Shortfall:
    return Shortfall(kind="quota", place="quota", message=message)
