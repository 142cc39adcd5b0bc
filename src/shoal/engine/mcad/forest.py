"""MCAD's quota forest: a gang is admitted only if every tree has a seat for it.

Called by the planner before room is looked at. Trees are taken in order of name, so that the same facts give the same
seats and the same victims. A seat depends on gangs that came before; it is stored with the admission and told again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from shoal.api.quantity import show
from shoal.engine.mcad.trees import Consumer, Tree, TreeNode
from shoal.engine.model import Amounts, QuotaSubtree, Seat, Shortfall


class Seating(msgspec.Struct, frozen=True):
    """A place in every tree, and the consumers that have to leave for it."""

    seats: dict[str, Seat]
    victims: tuple[str, ...] = ()


class _Refused(NamedTuple):
    tree: Tree
    where: TreeNode | None
    """None: no such leaf."""


class QuotaForest:
    def __init__(self, minimal_victims: bool = False, evicting: bool = True) -> None:
        self.minimal_victims = minimal_victims
        self.evicting = evicting
        """False: no consumer is ever pushed out, whatever consumers say of themselves."""
        self.version = 0
        """Grows whenever quota may have become free."""
        self.shape_version = 0
        """Grows whenever trees are built again."""
        self.refused_path: tuple[TreeNode, ...] = ()
        """The nodes that the last refusal hung on: from the leaf to where it ended. Empty: no such leaf."""
        self._version_before = 0
        self._subtrees: dict[str, QuotaSubtree] = {}
        self._trees: dict[str, Tree] = {}

    # Facts

    @property
    def trees(self) -> tuple[str, ...]:
        return tuple(sorted(name for name, tree in self._trees.items() if tree.root is not None))

    @property
    def subtrees(self) -> list[QuotaSubtree]:
        return list(self._subtrees.values())

    @property
    def warnings(self) -> list[str]:
        return [warning for name in sorted(self._trees) for warning in self._trees[name].warnings]

    def tree(self, name: str) -> Tree:
        return self._trees[name]

    def set_subtree(self, fact: QuotaSubtree) -> None:
        old = self._subtrees.get(fact.key)
        if old == fact:
            return
        self._subtrees[fact.key] = fact
        self._rebuild({fact.tree} | ({old.tree} if old else set()))

    def drop_subtree(self, key: str) -> None:
        old = self._subtrees.pop(key, None)
        if old is not None:
            self._rebuild({old.tree})

    def _rebuild(self, names: set[str]) -> None:
        self.version += 1
        self.shape_version += 1
        for name in names:
            parts = [fact for fact in self._subtrees.values() if fact.tree == name]
            tree = self._trees.setdefault(name, Tree(name, self.evicting))
            tree.rebuild(parts)
            if not parts:
                del self._trees[name]

    # Seats

    def seats(self, uid: str) -> dict[str, Seat]:
        found = {name: self._trees[name].seat_of(uid) for name in self.trees}
        return {name: seat for name, seat in found.items() if seat is not None}

    def holds(self, uid: str) -> bool:
        return any(uid in tree.seats for tree in self._trees.values())

    def restore(self, consumer: Consumer, seats: Mapping[str, Seat]) -> None:
        """Seat a consumer that is admitted: where it sat before, else at the leaf, over quota if need be."""
        for name in self.trees:
            tree = self._trees[name]
            current, seat = tree.seat_of(consumer.uid), seats.get(name)
            if current is not None and seat in (None, current):
                known = tree.consumers[consumer.uid]
                tree.consumers[consumer.uid] = consumer
                if (known.request, known.groups) == (consumer.request, consumer.groups):
                    continue
                tree.consumers[consumer.uid] = known
            if current is not None:
                tree.take_out(consumer.uid)
                self.version += 1
            tree.force(consumer, seat or current)

    def release(self, uid: str) -> None:
        for name in self.trees:
            tree = self._trees[name]
            if uid not in tree.seats:
                continue
            self.version += 1
            tree.release(uid)
            tree.journal.clear()

    def take_out(self, uid: str) -> None:
        """Take back the seat of a consumer that never started; no other slides down."""
        for tree in self._trees.values():
            if uid in tree.seats:
                tree.take_out(uid)
                tree.journal.clear()

    def allocate(self, consumer: Consumer) -> Seating | tuple[Shortfall, ...]:
        """A seat in every tree, or why not. A refusal changes nothing; a seating can be taken back with `undo`."""
        self._version_before = self.version
        for tree in self._trees.values():
            tree.journal.clear()
        victims = self._sit_everywhere(consumer)
        if isinstance(victims, _Refused):
            leaf = victims.tree.leaf(consumer.groups.get(victims.tree.name, "default"))
            path = leaf.path() if leaf is not None else []
            self.refused_path = tuple(path[: path.index(victims.where) + 1] if victims.where is not None else ())
            reasons = self._reasons(victims.tree, victims.where, consumer)
            self.undo()
            return reasons
        if victims:
            self.version += 1
        return Seating(self.seats(consumer.uid), tuple(victims))

    def _sit_everywhere(self, consumer: Consumer) -> list[str] | _Refused:
        """Tree by tree; a consumer pushed out of one leaves all of them. Returns those, or where it failed."""
        victims: list[str] = []
        for name in self.trees:
            tree = self._trees[name]
            preempted = tree.allocate(consumer, self.minimal_victims)
            if not isinstance(preempted, list):
                return _Refused(tree, preempted)
            for uid in preempted:
                for other in self.trees:
                    if other != name:
                        self._trees[other].release(uid)
            victims += [uid for uid in preempted if uid not in victims]
        return victims

    def trial(self, consumer: Consumer, without: Iterable[str] = ()) -> Seating | tuple[Shortfall, ...]:
        """What `allocate` would say, were those `without` gone. Changes nothing."""
        version = self.version
        moved = {name: set(tree.moved) for name, tree in self._trees.items()}
        for tree in self._trees.values():
            tree.journal.clear()
        for uid in [*without, consumer.uid]:
            for tree in self._trees.values():
                tree.release(uid)
        victims = self._sit_everywhere(consumer)
        answer: Seating | tuple[Shortfall, ...]
        if isinstance(victims, _Refused):
            answer = self._reasons(victims.tree, victims.where, consumer)
        else:
            answer = Seating(self.seats(consumer.uid), tuple(victims))
        self.undo()
        self.version = version
        for name, tree in self._trees.items():
            tree.moved = moved[name]
        return answer

    def lacking_for_more(self, uid: str, more: Amounts) -> tuple[Shortfall, ...]:
        """What is missing for a consumer that sits here to have this much more; no other is made to leave for it."""
        consumer = next((tree.consumers[uid] for tree in self._trees.values() if uid in tree.consumers), None)
        if consumer is None:
            return ()
        asking = msgspec.structs.replace(consumer, request=more)
        return tuple(
            reason for tree, node in self.gates(asking) if tree.lacking(node, more)
            for reason in self._reasons(tree, node, asking)
        )  # fmt: skip

    def members(self, place: str) -> list[str]:
        """Consumers that sit at or below a node, given as `tree/node`."""
        name, _, node_name = place.partition("/")
        tree = self._trees.get(name)
        node = tree.nodes.get(node_name) if tree is not None else None
        if tree is None or node is None:
            return []
        return [uid for uid, seat in tree.seats.items() if node in seat.path()]

    def undo(self) -> None:
        """Take back the last `allocate`, exactly. Nothing else may have changed in between."""
        self.version = self._version_before
        for tree in self._trees.values():
            tree.undo_to(0)

    def path_of(self, consumer: Consumer) -> tuple[TreeNode, ...]:
        """Every node, of every tree, that this consumer could sit at."""
        leaves = (self._trees[name].leaf(consumer.groups.get(name, "default")) for name in self.trees)
        return tuple(node for leaf in leaves if leaf is not None for node in leaf.path())

    def gates(self, consumer: Consumer) -> tuple[tuple[Tree, TreeNode], ...]:
        """Where there must be room for it if no other can be made to leave: hard nodes on its way, and roots."""
        found = []
        for name in self.trees:
            tree = self._trees[name]
            leaf = tree.leaf(consumer.groups.get(name, "default"))
            for node in leaf.path() if leaf is not None else ():
                if node.hard or node.parent is None:
                    found.append((tree, node))
        return tuple(found)

    def take_freed(self) -> list[TreeNode]:
        """Nodes where something may have been given back since this was last asked."""
        found: list[TreeNode] = []
        for tree in self._trees.values():
            found += tree.freed_at
            tree.freed_at = {}
        return found

    def note_freed(self, gates: Iterable[tuple[Tree, TreeNode]]) -> None:
        for tree, node in gates:
            tree.freed_at[node] = None

    def take_moved(self) -> set[str]:
        """Those whose seats may have changed since this was last asked."""
        found: set[str] = set()
        for tree in self._trees.values():
            found |= tree.moved
            tree.moved = set()
        return found

    def _reasons(self, tree: Tree, where: TreeNode | None, consumer: Consumer) -> tuple[Shortfall, ...]:
        if where is None:
            leaf = consumer.groups.get(tree.name, "default")
            return (
                Shortfall(
                    kind="quota",
                    place=f"{tree.name}/{leaf}",
                    message=f"quota tree {tree.name!r} has no leaf {leaf!r}; set the label {tree.name!r} to one it has",
                ),
            )
        found = []
        for resource, missing in sorted(tree.lacking(where, consumer.request).items()):
            needed, quota = consumer.request[resource], where.quota.get(resource, 0)
            used = where.allocated.get(resource, 0)
            limit = "hard limit" if where.hard else "quota"
            found.append(
                Shortfall(
                    kind="quota",
                    resource=resource,
                    missing=missing,
                    needed=needed,
                    available=max(0, quota - used),
                    place=f"{tree.name}/{where.name}",
                    message=(
                        f"{show(resource, needed)} {resource} needed, {show(resource, max(0, quota - used))} left of "
                        f"the {limit} of {show(resource, quota)} at {tree.name}/{where.name}"
                    ),
                )
            )
        if not found:
            found.append(
                Shortfall(
                    kind="quota",
                    place=f"{tree.name}/{where.name}",
                    message=f"quota of {tree.name}/{where.name} is used by gangs that cannot be preempted",
                )
            )
        return tuple(found)


__all__ = ["Consumer", "QuotaForest", "Seating"]
