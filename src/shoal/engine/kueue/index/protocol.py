"""The one door between what happens and what is tried: which gangs are the heads of their queues now.

`State` and `Register` say what has happened, the planner asks for heads. `IndexedHeads` answers fast because it knows
what each gang waits for; `PlainHeads` tries every gang and is the specification. A notification that the index misses
is a gang that waits for ever: `tests/unit/engine/kueue/test_index.py` holds the two equal over random histories.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import Usage
from shoal.engine.kueue.quota.tree import QuotaTreeNode

if TYPE_CHECKING:
    from shoal.engine.kueue.cycle.record import QueueRecord


class Heads(Protocol):
    """Inadmissible gangs are not tried again before one of the notifications concerns them."""

    def arrived(self, record: QueueRecord) -> None:
        """The line of this queue has changed: a gang came or left, or its back-off ended."""

    def freed(self, node: QuotaTreeNode) -> None:
        """Quota came back somewhere in this tree, or is not kept for a preemptor any more."""

    def called(self, record: QueueRecord) -> None:
        """Gangs of this queue may find places in a topology that they did not find before."""

    def held(self, record: QueueRecord, usage: Usage) -> None:
        """Gangs of this queue hold quota there that could be reclaimed, or would be reclaimed at another turn."""

    def changed(self) -> None:
        """Quota, flavors, queues, namespaces or what blocks everything: nothing that was found before counts."""

    def forget(self, record: QueueRecord) -> None:
        """The queue is gone."""

    def heads(self, *, again: bool = False) -> list[QueueMember]:
        """Take one head from every queue that may have something new to decide; `again`: also where that is known to
        have to wait."""

    def pause(self, record: QueueRecord) -> None:
        """The head of this queue waits for gangs that leave: it has nothing new to decide before its tree changes."""

    def rest(self, records: Iterable[QueueRecord]) -> None:
        """A whole cycle moved nothing in these queues: the same."""
