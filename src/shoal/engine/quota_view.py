"""What each quota node carries, for people: read from the forest on demand, never used to decide."""

from __future__ import annotations

import msgspec

from shoal.engine.model import Amounts
from shoal.engine.state import State


class NodeUse(msgspec.Struct, frozen=True):
    """`allocated` sits in this node's subtree; `borrowed` belongs to this leaf and sits above it."""

    allocated: Amounts = {}
    borrowed: Amounts = {}
    holders: tuple[str, ...] = ()
    """Keys of the gangs that belong to this leaf, largest first."""


def quota_use(state: State) -> dict[tuple[str, str], NodeUse]:
    found: dict[tuple[str, str], NodeUse] = {}
    for name in state.forest.trees:
        tree = state.forest.tree(name)
        borrowed: dict[str, Amounts] = {}
        members: dict[str, list[tuple[int, str]]] = {}
        for uid, consumer in tree.consumers.items():
            leaf, seat = consumer.groups.get(name, ""), tree.seats.get(uid)
            if uid not in state.keys or seat is None:
                continue
            members.setdefault(leaf, []).append((-sum(consumer.request.values()), state.keys[uid]))
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
