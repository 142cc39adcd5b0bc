"""Looking without deciding: quota, shares, and what a gang would get.

For status, dry runs, explanations and tests. Nothing here changes the ledger.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from shoal.engine.kueue.cycle.placing import PlacingStep
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import FlavorResource, Usage
from shoal.engine.kueue.fair_sharing.share import share_of
from shoal.engine.kueue.flavors.assign import Oracle, Search
from shoal.engine.kueue.flavors.assignment import Assignment
from shoal.engine.kueue.kueue import Kueue
from shoal.engine.kueue.preemption.candidates import Victim
from shoal.engine.kueue.preemption.preempt import Preemptor
from shoal.engine.kueue.quota.tree import QuotaTreeNode
from shoal.engine.model import Gang


class QuotaView(msgspec.Struct, frozen=True):
    """One cluster queue's room, by flavor and resource."""

    usage: Usage
    available: Usage
    potential: Usage
    """The largest request that could ever fit."""


class ShareView(msgspec.Struct, frozen=True):
    kind: Literal["ClusterQueue", "Cohort"]
    name: str
    weighted_share: int
    dominant_resource: str
    borrowing: bool


def quota_of(kueue: Kueue, queue: str) -> QuotaView:
    kueue.state.forest.settled()
    node = kueue.state.records[queue].node
    places = sorted(node.limits)
    return QuotaView(
        {at: node.usage.get(at, 0) for at in sorted(node.usage.keys() | node.limits.keys())},
        {at: node.available(at) for at in places},
        {at: node.potential.get(at, 0) for at in places},
    )


def shares(kueue: Kueue, extra: dict[str, Usage] | None = None) -> list[ShareView]:
    """Every node's dominant resource share, cluster queues first; `extra` usage by queue is imagined on top."""
    forest = kueue.state.forest
    forest.settled()
    for name, usage in (extra or {}).items():
        forest.queues[name].add(usage)
    views = [_share_view(node) for nodes in (forest.queues, forest.cohorts) for _, node in sorted(nodes.items())]
    for name, usage in (extra or {}).items():
        forest.queues[name].remove(usage)
    return views


def published_share(kueue: Kueue, kind: Literal["ClusterQueue", "Cohort"], name: str) -> int | None:
    """The weighted share of one node as Kueue's statuses have it; None for one that is not known."""
    forest = kueue.state.forest
    forest.settled()
    node = (forest.queues if kind == "ClusterQueue" else forest.cohorts).get(name)
    return share_of(node).published if node is not None else None


def exact_share(kueue: Kueue, kind: Literal["ClusterQueue", "Cohort"], name: str) -> float | None:
    """The same, not rounded."""
    forest = kueue.state.forest
    forest.settled()
    node = (forest.queues if kind == "ClusterQueue" else forest.cohorts).get(name)
    return share_of(node).exact if node is not None else None


def _share_view(node: QuotaTreeNode) -> ShareView:
    share = share_of(node)
    kind: Literal["ClusterQueue", "Cohort"] = "ClusterQueue" if node.is_queue else "Cohort"
    return ShareView(kind, node.name, share.published, share.resource, share.borrowing)


def assignment_of(kueue: Kueue, gang: Gang, queue: str, oracle: Oracle | None = None) -> Assignment:
    """The flavors this gang would get in this queue now. `oracle` may stand in for preemption."""
    kueue.state.forest.settled()
    record = kueue.state.records[queue]
    member = QueueMember(gang, queue)
    preemptor = Preemptor(kueue.state.records, kueue.settings)
    ask = oracle or preemptor.oracle(member, kueue.now)
    search = Search(member, record.fact, record.groups, record.node, kueue.state.flavors, kueue.settings, ask)
    search.placing = PlacingStep(member, record, kueue.settings)
    return search.run()


def victims_of(
    kueue: Kueue, gang: Gang, queue: str, wanted: Usage, places: frozenset[FlavorResource], now: int
) -> list[Victim]:
    """The gangs that would have to leave for `wanted` to fit."""
    kueue.state.forest.settled()
    member = QueueMember(gang, queue)
    return Preemptor(kueue.state.records, kueue.settings).find_victims(member, wanted, places, now)
