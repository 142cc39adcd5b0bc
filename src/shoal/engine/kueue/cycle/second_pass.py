"""Places for gangs that have quota already: after a node failed under them, or once a check has brought nodes.

Called at the beginning of every cycle, before the heads, so that no other gang takes the last room. A gang keeps its
flavors and all places that are good; only pods without one are placed. Where a failed node has no replacement the gang
is to leave, unless the settings let it wait.
"""

from __future__ import annotations

from collections import Counter

from shoal.engine.kueue.cycle.entry import uses_of
from shoal.engine.kueue.cycle.placing import PlacingStep
from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.cycle.state import QueueState
from shoal.engine.kueue.decisions import Displace, Reserve, Wait, bounded
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.flavors.assignment import Assignment, Choice, Mode, Outcome, PodSetChoice
from shoal.engine.kueue.topology.ledger import TopologyUse, Uses
from shoal.engine.model import DomainShare, PodSetAssignment, TopologyPlacement

SECOND_PASS_FAILED = "SecondPassFailed"


class SecondPass:
    def __init__(self, state: QueueState) -> None:
        self.state = state
        self.placed: list[Reserve] = []
        self.displaced: list[Displace] = []
        self.waiting: list[Wait] = []
        self._moves: list[tuple[Uses, Uses, Uses]] = []

    def end(self) -> None:
        """Places that were given up are free from the next cycle on."""
        self.state.places_moved = self.state.places_moved or bool(self._moves)
        for more, before, after in self._moves:
            self.state.topologies.use(more, -1)
            self.state.topologies.use(before, -1)
            self.state.topologies.use(after)

    def run(self) -> None:
        for member in sorted(self.state.needing_places.values(), key=lambda one: one.order):
            record = self.state.records.get(member.queue)
            if record is not None and member.needs_places:
                self._place(member, record)

    def _place(self, member: QueueMember, record: QueueRecord) -> None:
        topologies = self.state.topologies
        found = PlacingStep(member, record, self.state.settings).judged(_given(member))
        if found.outcome is Outcome.FIT:
            assignment, before = _assigned(member, found), member.topology
            member.assignment, member.topology = assignment, uses_of(member.gang, found.pod_sets)
            more = tuple(_beyond(use, before) for use in member.topology)
            topologies.use(more)
            self._moves.append((more, before, member.topology))
            del self.state.needing_places[member.uid]
            self.placed.append(
                Reserve(gang=member.key, uid=member.uid, cluster_queue=record.name, assignment=assignment)
            )
            return
        failed = member.terms.unhealthy_nodes
        wait = Wait(
            gang=member.key, uid=member.uid, cluster_queue=record.name, reason=SECOND_PASS_FAILED,
            message=bounded(found.message),
        )  # fmt: skip
        if not failed or not self.state.settings.gates.replace_at_once:
            self.waiting.append(wait)
            return
        record.evict(member)
        self.state.forest.bump(record.node)
        del self.state.needing_places[member.uid]
        text = f"Workload was evicted as there was no replacement for unhealthy node(s): {','.join(failed)}"
        self.displaced.append(Displace(gang=member.key, uid=member.uid, message=bounded(text), why=wait.message))


def _beyond(use: TopologyUse, before: Uses) -> TopologyUse:
    """Only the pods that were not in their domain before. Pod sets are told apart by what their pods ask for."""
    there: Counter[tuple[str, ...]] = Counter()
    for other in before:
        if (other.flavors, other.each) == (use.flavors, use.each):
            there.update({domain.values: domain.count for domain in other.placement.domains})
    domains = tuple(
        DomainShare(domain.values, domain.count - there[domain.values])
        for domain in use.placement.domains
        if domain.count > there[domain.values]
    )
    return TopologyUse(use.flavors, TopologyPlacement(use.placement.levels, domains), use.each)


def _given(member: QueueMember) -> Assignment:
    """What the gang has, as an assignment that fits."""
    parts = []
    for given in member.assignment:
        part = PodSetChoice(given.name, given.count, dict(given.usage))
        part.choices = {resource: Choice(flavor, Mode.FIT, 0) for resource, flavor in given.flavors.items()}
        part.topology, part.delayed = given.topology, given.delayed_topology
        parts.append(part)
    return Assignment(parts, member.usage, 0)


def _assigned(member: QueueMember, found: Assignment) -> tuple[PodSetAssignment, ...]:
    return tuple(
        PodSetAssignment(
            name=given.name, count=given.count, flavors=given.flavors, usage=given.usage, nodes=given.nodes,
            topology=part.topology, delayed_topology=part.delayed,
        )
        for given, part in zip(member.assignment, found.pod_sets, strict=True)
    )  # fmt: skip
