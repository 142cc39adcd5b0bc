"""Room kept for gangs that wait, until others that are on their way out are gone.

The ledger owns one book of these and charges what it says. A claim stands on the room of gangs that leave for it: the
two are never counted side by side, only the larger of them, node by node and resource by resource.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shoal.engine.model import Amounts
from shoal.engine.nodes.to_come import Charges

ByNode = dict[str, Amounts]
"""Node name to amounts; how many pods is the amount of `pods`."""


class Claim(msgspec.Struct, frozen=True):
    charges: Charges
    demand: Amounts
    """As a sum, whether or not it has a place on nodes."""
    leaving: frozenset[str]
    """UIDs of the gangs whose room it counts on."""


def by_node(charges: Iterable[tuple[str, Amounts, int]]) -> ByNode:
    """Sums of pods: node, requests, count."""
    found: ByNode = {}
    for node, requests, count in charges:
        book = found.setdefault(node, {})
        book["pods"] = book.get("pods", 0) + count
        for resource, amount in requests.items():
            if amount > 0 and resource != "pods":
                book[resource] = book.get(resource, 0) + amount * count
    return found


def shared(one: Amounts, other: Amounts) -> Amounts:
    """What both have, resource by resource."""
    both = {resource: min(amount, other[resource]) for resource, amount in one.items() if resource in other}
    return {resource: amount for resource, amount in both.items() if amount > 0}
