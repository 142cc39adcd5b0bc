"""Which gangs have to leave so that another fits: the one door to both kinds of preemption.

Called by the cycle with a whole assignment, and by the flavor search (through `oracle`) for a single place. Pure as
seen from outside: the quota tree is as before when it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import FlavorResource, KueueSettings, Usage
from shoal.engine.kueue.fair_sharing.fair import fair_victims
from shoal.engine.kueue.flavors.assign import Oracle
from shoal.engine.kueue.flavors.assignment import Mode
from shoal.engine.kueue.index.reach import Reach
from shoal.engine.kueue.preemption.candidates import NO_GANGS, PreemptionRequest, Victim
from shoal.engine.kueue.preemption.classical import classical_victims


class Preemptor:
    """Finds victims among the gangs of `records`, passing over those `gone`, those that `spared(uid)` names and those
    that are `claimed` by a preemptor which comes before this gang with what it wants."""

    def __init__(
        self,
        records: dict[str, QueueRecord],
        settings: KueueSettings,
        gone: Container[str] = NO_GANGS,
        spared: Callable[[str], Container[str]] = lambda uid: NO_GANGS,
        claimed: Callable[[QueueMember, Usage], Container[str]] = lambda member, wanted: NO_GANGS,
    ) -> None:
        self.records = records
        self.settings = settings
        self.gone = gone
        self.spared = spared
        self.claimed = claimed
        self._asked: tuple[QueueMember, Usage, frozenset[FlavorResource]] | None = None
        """What the flavor search asked last, and the answer; most gangs want one resource of one flavor, and the
        search for all that they want would be the same."""
        self._answer: list[Victim] = []

    def find_victims(
        self,
        member: QueueMember,
        wanted: Usage,
        places: frozenset[FlavorResource],
        now: int,
        reach: Reach | None = None,
        placeable: Callable[[], bool] | None = None,
    ) -> list[Victim]:
        """A minimal set whose leaving makes `wanted` fit, or no gang when there is none. `reach`: as things are now.
        `placeable`: are there places for its pods, where a topology has to have them?"""
        if placeable is None and self._asked == (member, wanted, places):
            return [*self._answer]
        record = self.records[member.queue]
        if not record.fact.preemption.may_evict:
            return []
        if reach is None:
            reach = Reach(self.records, self.settings)
        if any(wanted.get(at, 0) > reach.most(record, at, member.priority, places) for at in places):
            return []
        request = PreemptionRequest(
            member, record, self.records, wanted, places, now, self.gone, self.spared(member.uid)
        )
        request.placeable = placeable
        request.claimed = self.claimed(member, wanted)
        return fair_victims(request, self.settings) if self.settings.fair_sharing else classical_victims(request)

    def oracle(self, member: QueueMember, now: int, reach: Reach | None = None) -> Oracle:
        """Answers the flavor search: could this one place be freed, and how high would it then borrow?

        For one search: nothing may change meanwhile. `reach`: as things are now.
        """
        node = self.records[member.queue].node
        reach = reach or Reach(self.records, self.settings)
        self._asked = None

        def ask(at: FlavorResource, amount: int) -> tuple[Mode, int]:
            wanted, places = {at: amount}, frozenset((at,))
            victims = self.find_victims(member, wanted, places, now, reach)
            self._asked, self._answer = (member, wanted, places), victims
            for victim in victims:
                victim.leave()
            height, _ = node.borrowing_height(at, amount)
            for victim in victims:
                victim.come_back()
            if not victims:
                return Mode.NO_CANDIDATES, height
            own = any(victim.member.queue == member.queue for victim in victims)
            return (Mode.PREEMPT if own else Mode.RECLAIM), height

        return ask
