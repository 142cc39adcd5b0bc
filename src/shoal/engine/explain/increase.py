"""The least that one quota, or the cluster, would have to grow for a gang to start.

Called by `explain` only. Tries on the forest or the room and puts everything back; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shoal.api.labels import HOSTNAME
from shoal.engine.mcad.forest import QuotaForest
from shoal.engine.mcad.trees import Consumer, TreeNode
from shoal.engine.model import Amounts, Gang, NodeFact, QuotaIncrease
from shoal.engine.nodes.fit import Placement, demand_of, place
from shoal.engine.nodes.ledger import Ledger

NODES = "nodes"
"""The place of an increase that is a node: one more, with so much free."""

_NEW = "one+more"  # no real node can have a + in its name


def least_increase(
    forest: QuotaForest, consumer: Consumer, is_admitted: Callable[[Consumer], bool]
) -> QuotaIncrease | None:
    """`is_admitted` tells whether quota, as it stands, says yes. None when no single quota is enough: a missing leaf,
    or several nodes at their limits."""
    calm = msgspec.structs.replace(consumer, priority=min(consumer.priority, 0))
    found: list[tuple[int, int, str, Amounts]] = []
    for name in forest.trees:
        leaf = forest.tree(name).leaf(consumer.groups.get(name, "default"))
        for node in leaf.path() if leaf is not None else ():
            lacking = forest.tree(name).lacking(node, consumer.request)
            if lacking and _admits(calm, node, lacking, is_admitted):
                least = _trimmed(calm, node, lacking, is_admitted)
                found.append((len(least), sum(least.values()), f"{name}/{node.name}", least))
    if not found:
        return None
    _, _, place_name, amounts = min(found, key=lambda entry: entry[:3])
    return QuotaIncrease(place_name, amounts)


def _admits(consumer: Consumer, node: TreeNode, more: Amounts, is_admitted: Callable[[Consumer], bool]) -> bool:
    before = node.quota
    node.quota = {**before, **{key: before.get(key, 0) + amount for key, amount in more.items()}}
    admitted = is_admitted(consumer)
    node.quota = before
    return admitted


def _trimmed(consumer: Consumer, node: TreeNode, more: Amounts, is_admitted: Callable[[Consumer], bool]) -> Amounts:
    """Others may move up once there is a little more: ask for no more than it takes, resource by resource."""
    for resource in sorted(more):
        low, high = 0, more[resource]
        while low < high:
            middle = (low + high) // 2
            if _admits(consumer, node, {**more, resource: middle}, is_admitted):
                high = middle
            else:
                low = middle + 1
        more = {**more, resource: high}
    return {resource: amount for resource, amount in more.items() if amount}


def least_node(gang: Gang, ledger: Ledger) -> QuotaIncrease | None:
    """What one more node would have to offer, if the gang uses what is free as well. None: one alone is not enough."""
    labels: dict[str, str] = {}
    for selector in (gang.node_selector, *(pod_set.node_selector for pod_set in gang.pod_sets)):
        if any(labels.get(key, value) != value for key, value in selector.items()):
            return None
        labels |= selector
    offered = _offer(gang, ledger, labels, demand_of(gang.pod_sets))
    if offered is None or _offer(gang, ledger, labels, offered) is None:
        return None
    return QuotaIncrease(NODES, {resource: amount for resource, amount in offered.items() if resource != "pods"})


def _offer(gang: Gang, ledger: Ledger, labels: dict[str, str], amounts: Amounts) -> Amounts | None:
    """What the gang would take of one more node with these amounts; None when it would not fit even so."""
    fact = NodeFact(name=_NEW, labels={**labels, HOSTNAME: _NEW}, allocatable=amounts)
    with ledger.room.imagining([fact]):
        found = place(gang, ledger.room, say_why=False)
    if not isinstance(found, Placement):
        return None
    there = [
        msgspec.structs.replace(pod_set, count=nodes.get(_NEW, 0))
        for pod_set, nodes in zip(gang.pod_sets, found.pod_sets, strict=True)
    ]
    return demand_of(there)
