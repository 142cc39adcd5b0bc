"""One MCAD quota tree: its nodes, which consumer sits where, and how one consumer gets in or leaves.

Only the forest calls it. Every change goes through a journal, so that an attempt that fails leaves no trace, down to
the order of those that were pushed aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter

import msgspec

from shoal.engine.model import Amounts, QuotaNode, QuotaSubtree, Seat

MCAD_DIMENSIONS = ("cpu", "memory", "nvidia.com/gpu")
"""Always enforced: a node that does not name one of these has none of it."""

Journal = list[Callable[[], None]]
_BY_ORDER = itemgetter(1, 0)


class Consumer(msgspec.Struct, frozen=True):
    """An admitted or asking gang, as quota sees it. `groups`: tree name to the leaf it belongs to."""

    uid: str
    groups: dict[str, str]
    request: Amounts
    priority: int = 0
    preemptable: bool = True


class TreeNode:
    __slots__ = ("allocated", "changed", "children", "disabled", "freed", "hard", "name", "parent", "quota", "seated")

    def __init__(self, fact: QuotaNode) -> None:
        self.name = fact.name
        self.quota = fact.quota
        self.hard = fact.hard
        self.disabled = fact.disabled
        self.parent: TreeNode | None = None
        self.children: list[TreeNode] = []
        self.allocated: Amounts = {}
        self.freed = 0
        """How often something was given back here; below: how often anything changed. The refused watch these."""
        self.changed = 0
        self.seated: dict[str, int] = {}
        """Consumers that sit exactly here: UID to order of arrival."""

    def path(self) -> list[TreeNode]:
        found, node = [self], self.parent
        while node is not None:
            found.append(node)
            node = node.parent
        return found

    def in_order(self) -> list[str]:
        return [uid for uid, _ in sorted(self.seated.items(), key=_BY_ORDER)]


class Tree:
    def __init__(self, name: str, evicting: bool = True) -> None:
        self.name = name
        self.evicting = evicting
        self.nodes: dict[str, TreeNode] = {}
        self.root: TreeNode | None = None
        self.dimensions: tuple[str, ...] = MCAD_DIMENSIONS
        self.consumers: dict[str, Consumer] = {}
        self.seats: dict[str, TreeNode] = {}
        self.next_order = 1
        self.journal: Journal = []
        self.moved: set[str] = set()
        """Consumers that sat down or stood up since the last look."""
        self.freed_at: dict[TreeNode, None] = {}
        """Where something was given back since the last look; also by attempts that were undone."""
        self.warnings: list[str] = []

    def __getstate__(self) -> dict[str, object]:
        """A copy begins with nothing to take back."""
        return {**self.__dict__, "journal": []}

    # Shape

    def rebuild(self, subtrees: Iterable[QuotaSubtree]) -> None:
        """Take on a new shape; every consumer is seated again where it sat, else at its leaf, else at the root."""
        seated = [
            (consumer, Seat(self.seats[uid].name, self.seats[uid].seated[uid]))
            for uid, consumer in self.consumers.items()
        ]
        self._read(subtrees)
        self.consumers, self.seats = {}, {}
        for consumer, seat in sorted(seated, key=lambda entry: (entry[1].order, entry[0].uid)):
            self.force(consumer, seat)
        self.journal.clear()

    def _read(self, subtrees: Iterable[QuotaSubtree]) -> None:
        self.warnings = []
        parents: dict[str, str] = {}
        nodes: dict[str, TreeNode] = {}
        for subtree in sorted(subtrees, key=lambda fact: fact.key):
            for fact in subtree.nodes:
                if not fact.name:
                    self.warnings.append(f"QuotaSubtree/{subtree.key}: a node without a name; it is ignored")
                elif fact.name in nodes:
                    self.warnings.append(
                        f"QuotaSubtree/{subtree.key}: node {fact.name!r} exists already; it is ignored"
                    )
                elif any(amount < 0 for amount in fact.quota.values()):
                    self.warnings.append(f"QuotaSubtree/{subtree.key}: node {fact.name!r} has a quota below 0; ignored")
                else:
                    nodes[fact.name] = TreeNode(fact)
                    parents[fact.name] = "" if subtree.parent == "nil" else subtree.parent
        roots = sorted(name for name, parent in parents.items() if not parent)
        self.root = nodes[roots[0]] if roots else None
        for name in roots[1:]:
            self.warnings.append(f"tree {self.name!r}: a second root {name!r}; only {roots[0]!r} counts")
        self.nodes = {}
        reached = [self.root] if self.root is not None else []
        below: dict[str, list[str]] = {}
        for name, parent in parents.items():
            below.setdefault(parent, []).append(name)
        while reached:
            node = reached.pop()
            self.nodes[node.name] = node
            for name in sorted(below.get(node.name, ())):
                child = nodes[name]
                child.parent = node
                node.children.append(child)
                reached.append(child)
        for name in sorted(nodes.keys() - self.nodes.keys() - set(roots[1:])):
            self.warnings.append(f"tree {self.name!r}: node {name!r} does not reach the root; it is ignored")
        named = {resource for node in self.nodes.values() for resource in node.quota}
        self.dimensions = (*MCAD_DIMENSIONS, *sorted(named - set(MCAD_DIMENSIONS)))

    def leaf(self, name: str) -> TreeNode | None:
        node = self.nodes.get(name)
        return node if node is not None and not node.children else None

    # Seats

    def seat_of(self, uid: str) -> Seat | None:
        node = self.seats.get(uid)
        return None if node is None else Seat(node.name, node.seated[uid])

    def force(self, consumer: Consumer, seat: Seat | None) -> None:
        """Seat a consumer that is admitted already, over quota if need be. An unknown leaf sits at the root."""
        if self.root is None:
            return
        group = self.nodes.get(consumer.groups.get(self.name, "default"))
        node = self.nodes.get(seat.node) if seat is not None else None
        if group is None:
            node = self.root
        elif node is None or node not in group.path():
            node = group
        order = seat.order if seat is not None and seat.order > 0 else self.next_order
        self.consumers[consumer.uid] = consumer
        for above in node.path():
            self._charge(above, consumer.request, 1)
        self._sit(consumer.uid, node, order)
        self.next_order = max(self.next_order, order + 1)
        self.journal.clear()

    def allocate(self, consumer: Consumer, minimal: bool) -> list[str] | TreeNode | None:
        """Seat a new consumer. Returns the preempted ones, or where it failed (None: no such leaf) without a trace."""
        leaf = self.leaf(consumer.groups.get(self.name, "default"))
        if leaf is None:
            return None
        start = len(self.journal)
        self._remember(consumer)
        victims: list[str] = []
        failed = self._walk(leaf, consumer, victims, minimal)
        if failed is not None and consumer.priority > 0:
            victims = []
            if self._evict_below(failed, leaf, consumer, victims):
                failed = self._walk(leaf, consumer, victims, minimal) and failed
        if failed is not None:
            self.undo_to(start)
            return failed
        return victims

    def _walk(self, leaf: TreeNode, consumer: Consumer, victims: list[str], minimal: bool) -> TreeNode | None:
        """Pass 1: from the leaf to the root. Returns the last node tried where it fails, None where it succeeds."""
        start, before = len(self.journal), len(victims)
        placed = hard = False
        last = leaf
        for node in leaf.path():
            last = node
            hard = hard or node.hard
            if self._fits(node, consumer.request) or self._shift(node, consumer, placed, victims, minimal):
                self._charge(node, consumer.request, 1)
                if not placed:
                    self._sit(consumer.uid, node, self._take_order())
                placed = True
                continue
            if placed:
                self.undo_to(start)
                del victims[before:]
                placed = False
            if hard:
                break
        if not placed:
            self.undo_to(start)
            del victims[before:]
            return last
        return None

    def _shift(self, node: TreeNode, consumer: Consumer, any_priority: bool, victims: list[str], minimal: bool) -> bool:
        """Make room at a node by moving those that sit exactly there one level up, oldest first; at the root, out."""
        is_root = node.parent is None
        if not self.evicting if is_root else node.hard:
            return False
        moved: list[str] = []
        freed: Amounts = {}
        for uid in node.in_order():
            other = self.consumers[uid]
            if uid == consumer.uid or not (any_priority or consumer.priority > other.priority):
                continue
            if is_root and not other.preemptable:
                continue
            if not any(other.request.get(resource) for resource in self.dimensions):
                continue  # holds nothing that is counted here
            moved.append(uid)
            _add(freed, other.request)
            if self._fits(node, consumer.request, freed):
                break
        else:
            return False
        for uid in [uid for uid in moved if minimal]:
            less = dict(freed)
            _add(less, self.consumers[uid].request, -1)
            if self._fits(node, consumer.request, less):
                freed = less
                moved.remove(uid)
        for uid in moved:
            self._stand(uid)
            self._charge(node, self.consumers[uid].request, -1)
            if node.parent is not None:
                self._sit(uid, node.parent, self._take_order())
            else:
                self._forget(uid)
                victims.append(uid)
        return True

    def _evict_below(self, top: TreeNode, leaf: TreeNode, consumer: Consumer, victims: list[str]) -> bool:
        """Pass 2: from where pass 1 ended down to the leaf, take out consumers of less priority until it fits there."""
        path = leaf.path()
        for node in reversed(path[: path.index(top) + 1]):
            for uid in node.in_order():
                other = self.consumers[uid]
                if other.priority >= consumer.priority or not other.preemptable:
                    continue
                if not any(other.request.get(resource) for resource in self.dimensions):
                    continue
                self.take_out(uid)
                victims.append(uid)
                if self._fits(top, consumer.request):
                    return True
        return False

    def release(self, uid: str) -> None:
        """A consumer leaves; those that borrowed above slide down into the room this makes."""
        node: TreeNode | None = self.seats.get(uid)
        if node is None:
            return
        request = self.consumers[uid].request
        self._stand(uid)
        self._forget(uid)
        while node is not None:
            self._charge(node, request, -1)
            if node.parent is not None:
                self._slide_down(node, node.parent)
            node = node.parent

    def _slide_down(self, node: TreeNode, parent: TreeNode) -> None:
        for uid in parent.in_order():
            other = self.consumers[uid]
            leaf = other.groups.get(self.name, "default")
            if leaf != node.name:
                group = self.nodes.get(leaf) if node.children else None
                if group is None or node not in group.path():
                    continue
            if self._fits(node, other.request):
                self._stand(uid)
                self._sit(uid, node, self._take_order())
                self._charge(node, other.request, 1)

    def take_out(self, uid: str) -> None:
        """By force: no other consumer slides down, the room is spoken for."""
        for node in self.seats[uid].path():
            self._charge(node, self.consumers[uid].request, -1)
        self._stand(uid)
        self._forget(uid)

    # Measures

    def _fits(self, node: TreeNode, request: Amounts, freed: Amounts | None = None) -> bool:
        return not (self.lacking(node, request, freed) if freed else self.is_short(node, request))

    def is_short(self, node: TreeNode, request: Amounts) -> bool:
        """Does a node lack anything for this? Asked of very many."""
        if node.disabled:
            return False
        allocated, quota = node.allocated, node.quota
        for resource in self.dimensions:
            asked = request.get(resource, 0)
            if asked > 0 and asked + allocated.get(resource, 0) > quota.get(resource, 0):
                return True
        return False

    def lacking(self, node: TreeNode, request: Amounts, freed: Amounts | None = None) -> Amounts:
        """By how much the request exceeds what is left at a node; empty when it fits."""
        if node.disabled:
            return {}
        found = {}
        for resource in self.dimensions:
            asked = request.get(resource, 0)
            over = (
                asked + node.allocated.get(resource, 0) - (freed or {}).get(resource, 0) - node.quota.get(resource, 0)
            )
            if asked > 0 and over > 0:
                found[resource] = over
        return found

    # Primitive changes, each with its way back

    def _charge(self, node: TreeNode, request: Amounts, sign: int) -> None:
        before, freed, changed = node.allocated, node.freed, node.changed
        node.allocated = dict(before)
        node.changed += 1
        if sign < 0:
            node.freed += 1
            self.freed_at[node] = None
        for resource in self.dimensions:
            amount = node.allocated.get(resource, 0) + sign * request.get(resource, 0)
            if amount:
                node.allocated[resource] = amount
            else:
                node.allocated.pop(resource, None)

        def back() -> None:
            node.allocated, node.freed, node.changed = before, freed, changed

        self.journal.append(back)

    def _sit(self, uid: str, node: TreeNode, order: int) -> None:
        node.seated[uid] = order
        self.seats[uid] = node
        self.moved.add(uid)

        def back() -> None:
            del node.seated[uid], self.seats[uid]

        self.journal.append(back)

    def _stand(self, uid: str) -> None:
        node = self.seats.pop(uid)
        order = node.seated.pop(uid)
        self.moved.add(uid)

        def back() -> None:
            node.seated[uid] = order
            self.seats[uid] = node

        self.journal.append(back)

    def _remember(self, consumer: Consumer) -> None:
        self.consumers[consumer.uid] = consumer
        self.journal.append(lambda: self.consumers.__delitem__(consumer.uid))

    def _forget(self, uid: str) -> None:
        consumer = self.consumers.pop(uid)
        self.journal.append(lambda: self.consumers.update({uid: consumer}))

    def _take_order(self) -> int:
        order = self.next_order
        self.next_order += 1
        self.journal.append(lambda: setattr(self, "next_order", order))
        return order

    def undo_to(self, length: int) -> None:
        while len(self.journal) > length:
            self.journal.pop()()


def _add(total: Amounts, more: Amounts, sign: int = 1) -> None:
    for resource, amount in more.items():
        total[resource] = total.get(resource, 0) + sign * amount
