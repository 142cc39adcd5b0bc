"""What each quota node carries, for people: read from the forest on demand, never used to decide."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shoal.engine.mcad.forest import QuotaForest
from shoal.engine.model import Amounts


class NodeUse(msgspec.Struct, frozen=True):
    """`allocated` sits in this node's subtree; `borrowed` belongs to this leaf and sits above it."""

    allocated: Amounts = {}
    borrowed: Amounts = {}
    holders: tuple[str, ...] = ()
    """Keys of the gangs that belong to this leaf, largest first."""


def quota_use(forest: QuotaForest, keys: Mapping[str, str]) -> dict[tuple[str, str], NodeUse]:
    """By tree and node; `keys`: of gangs, by UID."""
    found: dict[tuple[str, str], NodeUse] = {}
    for name in forest.trees:
        tree = forest.tree(name)
        borrowed: dict[str, Amounts] = {}
        members: dict[str, list[tuple[int, str]]] = {}
        for uid, consumer in tree.consumers.items():
            leaf, seat = consumer.groups.get(name, ""), tree.seats.get(uid)
            if uid not in keys or seat is None:
                continue
            members.setdefault(leaf, []).append((-sum(consumer.request.values()), keys[uid]))
            if seat.name != leaf:
                book = borrowed.setdefault(leaf, {})
                for resource in tree.dimensions:
                    amount = consumer.request.get(resource, 0)
                    book[resource] = book.get(resource, 0) + amount
        for node in tree.nodes.values():
            found[name, node.name] = NodeUse(
                dict(node.allocated),
                borrowed.get(node.name, {}),
                tuple(key for _, key in sorted(members.get(node.name, ()))),
            )
    return found
