"""How much a gang could get at most, without working out which gangs would leave.

An upper bound that costs little: what is free, plus what the gangs it may evict hold there. Asked before a search for
victims, and when quota comes back, to call only those whose turn it could be. It may say yes where the search says
no, never the other way round.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from shoal.engine.kueue.cycle.placing import asks_for_places_only, place_need
from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import FlavorResource, KueueSettings, Policy
from shoal.engine.kueue.flavors.assignment import Assignment
from shoal.engine.kueue.index.waits_for import Free, QuotaPlaces, Reachable, WaitsFor
from shoal.engine.kueue.quota.tree import QuotaTreeNode

if TYPE_CHECKING:
    from shoal.engine.kueue.cycle.state import QueueState

Places = frozenset[FlavorResource]


class _Bound(NamedTuple):
    """What a gang could have at one place."""

    most: int
    everything: int
    """All that is free or could be made so, for whomever."""
    nearby: int
    """Without making other queues give way."""
    own: int
    """Without borrowing, if those of its own queue it may evict have left."""


class Reach:
    """Good for one moment: it remembers what it worked out, so throw it away when usage changes."""

    def __init__(self, records: dict[str, QueueRecord], settings: KueueSettings) -> None:
        self.records = records
        self.settings = settings
        self._borrowers: dict[tuple[QuotaTreeNode, Places], list[tuple[QueueRecord, FlavorResource | None]]] = {}
        self._free: dict[QuotaTreeNode, Free] = {}
        self._given: dict[tuple[QuotaTreeNode, FlavorResource, Places, Policy, int], tuple[int, dict[str, int]]] = {}
        """What other queues could be made to give, in all and by queue."""
        self._surveys: dict[tuple[str, QuotaPlaces, int], Reachable] = {}
        self._bounds: dict[tuple[str, FlavorResource, Places, int], _Bound] = {}

    def most(self, record: QueueRecord, at: FlavorResource, priority: int, places: Places | None = None) -> int:
        """The largest amount that a gang of this priority in this queue could have at this place; at `places` somebody
        has to leave for it, here only if they are not given."""
        return self._bound(record, at, places or _only(at), priority).most

    def fit(self, record: QueueRecord, waits_for: WaitsFor, priority: int) -> Assignment | None:
        """The flavors that gangs of this priority get if they fit as things are; see `WaitsFor.fit`.

        Answers are remembered until the tree changes. To be asked only while the room kept for others is in the tree,
        and nothing else that does not stay there.
        """
        generation, known = record.fits
        now = record.node.root().generation
        if generation != now:
            known = {}
            record.fits = (now, known)
        may_evict = record.fact.preemption.may_evict
        key = (waits_for, priority if may_evict else 0)  # no gang leaves for it, whatever its priority
        if key not in known:
            most = partial(self.most, record, priority=priority) if may_evict else None
            known[key] = waits_for.fit(record.node, self.free(record), record.fact.fungibility, most)
        return known[key]

    def free(self, record: QueueRecord) -> Free:
        return self._free_at(record.node)

    def _free_at(self, node: QuotaTreeNode) -> Free:
        known = self._free.get(node)
        if known is None:
            above = self._free_at(node.parent) if node.parent is not None else None
            known = self._free[node] = Free(node, above)
        return known

    def survey(self, record: QueueRecord, at_places: QuotaPlaces, priority: int) -> Reachable:
        """The same for all these places, and over each group of places all that is free or could be made so."""
        preemption = record.fact.preemption
        if not preemption.may_evict:
            priority = 0  # no gang leaves for it, whatever its priority
        key = (record.name, at_places, priority)
        known = self._surveys.get(key)
        if known is None and not preemption.may_evict:
            free = self.free(record)
            groups = [[free[at] for at in places] for places in at_places.totals]
            known = self._surveys[key] = Reachable(
                tuple([free[at] for at in at_places.places]),
                tuple([sum(group) for group in groups]),
                None,
                (),
                tuple([max(group) for group in groups]),
            )
        if known is None:
            bounds = [self._bound(record, at, at_places.together_with(at), priority) for at in at_places.places]
            over = [
                [self._bound(record, at, at_places.together_with(at), priority) for at in places]
                for places in at_places.totals
            ]
            nearby: tuple[int, ...] | None = None
            if self._owes_nothing(record):
                nearby = tuple([bound.nearby for bound in bounds])
            fungibility, free = record.fact.fungibility, self.free(record)
            frees_first = fungibility.prefer_preempting or not fungibility.next_when_preempting
            known = self._surveys[key] = Reachable(
                tuple([bound.most for bound in bounds]),
                tuple([sum([bound.everything for bound in group]) for group in over]),
                nearby,
                tuple([bound.own for bound in bounds]),
                tuple([max([bound.most for bound in group]) for group in over]),
                None if frees_first else tuple([free[at] for at in at_places.places]),
            )
        return known

    def over(self, record: QueueRecord, at_places: QuotaPlaces, priority: int) -> tuple[int, int]:
        """Over the places of the first resource: all that is free or could be made so, and the most at one."""
        places = at_places.totals[0]
        if len(places) == 1:
            most = self._bound(record, places[0], at_places.together_with(places[0]), priority).most
            return most, most
        bounds = [self._bound(record, at, at_places.together_with(at), priority) for at in places]
        return sum([bound.everything for bound in bounds]), max([bound.most for bound in bounds])

    def may_reclaim(self, record: QueueRecord, at: FlavorResource) -> bool:
        """Could others be made to give here? In a flat cohort, as a rule, only what the queue owns and does not
        hold."""
        node = record.node
        if record.fact.preemption.reclaim_within_cohort == "Never" or node.parent is None:
            return False
        return not self._owes_nothing(record) or node.usage.get(at, 0) < node.nominal(at)

    def _owes_nothing(self, record: QueueRecord) -> bool:
        """Do others give way only to gangs that do not borrow in the end? In a flat cohort no other has a claim."""
        parent = record.node.parent
        flat = parent is None or parent.parent is None
        return flat and not self.settings.fair_sharing and not record.fact.preemption.may_borrow

    def _bound(self, record: QueueRecord, at: FlavorResource, places: Places, priority: int) -> _Bound:
        key = (record.name, at, places, priority)
        known = self._bounds.get(key)
        if known is None:
            known = self._bounds[key] = self._work_out(record, at, places, priority)
        return known

    def _work_out(self, record: QueueRecord, at: FlavorResource, places: Places, priority: int) -> _Bound:
        node, preemption = record.node, record.fact.preemption
        free = self.free(record)[at]
        if not preemption.may_evict:
            return _Bound(free, free, free, free)
        own = _below(record, at, preemption.within_cluster_queue, priority)
        nearby, unborrowed = free + own, node.nominal(at) - node.usage.get(at, 0) + own
        if not self.may_reclaim(record, at):
            return _Bound(nearby, nearby, nearby, unborrowed)
        foreign = self._foreign(record, at, places, priority)
        everything = nearby + foreign
        if not foreign or self.settings.fair_sharing or preemption.may_borrow:
            return _Bound(everything, everything, nearby, unborrowed)
        # Others give way only to gangs that do not borrow in the end, or whose subtree owns what they ask for.
        kept = max(unborrowed, _owned(node, at))
        return _Bound(max(nearby, min(everything, kept)), everything, nearby, unborrowed)

    def _foreign(self, record: QueueRecord, at: FlavorResource, places: Places, priority: int) -> int:
        """What other queues could be made to give here: each that borrows at one of the places in need gives of all."""
        policy = record.fact.preemption.reclaim_within_cohort
        if policy == "Never" or record.node.parent is None:
            return 0
        root = record.node.root()
        key = (root, at, places, policy, 0 if policy == "Any" else priority)
        known = self._given.get(key)
        if known is None:
            given = {}
            for other, only in self._borrowing(root, places):
                held = _below(other, at, policy, priority)
                if only is at and not self.settings.fair_sharing:
                    # A queue gives only while it borrows; the last gang to leave may take it below.
                    held = min(held, _overhang(other.node, at) + other.largest(at))
                given[other.name] = held
            known = self._given[key] = (sum(given.values()), given)
        return known[0] - known[1].get(record.name, 0)

    def _borrowing(self, root: QuotaTreeNode, places: Places) -> list[tuple[QueueRecord, FlavorResource | None]]:
        """The queues that borrow at one of these places; which one, if it is the only one."""
        key = (root, places)
        known = self._borrowers.get(key)
        if known is None:
            known = self._borrowers[key] = []
            for node in root.queues():
                where = [at for at in places if _overhang(node, at) > 0]
                if where and node.name in self.records:
                    known.append((self.records[node.name], where[0] if len(where) == 1 else None))
        return known


class QueueSurvey:
    """A queue's view of what it could reach (`waiting.Survey`)."""

    __slots__ = ("_state", "_within", "reach", "record")

    def __init__(self, reach: Reach, record: QueueRecord, state: QueueState) -> None:
        self.reach = reach
        self.record = record
        self._state = state
        self._within: dict[QuotaPlaces, tuple[int, int]] = {}

    def waits_for(self, member: QueueMember) -> WaitsFor:
        found = self.record.waits_for(member, self._state.flavors, self.reach.settings)
        if found.need == "unknown" and self._state.topologies.flavors:
            place_need(member, self.record, found, self.reach.settings)
        return found

    def within(self, at_places: QuotaPlaces, priority: int) -> tuple[int, int] | None:
        """Of the first resource only: as a rule that settles it, and the others need not be worked out."""
        if not at_places.totals:
            return None
        if self.record.fact.preemption.may_evict:
            return self.reach.over(self.record, at_places, priority)
        known = self._within.get(at_places)
        if known is None:
            free = self.reach.free(self.record)
            amounts = [free[at] for at in at_places.totals[0]]
            known = self._within[at_places] = (sum(amounts), max(amounts))
        return known

    def may_fit(self, waits_for: WaitsFor, priority: int) -> bool:
        """Where no gang can be made to leave and there is nothing to choose, the gang fits now or not at all."""
        if self.reach.fit(self.record, waits_for, priority) is not None:
            return self._may_have_places(waits_for)
        if not (self.record.fact.preemption.may_evict or waits_for.may_shrink or len(waits_for.least) > 1):
            return False
        reachable = self.reach.survey(self.record, waits_for.at_places, priority)
        return reachable.tempts(waits_for) and reachable.allows(waits_for) and self._may_have_places(waits_for)

    def _may_have_places(self, waits_for: WaitsFor) -> bool:
        """Where it may not, its queue is called once it may."""
        if waits_for.need is None or waits_for.need == "unknown" or not asks_for_places_only(self.record):
            return True
        need = waits_for.need.within(self.reach.free(self.record))
        if need.may_be_met(self._state.topologies):
            return True
        self._state.lacking.note(self.record.name, need)
        return False


def _overhang(node: QuotaTreeNode, at: FlavorResource) -> int:
    return node.usage.get(at, 0) - node.subtree.get(at, 0)


@cache
def _only(at: FlavorResource) -> Places:
    return frozenset((at,))


def _below(record: QueueRecord, at: FlavorResource, policy: Policy, priority: int) -> int:
    """What gangs hold there that the policy lets this priority evict; those already leaving count as well."""
    if policy == "Never":
        return 0
    held = record.held(at)
    if policy == "Any":
        return sum(held.values())
    below = priority + (policy == "LowerOrNewerEqualPriority")
    found = 0
    for other, amount in held.items():
        if other < below:
            found += amount
    return found


def _owned(node: QuotaTreeNode, at: FlavorResource) -> int:
    """The most for which the queue, or a cohort on its way up but the topmost, owns enough on top of its usage."""
    most = below_it = 0
    here: QuotaTreeNode | None = node
    while here is not None and here.parent is not None:
        most = max(most, here.subtree.get(at, 0) - here.usage.get(at, 0) + below_it)
        below_it += here.local_available(at)
        here = here.parent
    return most
