"""The ledger behind the cycles: queues, trees, flavors, which gang holds what, and which room is spoken for.

Filled by `Kueue` from facts; a cycle reads it and notes what it decided. Two rules that Kueue lacks live here,
because without them decisions can go in circles: room freed by a preemption is kept for the gang that caused it, and
no gang may evict one that evicted it since something outside last changed.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import ReferenceType, ref

import msgspec

from shoal.engine.kueue.cycle.entry import Entry
from shoal.engine.kueue.cycle.lacking import LackingPlaces
from shoal.engine.kueue.cycle.preemption_pause import PreemptionPause
from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.demand import QueueMember, topology_of
from shoal.engine.kueue.facts import Flavor, KueueSettings, LocalQueue, Usage
from shoal.engine.kueue.flavors.assignment import Assignment
from shoal.engine.kueue.index.protocol import Heads
from shoal.engine.kueue.index.waits_for import WaitsForCache
from shoal.engine.kueue.preemption.candidates import NO_GANGS, Victim
from shoal.engine.kueue.preemption.claims import Rank, VictimClaims, rank_of
from shoal.engine.kueue.quota.forest import CohortForest
from shoal.engine.kueue.quota.tree import QuotaTreeNode
from shoal.engine.kueue.surplus import SurplusLedger
from shoal.engine.kueue.topology.ledger import TopologyLedger, Uses
from shoal.engine.kueue.usage import UsageLedger
from shoal.engine.model import PodSetAssignment


class FreedQuota(msgspec.Struct, frozen=True):
    """Quota that is being freed for one gang, and the assignment it is meant for."""

    node: QuotaTreeNode
    assignment: Assignment
    victims: tuple[tuple[str, str, str], ...]
    """Cluster queue, UID and reason of gangs that were asked to leave."""

    uses: Uses = ()
    """Where the pods of that gang go in topologies."""

    @property
    def usage(self) -> Usage:
        return self.assignment.usage


NO_ROOMS: dict[str, FreedQuota] = {}
NOTHING_KEPT = nullcontext()


class QueueState:
    def __init__(self, settings: KueueSettings) -> None:
        self.settings = settings
        self.rules = settings.rules
        self.now = 0
        self._heads: ReferenceType[Heads]
        self.forest = CohortForest()
        self.records: dict[str, QueueRecord] = {}
        self.flavors: dict[str, Flavor] = {}
        self.topologies = TopologyLedger(self.flavors)
        self.namespaces: dict[str, dict[str, str]] = {}
        self.local_queues: dict[tuple[str, str], LocalQueue] = {}
        self.usage = (
            UsageLedger(settings.usage_sharing, self.local_queues) if settings.usage_sharing is not None else None
        )
        """What LocalQueues had lately, where that decides anything."""
        self.waits_for_caches: dict[object, WaitsForCache] = {}
        """What is asked for, by what queues offer."""
        self.rooms: dict[str, FreedQuota] = {}
        """By UID of the preemptor whose victims are on their way out. Changed only by the methods below."""
        self.is_restless = False
        """Does the plan under way go round and round? Then rooms are kept whole."""
        self._rooms_in: dict[QuotaTreeNode, dict[str, FreedQuota]] = {}
        self._kept_in: dict[QuotaTreeNode, tuple[tuple[int, bool, bool], dict[str, tuple[FreedQuota, Usage]]]] = {}
        self._claims = VictimClaims()
        """Victims of rooms, where preemptors wait for them before they evict."""
        self.awaited: dict[str, set[str]] = {}
        """By UID of a gang: UIDs of those whose facts say that they leave for it. Survives a restart; rooms do not."""
        self.lacking = LackingPlaces(self.topologies)
        """Queues of which gangs found no places."""
        self.places_moved = False
        """Places in topologies are not what they were when those that lack them were last called."""
        self.needing_places: dict[str, QueueMember] = {}
        """By UID: gangs with quota that have pods without a place in their topology."""
        self.unready: set[str] = set()
        """UIDs of gangs with quota whose pods are not all ready."""
        self.preemption_pause = PreemptionPause(settings.patience)
        self.surplus = SurplusLedger()
        """What elastic gangs have beyond their admission; not in the trees."""
        self.backfilling: set[str] = set()
        """Names of queues in which gangs behind the front may fill what it waits for."""
        self._evicted_by: dict[str, set[str]] = {}
        self._evicted_before: dict[str, set[str]] = {}

    @property
    def heads(self) -> Heads:
        """Notified of all that could let a gang start. They know this state: it holds them weakly, so that a state that
        is not needed any more is gone at once, and the collector need not look for it."""
        found = self._heads()
        assert found is not None, "Kueue keeps them as long as the state"
        return found

    @heads.setter
    def heads(self, heads: Heads) -> None:
        self._heads = ref(heads)

    def __getstate__(self) -> dict[str, Any]:
        """A copy in which what would help is tried out: it holds heads of its own, as weakly."""
        return {**self.__dict__, "_heads": self.heads}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._heads = ref(state["_heads"])

    def namespace_matches(self, record: QueueRecord, member: QueueMember) -> bool:
        selector = record.selector
        return selector is not None and selector.matches(self.namespaces.get(member.gang.namespace, {}))

    def is_asleep(self, member: QueueMember) -> bool:
        return member.terms.backing_off or member.terms.requeue_at > self.now

    # What a cycle decided.

    def note_reservation(self, entry: Entry, assignment: tuple[PodSetAssignment, ...], charge: Usage, now: int) -> None:
        member, record = entry.member, entry.record
        member.usage = charge
        member.assignment = assignment
        member.topology = topology_of(member.gang, assignment)
        if member.replaced is not None:
            record.release(member.replaced.uid)
        member.reserved_at = now
        member.holds = True
        member.forget()
        record.hold(member)
        record.waiting.gone(member)
        if self.usage is not None:
            self.usage.reserved(member)
        if record.waiting.sticky == member.uid:
            record.waiting.sticky = ""
        room = self._drop_room(member.uid)
        self.preemption_pause.forget(member.uid)
        if self.settings.wait_for_pods_ready:
            self.unready.add(member.uid)
        self.forest.bump(record.node)
        if room is not None and room.usage != member.usage:
            self.heads.freed(room.node)
        if room is not None and room.uses:
            self.places_moved = True
        self.heads.held(record, member.usage)

    def is_patient(self, entry: Entry) -> bool:
        """Does it still wait for its victims to end by themselves? Not where one of them is on its way out already."""
        victims = [victim.member for victim in entry.victims]
        if any(victim.evicted for victim in victims):
            return False
        needs = entry.usage if entry.height == 0 else None
        return self.preemption_pause.waits(entry.member.uid, entry.record.node.root(), victims, self.now, needs)

    def is_still_patient(self, uid: str) -> bool:
        """Does it wait for victims that it has chosen, and may not evict them yet?"""
        return self.preemption_pause.still_waits(uid, self.now)

    def note_preemption(self, entry: Entry, *, patient: bool = False) -> None:
        """Victims are told to leave, or waited for; from now on their room is spoken for."""
        for victim in entry.victims:
            if not patient and not victim.member.evicted:
                victim.record.evict(victim.member)
                self.forest.bump(victim.record.node)
        if not self.rules.keeps_room:
            return
        assert entry.assignment is not None
        leaving = tuple((victim.record.name, victim.member.uid, victim.reason) for victim in entry.victims)
        before = self._drop_room(entry.member.uid)
        room = FreedQuota(entry.record.node, entry.assignment, leaving, entry.uses)
        if before is None or before.usage != room.usage:
            self.forest.bump(room.node)
        if before is not None and before.usage != room.usage:
            self.heads.freed(before.node)
        self._put_room(entry.member.uid, room)
        if self._waits_for_victims(entry.member.uid, entry.record.node.root()):
            self._claim(entry, [uid for _, uid, _ in leaving])
        for victim in () if patient else entry.victims:
            self._evicted_by.setdefault(victim.member.uid, set()).add(entry.member.uid)
            self._evicted_before.setdefault(entry.member.uid, set()).add(victim.member.uid)

    def claimed(self, member: QueueMember, wanted: Usage) -> Container[str]:
        """Victims that this gang may not count on, with what it wants, because others come first."""
        if not self._claims:
            return NO_GANGS
        rank = None if self.is_restless else rank_of(member, self.records[member.queue].node, wanted)
        return self._claims.against(member.uid, rank)

    def _claim(self, entry: Entry, victims: list[str]) -> None:
        """Those that lose a victim by it keep what they lack from others, and look for another."""
        rank = Rank(entry.height > 0, entry.member.order)
        for uid, lost in self._claims.take(entry.member.uid, rank, victims).items():
            room = self.rooms.get(uid)
            if room is not None:
                left = tuple(victim for victim in room.victims if victim[1] not in lost)
                self._put_room(uid, msgspec.structs.replace(room, victims=left))
                self.forest.bump(room.node)

    def _put_room(self, uid: str, room: FreedQuota) -> None:
        root = room.node.root()
        self.rooms[uid] = self._rooms_in.setdefault(root, {})[uid] = room
        self._kept_in.pop(root, None)

    def give_up_room(self, uid: str) -> None:
        """The preemptor is gone, has quota by now, or does not fit any more even so. What was kept is free for others,
        which may be inadmissible because it was not."""
        room = self._drop_room(uid)
        if room is not None:
            self.forest.bump(room.node)
            self.heads.freed(room.node)
            self.places_moved = self.places_moved or bool(room.uses)

    def rooms_in(self, root: QuotaTreeNode) -> dict[str, FreedQuota]:
        """The rooms kept in one tree, by UID."""
        return self._rooms_in.get(root, NO_ROOMS)

    def rooms_kept(self, root: QuotaTreeNode) -> AbstractContextManager[None]:
        """The tree with the room in it that is kept for preemptors: others have no chance there."""
        return self._with_rooms(root) if root in self._rooms_in else NOTHING_KEPT

    @contextmanager
    def _with_rooms(self, root: QuotaTreeNode) -> Iterator[None]:
        rooms = self.kept_in(root)
        for room, usage in rooms.values():
            room.node.add(usage)
            self.topologies.use(room.uses)
        yield
        for room, usage in rooms.values():
            room.node.remove(usage)
            self.topologies.use(room.uses, -1)

    def kept_in(self, root: QuotaTreeNode) -> dict[str, tuple[FreedQuota, Usage]]:
        """By UID of the preemptor: the rooms in one tree, each with what of it is to be kept from others. Worked out
        once for as long as the tree and its rooms stay as they are."""
        mark = (root.generation, self.is_restless, self.preemption_pause.is_for_all(root))
        known = self._kept_in.get(root)
        if known is None or known[0] != mark:
            rooms = self._rooms_in.get(root, NO_ROOMS)
            known = self._kept_in[root] = (mark, {uid: (room, self._kept(uid, room)) for uid, room in rooms.items()})
        return known[1]

    def _waits_for_victims(self, uid: str, root: QuotaTreeNode) -> bool:
        return self.preemption_pause.is_for_all(root) or self.is_still_patient(uid)

    def _kept(self, uid: str, room: FreedQuota) -> Usage:
        """While victims are waited for, not what they hold yet: no gang can take that, and others of the cohort need
        not stand still for it; unless a plan does not come to rest so."""
        if self.is_restless or not room.victims or not self._waits_for_victims(uid, room.node.root()):
            return room.usage
        usage = dict(room.usage)
        for name, victim, _ in room.victims:
            record = self.records.get(name)
            member = record.reserved.get(victim) if record is not None else None
            for at, amount in member.usage.items() if member is not None else ():
                if at in usage:
                    usage[at] = max(0, usage[at] - amount)
        return usage

    def _drop_room(self, uid: str) -> FreedQuota | None:
        room = self.rooms.pop(uid, None)
        if room is not None:
            root = room.node.root()
            siblings = self._rooms_in[root]
            del siblings[uid]
            if not siblings:
                del self._rooms_in[root]
            self._kept_in.pop(root, None)
            self._claims.drop(uid, [victim for _, victim, _ in room.victims])
        return room

    def still_leaving(self, room: FreedQuota, *, patient: bool = False) -> list[Victim]:
        """The victims of a room that hold quota yet; where it is waited for them, those that were not told to go."""
        found = []
        for name, uid, reason in room.victims:
            record = self.records.get(name)
            member = record.reserved.get(uid) if record is not None else None
            if record is not None and member is not None and (member.evicted or patient):
                found.append(Victim(member, record, reason))
        return found

    def spared_by(self, uid: str) -> frozenset[str] | set[str]:
        """Gangs this one may not evict: those that evicted it, directly or through others, and those it evicted
        before, since the last outside change."""
        if not self._evicted_by:
            return NO_GANGS
        found: set[str] = set()
        ask = [uid]
        while ask:
            for preemptor in self._evicted_by.get(ask.pop(), ()):
                if preemptor not in found:
                    found.add(preemptor)
                    ask.append(preemptor)
        return found | self._evicted_before.get(uid, NO_GANGS)

    def shape_changed(self) -> None:
        """Quota, flavors or queues are not what they were: nothing that was worked out before counts."""
        for root in self._rooms_in:
            self.forest.bump(root)  # what could be reached there was worked out beside what was kept
        self.rooms.clear()
        self._rooms_in.clear()
        self._kept_in.clear()
        self._claims.clear()
        self.outside_change()

    def outside_change(self) -> None:
        """Something that no decision of ours caused: old grudges are void."""
        self._evicted_by.clear()
        self._evicted_before.clear()
