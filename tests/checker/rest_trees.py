"""A seat in a quota tree, as MCAD finds one: who has to leave for it, or that there is none.

From the leaf up to the root, each node must have enough; those who sit exactly there are moved one level up to make
room, and out of the tree at the root. Where that fails, a priority above 0 takes out lower ones below. Everything is
worked out on copies.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.checker.gang_world import Sums, Tree, add, over


@dataclass(frozen=True)
class Sitting:
    uid: str
    node: str
    order: int
    request: Sums
    priority: int


@dataclass
class Seats:
    tree: Tree
    sitting: dict[str, Sitting]
    evicts: bool = True
    """May anybody be made to leave?"""
    victims: list[str] = field(default_factory=list)

    def find(self, uid: str, leaf: str, request: Sums, priority: int) -> list[str] | None:
        """Who has to leave; None: there is no seat."""
        if not self.tree.is_leaf(leaf):
            return None
        asking = Sitting(uid, leaf, 0, request, priority)
        failed = self._walk(asking)
        if failed and priority > 0 and self.evicts:
            self.victims = []
            failed = self._walk(asking) if self._take_out(failed, asking) else failed
        return None if failed else self.victims

    def _walk(self, asking: Sitting) -> str:
        """Answers where it failed; nothing where it found a seat."""
        sitting, before = dict(self.sitting), len(self.victims)
        placed = is_hard = False
        path = self.tree.path(asking.node)
        for node in path:
            is_hard = is_hard or node in self.tree.hard
            if self._fits(node, asking) or self._move_up(node, asking, placed):
                if not placed:
                    self._sit(asking, node)
                placed = True
                continue
            if placed:
                self.sitting, placed = dict(sitting), False
                del self.victims[before:]
            if is_hard:
                break
        if placed:
            return ""
        self.sitting = sitting
        del self.victims[before:]
        return node

    def _move_up(self, node: str, asking: Sitting, any_priority: bool) -> bool:
        above = self.tree.parents[node]
        if node in self.tree.hard if above else not self.evicts:
            return False
        moved: list[Sitting] = []
        for one in self._at(node):
            counts = any(one.request.get(name) for name in self.tree.dimensions)
            if one.uid == asking.uid or not counts or not (any_priority or asking.priority > one.priority):
                continue
            moved.append(one)
            if self._fits(node, asking, moved):
                break
        else:
            return False
        for one in moved:
            if above:
                self._sit(one, above)
            else:
                del self.sitting[one.uid]
                self.victims.append(one.uid)
        return True

    def _take_out(self, top: str, asking: Sitting) -> bool:
        path = self.tree.path(asking.node)
        for node in reversed(path[: path.index(top) + 1]):
            for one in self._at(node):
                counts = any(one.request.get(name) for name in self.tree.dimensions)
                if one.priority >= asking.priority or not counts:
                    continue
                del self.sitting[one.uid]
                self.victims.append(one.uid)
                if self._fits(top, asking):
                    return True
        return False

    def _at(self, node: str) -> list[Sitting]:
        return sorted((one for one in self.sitting.values() if one.node == node), key=lambda one: (one.order, one.uid))

    def _sit(self, one: Sitting, node: str) -> None:
        order = 1 + max((other.order for other in self.sitting.values()), default=0)
        self.sitting[one.uid] = Sitting(one.uid, node, order, one.request, one.priority)

    def _fits(self, node: str, asking: Sitting, without: list[Sitting] | None = None) -> bool:
        if node in self.tree.disabled:
            return True
        gone = {asking.uid, *(one.uid for one in without or ())}
        used: Sums = dict(asking.request)
        for one in self.sitting.values():
            if one.uid not in gone and node in (self.tree.path(one.node) or [self.tree.root]):
                add(used, one.request)
        names = {name for name in self.tree.dimensions if asking.request.get(name, 0) > 0}
        return not over(used, self.tree.quotas[node], names)
