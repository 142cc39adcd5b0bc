"""Places in a topology for a head whose flavors are known: the last step of its assignment.

Called by the cycle, by explanations and by views after each flavor search. A gang that has quota but no places is
treated as one that could have them by preemption, unless even an empty topology has none. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.engine.kueue.cycle.lacking import PlaceNeed, Way
from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.demand import PodDemand, QueueMember, totals_of
from shoal.engine.kueue.facts import Flavor, FlavorResource, KueueSettings, Usage
from shoal.engine.kueue.flavors.assignment import (
    TOPOLOGY_PLACEMENT_FAILED,
    Assignment,
    Mode,
    Outcome,
    PodSetChoice,
)
from shoal.engine.kueue.index.waits_for import WaitsFor
from shoal.engine.kueue.preemption.candidates import Victim
from shoal.engine.kueue.topology import PlaceOutcome, Placer, PodsToPlace, Repair, has_levels, pods_to_place
from shoal.engine.kueue.topology.place import Assumed
from shoal.engine.kueue.topology.request import grain_of
from shoal.engine.kueue.topology.room import kind_of, room_of
from shoal.errors import BadInput

Wanted = dict[str, list[PodsToPlace]]
"""By flavor: the pod sets that need places there."""


def topologies_matter(member: QueueMember, record: QueueRecord, settings: KueueSettings) -> bool:
    """Do topologies say which flavors it may have, or where its pods go?"""
    if not settings.topology_aware:
        return False
    with_topology = record.topologies.flavors
    return member.wishes or (bool(with_topology) and not with_topology.isdisjoint(record.flavors))


def placing_step(member: QueueMember, record: QueueRecord, settings: KueueSettings) -> PlacingStep | None:
    """None: topologies have no say in it, and it pays nothing for them."""
    return PlacingStep(member, record, settings) if topologies_matter(member, record, settings) else None


def asks_for_places_only(record: QueueRecord) -> bool:
    """Is a gang of this queue that has its quota and lacks places of no consequence until there are some?"""
    fact = record.fact
    return not (fact.preemption.may_evict or record.waiting.strict or fact.places_elsewhere or fact.places_later)


def place_need(
    member: QueueMember, record: QueueRecord, waits_for: WaitsFor, settings: KueueSettings
) -> PlaceNeed | None:
    """What has to be free in topologies before gangs of this shape may start. None: only the search can tell, as where
    others may be made to leave, a head keeps its place, or a check brings nodes."""
    if not asks_for_places_only(record):
        return None
    if waits_for.need == "unknown":
        step = placing_step(member, record, settings)
        waits_for.need = step.need if step is not None else None
    return waits_for.need


class PlacingStep:
    """For one head in one cluster queue."""

    def __init__(self, member: QueueMember, record: QueueRecord, settings: KueueSettings) -> None:
        self.member = member
        self.record = record
        self.settings = settings
        self.topologies = record.topologies

    @property
    def applies(self) -> bool:
        """Do any of its pods need places in a topology?"""
        if not self.topologies.topologies or not self.settings.topology_aware:
            return False
        return self.member.wishes or self.only_topologies

    @property
    def only_topologies(self) -> bool:
        """Has every flavor of the queue a topology? Then pods that say nothing go anywhere in it."""
        flavors = self.record.flavors
        return bool(flavors) and self.topologies.flavors.issuperset(flavors)

    def objection(self, pod_set: str, flavor: Flavor, resources: Sequence[str]) -> str:
        """Why pods of this set cannot go to a flavor of the group that covers these resources; empty: they can."""
        if not self.settings.topology_aware:
            return ""
        demand = next(one for one in self.member.demands if one.name == pod_set)
        if not demand.wish.is_explicit:
            if flavor.topology and not self.only_topologies:
                return f'Flavor "{flavor.name}" supports only TopologyAwareScheduling'
            return ""
        if not flavor.topology:
            asked = next(one.requests for one in self.member.gang.pod_sets if one.name == pod_set)
            if not any(name in resources for name in asked):
                return ""  # it counts something else than what the pods take from their nodes
            return f'Flavor "{flavor.name}" does not support TopologyAwareScheduling'
        topology = self.topologies.topologies.get(flavor.topology)
        if topology is None:
            return f'Flavor "{flavor.name}" information missing in TAS cache'
        if not has_levels(demand.wish, topology.levels):
            return f'Flavor "{flavor.name}" does not contain the requested level'
        return ""

    @property
    def is_open(self) -> bool:
        """Can all pods go to every flavor?"""
        for group in self.record.fact.groups:
            for quota in group.flavors:
                flavor = self.topologies.flavor(quota.name)
                if flavor is None or any(
                    self.objection(one.name, flavor, group.resources) for one in self.member.demands
                ):
                    return False
        return True

    @property
    def need(self) -> PlaceNeed | None:
        """What has to be free for each of its pod sets alone. None: only the search can tell."""
        ways = [self._ways(demand) for demand in self.member.demands] if self.applies else []
        found = tuple([one for one in ways if one])
        return PlaceNeed.of(found) if found and None not in ways else None

    def _ways(self, demand: PodDemand) -> tuple[Way, ...] | None:
        """Empty: it needs no places."""
        explicit = demand.wish.is_explicit
        if not demand.least or not (explicit or self.only_topologies):
            return ()
        pods = self._pods(demand.name, demand.least, implied=not explicit)
        found = []
        for name in self.record.flavors:
            flavor, tree = self.topologies.flavor(name), self.topologies.tree(name)
            grain = grain_of(pods, tree.levels) if tree is not None else ""
            if flavor is None or tree is None or isinstance(grain, str):
                continue
            try:
                room_of(tree).row(kind_of(pods, flavor.tolerations), pods, flavor.tolerations)
            except BadInput:
                return None
            kind, charge = kind_of(pods, flavor.tolerations), self._charge(demand, name)
            found.append(Way(name, kind, pods, flavor.tolerations, grain.level,
                             one_domain=grain.required, count=demand.least, charge=charge))  # fmt: skip
        return tuple(found) or None

    def _charge(self, demand: PodDemand, flavor: str) -> Usage:
        """What the fewest pods of a set take of a flavor's quota."""
        groups = self.record.groups
        asked = totals_of(demand, demand.least, "pods" in groups)
        offers = [name for name in asked if name in groups and any(one.name == flavor for one in groups[name].flavors)]
        return {FlavorResource(flavor, name): asked[name] for name in offers}

    def judged(self, found: Assignment) -> Assignment:
        """The assignment with places, or with what keeps its pods from having any."""
        if found.outcome is Outcome.NO_FIT or not self.applies:
            return found
        parts = [part.copy() for part in found.pod_sets]
        wanted = self._wanted(parts)
        outcome = Outcome.NO_FIT if any(part.error for part in parts) else found.outcome
        if outcome is Outcome.FIT and not self._take_places(parts, self.places(wanted)):
            outcome = Outcome.PREEMPT
        if outcome is Outcome.PREEMPT and not self.repair:
            self._judge_empty(parts, wanted)
        return Assignment(parts, found.usage, found.height)

    def _take_places(self, parts: list[PodSetChoice], found: dict[str, PlaceOutcome]) -> bool:
        for part in parts:
            failure = found[part.name].failure if part.name in found else ""
            if failure:
                part.reasons.append(failure)
                part.set_mode(Mode.PREEMPT)
                return False
        for part in parts:
            if part.name in found:
                part.topology = found[part.name].placement
                part.delayed = "Ready" if part.delayed else ""
        return True

    def _judge_empty(self, parts: list[PodSetChoice], wanted: Wanted) -> None:
        """Could it have places if all placed gangs were gone?"""
        found = self.places(wanted, empty=True)
        failed = next((part for part in parts if part.name in found and found[part.name].failure), None)
        if failed is not None:
            failed.failed, failed.severity = True, TOPOLOGY_PLACEMENT_FAILED
            return
        placing = {pods.name for group in wanted.values() for pods in group}
        for part in parts:
            if part.name in placing:
                part.set_mode(Mode.PREEMPT)

    def with_victims(self, found: Assignment, victims: Sequence[Victim]) -> Assignment:
        """An assignment that needs preemption, with the places it would have: beside what its victims leave, or, where
        it has none to evict, in an empty topology. So long as it waits no other gang takes them."""
        if found.outcome is not Outcome.PREEMPT or not self.applies or self.repair:
            return found
        parts = [part.copy() for part in found.pod_sets]
        wanted = self._wanted(parts)
        for victim in victims:
            victim.leave()
        places = self.places(wanted, empty=not victims)
        for victim in victims:
            victim.come_back()
        for part in parts:
            if part.name in places:
                part.topology = places[part.name].placement
        return Assignment(parts, found.usage, found.height)

    def placeable(self, found: Assignment) -> Callable[[], bool] | None:
        """Asked again and again while victims are sought: would all pods have places now?"""
        if not self.applies:
            return None
        wanted = self._wanted([part.copy() for part in found.pod_sets])
        return (lambda: not any(one.failure for one in self.places(wanted).values())) if wanted else None

    def places(self, wanted: Wanted, *, empty: bool = False) -> dict[str, PlaceOutcome]:
        """Places on every flavor; flavors that share nodes do not take the same room. Gangs of one shape find the same
        for as long as nothing changes: it is worked out once, and not to be changed by the caller."""
        if self.repair is not None:
            return self._sought(wanted, empty)
        known, key = self.topologies.known, self._asked(wanted, empty)
        if key not in known:
            known.remember(key, self._sought(wanted, empty))
        return known[key]

    def _asked(self, wanted: Wanted, empty: bool) -> object:
        """Equal as long as the answer is."""
        turn = self.topologies.idle_turn if empty else self.topologies.turn
        pods = [(flavor, one.name, one.count, one.implied) for flavor in sorted(wanted) for one in wanted[flavor]]
        return (self.member.shape, empty, turn, *pods)

    def _sought(self, wanted: Wanted, empty: bool) -> dict[str, PlaceOutcome]:
        found: dict[str, PlaceOutcome] = {}
        assumed: Assumed = {}
        for flavor in sorted(wanted):
            tree = self.topologies.tree(flavor)
            if tree is None:
                continue
            fact = self.topologies.flavor(flavor)
            placer = Placer(
                tree, self.settings.topology, tolerations=fact.tolerations if fact is not None else (),
                assumed=assumed if tree.by_node else None, empty=empty,
            )  # fmt: skip
            found |= placer.place(wanted[flavor], self.repair)
        return found

    @property
    def repair(self) -> Repair | None:
        """Places for the pods of a failed node alone, where the gang runs."""
        failed = self.member.terms.unhealthy_nodes
        if not failed or not self.member.holds:
            return None
        placed = {part.name: part.topology for part in self.member.assignment if part.topology is not None}
        return Repair(failed[0], placed, self.member.terms.one_pod)

    def _wanted(self, parts: list[PodSetChoice]) -> Wanted:
        """Which pods need places on which flavor; what is wrong is noted with the pod set."""
        wanted: Wanted = {}
        wishes = {demand.name: demand.wish for demand in self.member.demands}
        implied = self.only_topologies
        for part in parts:
            explicit = wishes[part.name].is_explicit
            if part.error or not part.count or not (explicit or implied) or self._is_settled(part):
                continue
            flavor = self._flavor_of(part)
            if flavor:
                wanted.setdefault(flavor, []).append(self._pods(part.name, part.count, implied=not explicit))
        return wanted

    def _pods(self, name: str, count: int, *, implied: bool) -> PodsToPlace:
        """The very same for all gangs of the shape."""
        known, key = self.topologies.pods, (self.member.shape, name, count, implied)
        if key not in known:
            pod_set = next(one for one in self.member.gang.pod_sets if one.name == name)
            known.remember(key, pods_to_place(pod_set, count, pod_set.requests, implied=implied))
        return known[key]

    def _is_settled(self, part: PodSetChoice) -> bool:
        """It has its places from before, and none of its nodes failed."""
        failed = self.member.terms.unhealthy_nodes
        return self.member.holds and part.topology is not None and not any(part.topology.has(name) for name in failed)

    def _is_later(self, flavor: str) -> bool:
        return flavor in self.record.fact.places_later and not self.member.holds

    def _flavor_of(self, part: PodSetChoice) -> str:
        flavors = sorted({choice.flavor for choice in part.choices.values()} & self.topologies.with_topology)
        if len(flavors) > 1:
            part.error = f"more than one TAS flavor assigned: {', '.join(flavors)}"
        elif not flavors:
            part.error = "no TAS flavor assigned"
        elif self.record.fact.places_elsewhere or self._is_later(flavors[0]):
            part.delayed = "Pending"
        else:
            return flavors[0]
        return ""
