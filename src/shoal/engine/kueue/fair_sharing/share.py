"""How much of the shared quota a node takes: the dominant resource share.

Fair sharing orders queues and judges preemptions by it. Exact: a share is a ratio of integers, compared by
cross-multiplication, so equal shares are equal and no float ever decides.
"""

from __future__ import annotations

from functools import total_ordering

from shoal.engine.kueue.facts import WHOLE_WEIGHT
from shoal.engine.kueue.quota.tree import QuotaTreeNode

INFINITE_SHARE = 2**63 - 1
"""How an infinite share is published."""


@total_ordering
class Share:
    """Borrowed over lendable in thousandths, divided by weight. Weight zero makes any borrowing infinite."""

    __slots__ = ("borrowing", "lendable", "over", "resource", "weight")

    def __init__(self, over: int, lendable: int, weight: int, resource: str, *, borrowing: bool) -> None:
        self.over = over
        self.lendable = lendable
        self.weight = weight
        self.resource = resource
        self.borrowing = borrowing

    @property
    def infinite(self) -> bool:
        return self.weight == 0 and self.borrowing

    @property
    def published(self) -> int:
        """Rounded up, as status shows it."""
        if self.infinite:
            return INFINITE_SHARE
        if not self.over:
            return 0
        return -(-self.over * 1000 * WHOLE_WEIGHT // (self.lendable * self.weight))

    @property
    def exact(self) -> float:
        """Not rounded, as metrics tell it: NaN where it is infinite."""
        if self.infinite:
            return float("nan")
        if not self.over:
            return 0.0
        return self.over * 1000 * WHOLE_WEIGHT / (self.lendable * self.weight)

    def _against(self, other: Share) -> tuple[int, int]:
        """Both shares over one common denominator."""
        if self.infinite or other.infinite:
            if self.infinite and other.infinite:
                return self.over * other.lendable, other.over * self.lendable
            return int(self.infinite), int(other.infinite)
        if not self.over or not other.over:
            return self.over, other.over
        return self.over * other.lendable * other.weight, other.over * self.lendable * self.weight

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Share):
            return NotImplemented
        mine, theirs = self._against(other)
        return mine == theirs

    def __lt__(self, other: Share) -> bool:
        mine, theirs = self._against(other)
        return mine < theirs

    __hash__ = None  # type: ignore[assignment]  # shares are compared with each other, and equal ones differ

    def __repr__(self) -> str:
        return f"Share({self.published} by {self.resource or 'nothing'})"


def share_of(node: QuotaTreeNode) -> Share:
    """The dominant resource share of `node` within its parent; zero at a root or when nothing is borrowed."""
    parent = node.parent
    if parent is None:
        return Share(0, 1, node.weight, "", borrowing=False)
    borrowed: dict[str, int] = {}
    for at, used in node.usage.items():
        if (over := used - node.subtree.get(at, 0)) > 0:
            borrowed[at.resource] = borrowed.get(at.resource, 0) + over
    most, of, dominant = 0, 1, ""
    for resource in sorted(borrowed):
        lendable = parent.lendable.get(resource, 0)
        if lendable > 0 and borrowed[resource] * of > most * lendable:
            most, of, dominant = borrowed[resource], lendable, resource
    return Share(most, of, node.weight, dominant, borrowing=bool(borrowed))
