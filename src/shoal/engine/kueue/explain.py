"""Why a gang waits: what is short, which gangs hold it, where it stands, and what would help.

Answers `Kueue.explain` for one gang at a time, so it may try things out: quota raised a little, running gangs
imagined away. What would help is a first guess, for this gang alone; the engine tries it out with everything that is
ahead before it is told. Everything tried is put back before it returns; no decision depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations

from msgspec.structs import replace

from shoal.api.times import micro_text
from shoal.engine.kueue.cycle.placing import PlacingStep
from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.cycle.register import Register
from shoal.engine.kueue.cycle.state import QueueState
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import FlavorResource, Limits
from shoal.engine.kueue.flavors.assign import Search
from shoal.engine.kueue.flavors.assignment import Assignment, Mode, Outcome, shortfalls_of
from shoal.engine.kueue.places import places
from shoal.engine.kueue.quota.tree import NO_LIMITS, QuotaTreeNode, settle
from shoal.engine.model import Explanation, QuotaIncrease, Shortfall
from shoal.engine.nodes.supply import few

MOST_HOLDERS = 10
MOST_IN_PAIRS = 40


def explain(key: str, state: QueueState, register: Register) -> Explanation | None:
    member = register.members.get(key)
    if member is None or member.holds:
        return None
    if key in register.loose:
        fault = _fault(register.loose[key], member.queue)
        return Explanation(message=fault.message, reason="bad-fact", shortfalls=(fault,), place=member.queue)
    record = state.records.get(member.queue)
    if record is None or member.gang.state == "held":
        message = "the gang is not queued: it was asked to be held"
        return Explanation(message=message, reason="held", place=member.queue)
    return _Question(member, record, state, register).answer()


def fits_without(key: str, leaving: str, state: QueueState, register: Register) -> bool:
    """Would this waiting gang get quota, were the gang `leaving` gone (empty: as things are)? Changes nothing."""
    member, gone = register.members.get(key), register.members.get(leaving)
    record = state.records.get(member.queue) if member is not None else None
    if member is None or record is None or member.holds or member.gang.state == "held" or key in register.loose:
        return False
    question = _Question(member, record, state, register)
    if member.gang.nowhere:
        return False
    return not question._fault() and question._fits_without((gone,) if gone is not None and gone.holds else ())


class _Question:
    """One gang's situation, and the trials that explain it."""

    def __init__(self, member: QueueMember, record: QueueRecord, state: QueueState, register: Register) -> None:
        self.member = member
        self.record = record
        self.state = state
        self.register = register
        state.forest.settled()

    def answer(self) -> Explanation:
        found = replace(self._why(), place=self.record.name)
        here = places(self.member.key, self.state, self.register)
        if here is None:
            return found
        return replace(
            found, position=here.position, queue_length=here.length,
            own_position=here.local_position, own_queue_length=here.local_length,
        )  # fmt: skip

    def _why(self) -> Explanation:
        fault = self._fault()
        if fault:
            return Explanation(message=fault, reason="bad-fact", shortfalls=(_fault(fault, self.record.name),))
        if nowhere := self.member.gang.nowhere:
            shortfall = Shortfall(kind="clusters", place=self.record.name, message=nowhere)
            return Explanation(message=nowhere, reason="resources", shortfalls=(shortfall,))
        if self.register.is_asleep(self.member):
            until = self.member.terms.requeue_at
            message = f"backs off until {micro_text(until)}" if until else "backs off; its controller says when it ends"
            return Explanation(message=message, reason="backing-off")
        leaving = self._leaving()
        if leaving:
            message = f"waits for {few(leaving, ', ')} to stop"
            return Explanation(message=message, reason="preempting", holders=leaving)
        if self._would_fit():
            return self._whose_turn()
        assignment = self._search()
        short = self._short_places(assignment)
        return Explanation(
            message=assignment.message,
            reason="quota",
            shortfalls=shortfalls_of(assignment, self.record.name),
            holders=self._holders(short),
            least_increase=self._least_increase(assignment),
            release=self._release(short) if short else (),
        )

    def _leaving(self) -> tuple[str, ...]:
        """Gangs that were asked to leave for it and have not left yet."""
        room = self.state.rooms.get(self.member.uid)
        gone = self.state.still_leaving(room) if room is not None else []
        return tuple(sorted(victim.member.key for victim in gone))

    def _whose_turn(self) -> Explanation:
        ahead = (other for other in self.record.waiting.members() if other.order < self.member.order)
        first = min(ahead, key=lambda other: other.order, default=None)
        if first is None:
            return Explanation(message="quota is free; the next plan starts it", reason="starting")
        message = f"quota is free; it waits behind {first.key}"
        shortfall = Shortfall(kind="order", place=self.record.name, message=message)
        return Explanation(message=message, reason="order", shortfalls=(shortfall,))

    def _fault(self) -> str:
        if self.record.inactive:
            return f"ClusterQueue {self.record.name} is inactive: {self.record.inactive}"
        if not self.state.namespace_matches(self.record, self.member):
            return "workload namespace doesn't match ClusterQueue selector"
        return self.member.problem

    def _search(self) -> Assignment:
        """What it would get without preemption, all flavors considered, room kept for others counted."""
        with self._trial() as search:
            return search.run()

    def _would_fit(self) -> bool:
        """Would a plan let it in without an eviction? It looks on from flavor to flavor, and for a smaller size."""
        member = self.member
        with self._trial() as search:
            for _ in range(self.record.scans + 1):
                found = search.run()
                if found.outcome is Outcome.FIT:
                    return True
                member.memory = found.memory
                if not member.flavors_remain:
                    break
            member.memory = None
            if not (member.may_shrink and self.state.settings.partial_admission):
                return False
            return search.run([demand.least for demand in member.demands]).outcome is Outcome.FIT

    @contextmanager
    def _trial(self) -> Iterator[Search]:
        """The room kept for others is in the tree, and the gang remembers nothing, for as long as this lasts."""
        memory, self.member.memory = self.member.memory, None
        rooms = [room for uid, room in self.state.rooms_in(self.record.node.root()).items() if uid != self.member.uid]
        for room in rooms:
            room.node.add(room.usage)
            self.state.topologies.use(room.uses)
        search = Search(
            self.member,
            self.record.fact,
            self.record.groups,
            self.record.node,
            self.state.flavors,
            self.state.settings,
            lambda at, amount: (Mode.NO_CANDIDATES, 0),
        )
        search.placing = PlacingStep(self.member, self.record, self.state.settings)
        yield search
        for room in rooms:
            room.node.remove(room.usage)
            self.state.topologies.use(room.uses, -1)
        self.member.memory = memory

    def _short_places(self, assignment: Assignment) -> list[FlavorResource]:
        return sorted({short.at for part in assignment.pod_sets for short in part.shortages})

    def _users(self, short: Sequence[FlavorResource]) -> list[QueueMember]:
        """Gangs of the tree that hold what is short, where this queue could use it; the largest first."""
        found: list[tuple[int, str, QueueMember]] = []
        own = self.record.node
        for node in own.root().queues():
            record = self.state.records.get(node.name)
            places = [at for at in short if node is own or (self._may_borrow(at) and _is_seen_by(own, node, at))]
            for member in record.reserved.values() if record is not None and places else ():
                held = sum(member.usage.get(at, 0) for at in places)
                if held:
                    found.append((-held, member.uid, member))
        return [member for _, _, member in sorted(found, key=lambda entry: entry[:2])]

    def _may_borrow(self, at: FlavorResource) -> bool:
        """Is it what others of the cohort hold that keeps it out, and not the queue's own limit?"""
        node = self.record.node
        limits = node.limits.get(at, NO_LIMITS)
        if limits.borrowing is None:
            return True
        wanted = sum(demand.total(demand.count).get(at.resource, 0) for demand in self.member.demands)
        return node.usage.get(at, 0) + wanted <= node.subtree.get(at, 0) + limits.borrowing

    def _holders(self, short: list[FlavorResource]) -> tuple[str, ...]:
        return tuple(member.key for member in self._users(short)[:MOST_HOLDERS])

    def _fits_without(self, leaving: tuple[QueueMember, ...]) -> bool:
        for member in leaving:
            self.state.records[member.queue].node.remove(member.usage)
        fits = self._would_fit()
        for member in leaving:
            self.state.records[member.queue].node.add(member.usage)
        return fits

    def _release(self, short: Sequence[FlavorResource]) -> tuple[str, ...]:
        """The shortest list of running gangs whose end would let it in: one, two, else largest first without spares."""
        users = self._users(short)
        if not self._fits_without(tuple(users)):  # once that is there, something else may be short
            users = self._users(
                self.record.waits_for(self.member, self.state.flavors, self.state.settings).at_places.places
            )
        for member in reversed(users):  # the smallest single gang that is enough
            if self._fits_without((member,)):
                return (member.key,)
        for pair in combinations(reversed(users[:MOST_IN_PAIRS]), 2):
            if self._fits_without(pair):
                return tuple(member.key for member in pair)
        chosen: list[QueueMember] = []
        for member in users:
            chosen.append(member)
            if self._fits_without(tuple(chosen)):
                break
        else:
            return ()
        for member in list(chosen):
            fewer = tuple(other for other in chosen if other is not member)
            if self._fits_without(fewer):
                chosen = list(fewer)
        return tuple(member.key for member in chosen)

    def _least_increase(self, assignment: Assignment) -> QuotaIncrease | None:
        """The least raise of this queue's nominal quota, on one flavor, that would let it in."""
        best: tuple[int, int, str, dict[str, int]] | None = None
        for name in sorted({short.at.flavor for part in assignment.pod_sets for short in part.shortages}):
            raised = self._raise(name)
            if raised is not None:
                key = (len(raised), sum(raised.values()), name, raised)
                if best is None or key[:3] < best[:3]:
                    best = key
        return QuotaIncrease(f"{self.record.name}/{best[2]}", best[3]) if best is not None else None

    def _raise(self, flavor: str) -> dict[str, int] | None:
        node = self.record.node
        original = node.limits
        raised: dict[str, int] = {}
        found = None
        for _ in range(2 * len(self.record.groups) + 8):
            if self._would_fit():
                found = self._least(flavor, original, raised)
                break
            needed: dict[str, int] = {}
            for part in self._search().pod_sets:
                for short in part.shortages:
                    if short.at.flavor == flavor:
                        missing = short.wanted - node.raw_available(short.at)
                        needed[short.at.resource] = max(needed.get(short.at.resource, 0), missing, 1)
            if not needed:
                break
            for resource, missing in needed.items():
                raised[resource] = raised.get(resource, 0) + missing
            self._set(flavor, original, raised)
        self._set(flavor, original, {})
        return found

    def _least(self, flavor: str, original: dict[FlavorResource, Limits], raised: dict[str, int]) -> dict[str, int]:
        """No resource is raised by more than it must be, given the others."""
        least = dict(raised)
        for resource in raised:
            low, high = 0, least[resource]
            while low < high:
                middle = (low + high) // 2
                self._set(flavor, original, {**least, resource: middle})
                if self._would_fit():
                    high = middle
                else:
                    low = middle + 1
            least[resource] = high
        return {resource: more for resource, more in least.items() if more}

    def _set(self, flavor: str, original: dict[FlavorResource, Limits], raised: dict[str, int]) -> None:
        """Quota as it was, raised by so much on one flavor."""
        node = self.record.node
        node.limits = dict(original)
        for resource, more in raised.items():
            at = FlavorResource(flavor, resource)
            node.limits[at] = _raised(original.get(at, NO_LIMITS), more)
        settle(node.root())


def _is_seen_by(own: QuotaTreeNode, node: QuotaTreeNode, at: FlavorResource) -> bool:
    """Does what this other queue uses reach beyond the quota that its side of the tree never lends?"""
    above = {own, *own.ancestors()}
    while node not in above:
        if node.usage.get(at, 0) <= node.local.get(at, 0):
            return False
        if node.parent is None:
            return False
        node = node.parent
    return True


def _raised(limits: Limits, more: int) -> Limits:
    return Limits(limits.nominal + more, limits.borrowing, limits.lending)


def _fault(message: str, place: str) -> Shortfall:
    return Shortfall(kind="bad-fact", place=place, message=message)
