"""Victims that one cycle has chosen: they count as gone for every entry that is served after.

Their usage is summed by queue and kept by tree, so that an entry costs as many steps as its own tree has queues with
victims, however many victims other entries have taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from shoal.engine.kueue.facts import Usage
from shoal.engine.kueue.preemption.candidates import Victim
from shoal.engine.kueue.quota.tree import QuotaTreeNode


class TakenVictims:
    def __init__(self) -> None:
        self._uids: set[str] = set()
        self._usage: dict[QuotaTreeNode, dict[QuotaTreeNode, Usage]] = {}
        """By root: what leaves each queue below it."""
        self._with_places: list[Victim] = []
        """Those that give back places in a topology, which all trees share."""

    def __contains__(self, uid: object) -> bool:
        return uid in self._uids

    def __len__(self) -> int:
        return len(self._uids)

    def add(self, victims: Iterable[Victim]) -> None:
        for victim in victims:
            if victim.member.uid in self._uids:
                continue
            self._uids.add(victim.member.uid)
            node = victim.record.node
            sums = self._usage.setdefault(node.root(), {}).setdefault(node, {})
            for at, amount in victim.member.usage.items():
                sums[at] = sums.get(at, 0) + amount
            if victim.member.topology:
                self._with_places.append(victim)

    @contextmanager
    def gone(self, node: QuotaTreeNode, more: Iterable[Victim] = ()) -> Iterator[None]:
        """As it is in the tree of this queue, and in all topologies, once they have left, and `more` with them."""
        others = [victim for victim in more if victim.member.uid not in self._uids]
        leaving = self._usage.get(node.root(), {})
        for each, usage in leaving.items():
            each.remove(usage)
        for victim in self._with_places:
            victim.record.topologies.use(victim.member.topology, -1)
        for victim in others:
            victim.leave()
        yield
        for victim in others:
            victim.come_back()
        for victim in self._with_places:
            victim.record.topologies.use(victim.member.topology)
        for each, usage in leaving.items():
            each.add(usage)
