"""The least that one quota would have to grow for a gang to get its seat.

Called by `explain` only. Raises one node's quota at a time, tries, and puts it back.
"""

from __future__ import annotations

import msgspec

from shoal.engine.forest import Forest
from shoal.engine.model import Amounts, QuotaIncrease
from shoal.engine.trees import Consumer


def least_increase(forest: Forest, consumer: Consumer) -> QuotaIncrease | None:
    """None when no single quota is enough: a missing leaf, or several nodes at their limits."""
    calm = msgspec.structs.replace(consumer, priority=min(consumer.priority, 0))
    found: list[tuple[int, int, str, Amounts]] = []
    for name in forest.trees:
        tree = forest.tree(name)
        leaf = tree.leaf(consumer.groups.get(name, "default"))
        for node in leaf.path() if leaf is not None else ():
            lacking = tree.lacking(node, consumer.request)
            if not lacking:
                continue
            before = node.quota
            node.quota = {**before, **{key: before.get(key, 0) + amount for key, amount in lacking.items()}}
            refused = forest.refusal(calm)
            node.quota = before
            if not refused:
                found.append((len(lacking), sum(lacking.values()), f"{name}/{node.name}", lacking))
    if not found:
        return None
    _, _, place, amounts = min(found, key=lambda entry: entry[:3])
    return QuotaIncrease(place, amounts)
