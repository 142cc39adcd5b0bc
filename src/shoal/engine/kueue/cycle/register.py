"""The gangs and queues that are known: facts come in here and take their place in the state.

Owned by `Kueue`. A gang is in exactly one place: holding quota in a cluster queue, waiting for one, or loose with the
reason why no queue takes it. When something changes that could help inadmissible gangs, they are called back here, and
only those of the tree that changed.
"""

from __future__ import annotations

import heapq
from typing import TypeVar

from msgspec.structs import replace

from shoal.engine.kueue.cycle.activity import unqueued_reason, why_inactive
from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.cycle.state import QueueState
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import ClusterQueue, Cohort, Flavor, LocalQueue, TopologyFact, terms_of
from shoal.engine.kueue.usage import UsageLedger
from shoal.engine.model import Gang

QueueKey = tuple[str, str]
Index = TypeVar("Index")

HOLDING = ("reserved", "admitted", "stopping")


class Register:
    def __init__(self, state: QueueState) -> None:
        self.state = state
        self.heads = state.heads
        self.members: dict[str, QueueMember] = {}
        """Every gang that is not finished, by key."""
        self.local_queues: dict[QueueKey, LocalQueue] = state.local_queues
        self.loose: dict[str, str] = {}
        """Keys of gangs that no queue takes, and why."""
        self.unnotified: set[str] = set()
        """Keys of gangs that are not looked at (loose, or their queue is inactive) and have not been told why."""
        self.unheard: dict[str, None] = {}
        """Keys of gangs that wait in a queue and about which no plan has said anything yet."""
        self._by_local: dict[QueueKey, set[str]] = {}
        self._by_cluster: dict[str, set[str]] = {}
        self._sleepers: list[tuple[int, str]] = []
        self._ghosts: set[str] = set()
        """Cluster queues that were removed while gangs still held quota in them."""
        self._successors: dict[str, str] = {}
        """Key of a slice to that of the one that takes its place."""
        self._waiting_in: dict[str, str] = {}
        """UID of a waiting gang to its cluster queue."""
        self._ended: list[QueueMember] = []
        """Gangs that ended by themselves since the last plan."""
        self._shapes_stale = False
        self._all_woken = False
        """Every gang may try again in the next plan: a thousand namespaces that come before it cost as much as one."""
        self.turn = 0
        """Grows when queues, cohorts or flavors change: nothing that was found out about quota holds any more."""

    @property
    def now(self) -> int:
        return self.state.now

    # Gangs.

    def update_gang(self, gang: Gang) -> None:
        old = self.members.get(gang.key)
        if old is not None and old.gang == gang and old.holds == (gang.state in HOLDING):
            return
        if gang.state == "finished":
            self._note_end(old)
            self.remove_gang(gang.key)
            return
        member = self._member(gang)
        if old is None or old.uid != member.uid or old.shape != member.shape:
            self.state.outside_change()
        elif member.holds and old.holds:
            member.evicted = member.evicted or old.evicted  # our own decision, not yet in the facts
            member.fills = member.fills and old.fills
            if old.queue == member.queue and old.usage == member.usage and old.fills == member.fills:
                self._confirm(member)
                return
        elif not old.holds:
            member.memory, member.memory_generation = old.memory, old.memory_generation
            member.memory_cycle = old.memory_cycle
        sticky = False
        if old is not None:
            sticky = self._is_sticky(old) and _asks_the_same(old, member)
            self._take_out(old)
        if not sticky or member.holds or self.is_asleep(member):
            self.state.give_up_room(member.uid)  # nothing is kept for a gang that is not tried
        if self.state.usage is not None and not member.holds:
            self.state.usage.left(member.uid)
        self._put_in(member)
        if sticky and not member.holds and member.uid in self.state.records[member.queue].waiting:
            self.state.records[member.queue].waiting.sticky = member.uid
        self._renew_successor(gang.key)

    def remove_gang(self, key: str) -> None:
        member = self.members.get(key)
        if member is not None:
            self._take_out(member)
            del self.members[key]
            self.state.preemption_pause.forget(member.uid)
            if self.state.usage is not None:
                self.state.usage.left(member.uid)
            self.state.give_up_room(member.uid)
            self.state.outside_change()
            self._renew_successor(key)

    def _note_end(self, member: QueueMember | None) -> None:
        """It ended by itself; when, the next plan says."""
        if member is not None and member.holds and not member.evicted and self.state.preemption_pause.learns:
            self._ended.append(member)

    def take_back(self, key: str) -> None:
        """A reservation that was told to no controller is undone: the gang waits as the facts say."""
        member = self.members[key]
        self._take_out(member)
        if self.state.usage is not None:
            self.state.usage.left(member.uid)
        self._put_in(self._member(member.gang))
        self._renew_successor(key)

    def _member(self, gang: Gang) -> QueueMember:
        """The gang as it stands: for a slice of an elastic job, beside the one whose place it takes."""
        queue, replaces = self._target(gang), terms_of(gang).replaces
        replaced = self.members.get(replaces) if replaces and self.state.settings.gates.slices else None
        beside = replaced is not None and replaced.holds and replaced.queue == queue and gang.state not in HOLDING
        return QueueMember(gang, queue, replaced if beside else None)

    def _renew_successor(self, key: str) -> None:
        """What a waiting slice asks for depends on the one that runs."""
        successor = self.members.get(self._successors.get(key, ""))
        if successor is not None and not successor.holds:
            self._take_out(successor)
            self._put_in(self._member(successor.gang))

    def _confirm(self, member: QueueMember) -> None:
        """The facts only say what the ledger knows already."""
        _discard(self.state.awaited, self.members[member.key].gang.stopping_for, member.uid)
        if member.gang.stopping_for:
            self.state.awaited.setdefault(member.gang.stopping_for, set()).add(member.uid)
        known = self.members[member.key]
        self.members[member.key] = member
        record = self.state.records.get(member.queue)
        self._places_moved(known.topology != member.topology)
        self._note_backfill(member)
        if record is not None and not member.fills:
            record.confirm(member)
            if record.comes_to_another_turn(member, known.reserved_at):
                self.state.forest.bump(record.node)
                self.heads.held(record, member.usage)
        self._note_readiness(member)
        self._note_places(member)
        self._note_usage(member)

    def _note_backfill(self, member: QueueMember) -> None:
        ledger = self.state.surplus
        if member.fills:
            ledger.fillers[member.uid] = member
        elif member.terms.backfilled:
            ledger.turned[member.uid] = member
        elif ledger.turned:
            ledger.turned.pop(member.uid, None)

    def _is_sticky(self, member: QueueMember) -> bool:
        record = self.state.records.get(member.queue)
        return record is not None and record.waiting.sticky == member.uid

    def _target(self, gang: Gang) -> str:
        if gang.state in HOLDING and terms_of(gang).cluster_queue:
            return terms_of(gang).cluster_queue
        local = self.local_queues.get((gang.namespace, gang.queue))
        return local.cluster_queue if local is not None else ""

    def _put_in(self, member: QueueMember) -> None:
        self.members[member.key] = member
        self._by_local.setdefault((member.gang.namespace, member.gang.queue), set()).add(member.key)
        self._by_cluster.setdefault(member.queue, set()).add(member.key)
        record = self.state.records.get(member.queue)
        if self.state.settings.gates.slices and member.terms.replaces:
            self._successors[member.terms.replaces] = member.key
        if member.holds:
            self._note_backfill(member)
            if record is not None and not member.fills and not self._is_replaced(member):
                record.hold(member)
                replaced = self.members.get(member.terms.replaces)
                if self.state.settings.gates.slices and replaced is not None and replaced.uid in record.reserved:
                    record.release(replaced.uid)
                self.state.forest.bump(record.node)
                self.heads.held(record, member.usage)
            if member.gang.stopping_for:
                self.state.awaited.setdefault(member.gang.stopping_for, set()).add(member.uid)
            self._note_readiness(member)
            self._note_places(member)
            self._note_usage(member)
        elif member.gang.state != "held":
            self._queue(member, record)

    def _queue(self, member: QueueMember, record: QueueRecord | None) -> None:
        local = self.local_queues.get((member.gang.namespace, member.gang.queue))
        reason = unqueued_reason(member.gang.queue, local, record)
        if reason or record is None:
            self.loose[member.key] = reason
            self.unnotified.add(member.key)
            return
        if member.terms.requeue_at > self.state.now:
            heapq.heappush(self._sleepers, (member.terms.requeue_at, member.key))
        asleep = self.state.is_asleep(member)
        if record.waiting.strict and not asleep and self.state.rules.new_head_frees:
            head = record.waiting.peek()
            if head is not None and record.waiting.rank(member) < record.waiting.rank(head):
                self._freed(record)  # the head so far stands behind, and keeps nothing from others meanwhile
        record.waiting.push(member, inadmissible=asleep)
        self._waiting_in[member.uid] = record.name
        self.heads.arrived(record)
        if record.inactive:
            self.unnotified.add(member.key)
        else:
            self.unheard[member.key] = None

    def _take_out(self, member: QueueMember) -> None:
        self.loose.pop(member.key, None)
        self.unnotified.discard(member.key)
        self._waiting_in.pop(member.uid, None)
        self.state.unready.discard(member.uid)
        self.state.needing_places.pop(member.uid, None)
        _discard(self._by_local, (member.gang.namespace, member.gang.queue), member.key)
        _discard(self._by_cluster, member.queue, member.key)
        _discard(self.state.awaited, member.gang.stopping_for, member.uid)
        if self._successors.get(member.terms.replaces) == member.key:
            del self._successors[member.terms.replaces]
        record = self.state.records.get(member.queue)
        filled = self.state.surplus.fillers.pop(member.uid, None) is not None
        self.state.surplus.turned.pop(member.uid, None)
        if record is None:
            return
        if filled:
            self._freed(record)
            return
        if record.waiting.sticky == member.uid:
            record.waiting.sticky = ""
        if member.uid in record.reserved:
            record.release(member.uid)
            replaced = self.members.get(member.terms.replaces) if self.state.settings.gates.slices else None
            if replaced is not None and replaced.holds and replaced.queue == record.name:
                record.hold(replaced)  # it was not ended after all
            self._freed(record)
            self._places_moved(bool(member.topology))
            if record.name in self._ghosts and not record.reserved:
                self._drop(record)
        else:
            record.waiting.discard(member.uid)
            self.heads.arrived(record)
            if record.waiting.strict:
                self._freed(record)  # what the head of a strict queue waits for is kept from others

    def _is_replaced(self, member: QueueMember) -> bool:
        """Does a larger slice of the same job hold quota for both?"""
        successor = self.members.get(self._successors.get(member.key, ""))
        return successor is not None and successor.holds and successor.queue == member.queue

    def is_asleep(self, member: QueueMember) -> bool:
        return self.state.is_asleep(member)

    def _note_places(self, member: QueueMember) -> None:
        if member.needs_places:
            self.state.needing_places[member.uid] = member
        else:
            self.state.needing_places.pop(member.uid, None)

    def _note_usage(self, member: QueueMember) -> None:
        if self.state.usage is None:
            return
        if member.gang.state == "reserved":
            self.state.usage.reserved(member)
        else:
            self.state.usage.admitted(member.uid)

    def _note_readiness(self, member: QueueMember) -> None:
        if self.state.settings.wait_for_pods_ready and not member.terms.pods_ready and not member.fills:
            self.state.unready.add(member.uid)
        elif member.uid in self.state.unready:
            self.state.unready.discard(member.uid)
            self.wake_all()

    # Queues, cohorts, flavors, namespaces.

    def update_cluster_queue(self, fact: ClusterQueue) -> None:
        record = self.state.records.get(fact.name)
        if record is not None and record.fact == fact:
            return
        node = self.state.forest.set_queue(fact)
        self._ghosts.discard(fact.name)
        (self.state.backfilling.add if fact.backfill else self.state.backfilling.discard)(fact.name)
        stopped = record is None or record.fact.stopped != fact.stopped
        if record is None:
            self.state.records[fact.name] = QueueRecord(
                fact, node, self.state.topologies, self.state.rules, self.state.usage
            )
        else:
            record.describe(fact)
        self._shape_changed()
        if stopped:
            self._replace(self._by_cluster.get(fact.name, set()))

    def remove_cluster_queue(self, name: str) -> None:
        """Gangs that hold quota in it go on being charged, against no quota, until they leave."""
        record = self.state.records.get(name)
        if record is None:
            return
        if record.reserved:
            problem = f"ClusterQueue {name} doesn't exist"
            self.update_cluster_queue(ClusterQueue(name=name, cohort=record.fact.cohort, stopped=True, problem=problem))
            self._ghosts.add(name)
        else:
            self._drop(record)

    def _drop(self, record: QueueRecord) -> None:
        self._ghosts.discard(record.name)
        del self.state.records[record.name]
        self.state.backfilling.discard(record.name)
        self.state.forest.drop_queue(record.name)
        self.heads.forget(record)
        self._shape_changed()
        self._replace(self._by_cluster.get(record.name, set()))

    def update_cohort(self, fact: Cohort) -> None:
        self.state.forest.set_cohort(fact)
        self._shape_changed()

    def remove_cohort(self, name: str) -> None:
        self.state.forest.drop_cohort(name)
        self._shape_changed()

    def update_local_queue(self, fact: LocalQueue) -> None:
        key = (fact.namespace, fact.name)
        if self.state.usage is not None:
            self.state.usage.update_queue(fact)
        if fact.consumed is not None:
            fact = replace(fact, consumed=None)
        if self.local_queues.get(key) != fact:
            self.local_queues[key] = fact
            self.turn += 1
            self.state.outside_change()
            self._replace(self._by_local.get(key, set()))

    def remove_local_queue(self, namespace: str, name: str) -> None:
        if self.state.usage is not None:
            self.state.usage.remove_queue(namespace, name)
        if self.local_queues.pop((namespace, name), None) is not None:
            self.turn += 1
            self.state.outside_change()
            self._replace(self._by_local.get((namespace, name), set()))

    def update_flavor(self, fact: Flavor) -> None:
        if self.state.flavors.get(fact.name) != fact:
            self.state.flavors[fact.name] = fact
            self.state.topologies.flavors_changed()
            self._shape_changed()

    def remove_flavor(self, name: str) -> None:
        if self.state.flavors.pop(name, None) is not None:
            self.state.topologies.flavors_changed()
            self._shape_changed()

    def update_topology(self, fact: TopologyFact) -> None:
        if self.state.topologies.update_topology(fact):
            self._shape_changed()

    def remove_topology(self, name: str) -> None:
        if self.state.topologies.remove_topology(name):
            self._shape_changed()

    def places_changed(self, news: bool) -> None:
        """Nodes, or pods on them, are not what they were: gangs that found no places in a topology may now, whatever
        queue they wait in."""
        if news:
            self.state.outside_change()
            self.state.places_moved = True

    def _places_moved(self, news: bool) -> None:
        """A gang gave its places up, which may be our own doing: that alone is no reason to forget who evicted it."""
        self.state.places_moved = self.state.places_moved or news

    def call_for_places(self) -> None:
        """Before heads are asked for: once for all that moved, queues that have a gang which may find places now."""
        state = self.state
        if not state.places_moved:
            return
        state.places_moved = False
        hopeful = state.lacking.take_hopeful() if state.rules.indexes else list(state.records)
        for name in hopeful:
            record = state.records.get(name)
            if record is None or state.topologies.flavors.isdisjoint(record.flavors):
                continue
            record.freed += 1
            if state.rules.indexes:
                self.heads.called(record)
            else:
                self.heads.freed(record.node)
                state.forest.bump(record.node)

    def update_namespace(self, name: str, labels: dict[str, str] | None) -> None:
        if self.state.namespaces.get(name) == labels:
            return
        if labels is None:
            self.state.namespaces.pop(name, None)
        else:
            self.state.namespaces[name] = labels
        self.state.outside_change()
        self._all_woken = True

    def _replace(self, keys: set[str]) -> None:
        """Take gangs out and put them in again where they now belong."""
        for key in sorted(keys):
            member = self.members[key]
            self._take_out(member)
            if not member.holds:
                self.state.give_up_room(member.uid)
                member.queue = self._target(member.gang)
            self._put_in(member)

    # Calling back inadmissible gangs.

    def _freed(self, record: QueueRecord) -> None:
        """Quota came back: every gang in the tree may try again."""
        self.state.forest.settled()
        if not self.state.rules.looks_at_all_flavors:
            for node in record.node.root().queues():
                other = self.state.records.get(node.name)
                if other is not None:
                    other.freed += 1
        self.heads.freed(record.node)
        self.state.forest.bump(record.node)

    def freed(self, queue: str) -> None:
        """Something that a queue was charged with beside its tree is gone."""
        self._freed(self.state.records[queue])

    def _shape_changed(self) -> None:
        self.turn += 1
        self._shapes_stale = True
        self.state.shape_changed()

    def wake_all(self) -> None:
        self.state.outside_change()
        self.heads.changed()

    def begin(self, now: int) -> None:
        """Bring everything up to date before decisions: trees, activity, those whose back-off has ended."""
        self.state.now = max(self.now, now)
        self.state.forest.settled()
        if self._shapes_stale:
            self._shapes_stale = False
            self.state.waits_for_caches.clear()
            self.state.lacking.clear()
            for record in self.state.records.values():
                before, record.inactive = record.inactive, why_inactive(record, self.state)
                if record.inactive and record.inactive != before:
                    self.unnotified.update(member.key for member in record.waiting.everyone())
                record.freed += 1
                record.offer(self.state.waits_for_caches)
            self._all_woken = True
        if self._all_woken:
            self._all_woken = False
            self.heads.changed()
        self.call_for_places()
        if self.state.rules.leads_awaited and self.state.awaited:
            self._lead()
        while self._sleepers and self._sleepers[0][0] <= self.now:
            member = self.members.get(heapq.heappop(self._sleepers)[1])
            queue = self.state.records.get(member.queue) if member is not None else None
            if member is not None and queue is not None and not self.is_asleep(member):
                queue.waiting.wake(member.uid)
                self.heads.arrived(queue)

        if self.state.usage is not None and self.state.usage.is_due(now):
            self._sample_usage(self.state.usage, now)
        self._learn_pause()
        for uid in self.state.preemption_pause.over(self.now):
            waits = self.state.records.get(self._waiting_in.get(uid, ""))
            if waits is not None:
                self.heads.arrived(waits)

    def _learn_pause(self) -> None:
        ended, self._ended = self._ended, []
        for member in ended:
            record = self.state.records.get(member.queue)
            if record is not None:
                self.state.preemption_pause.ended(member, record.node.root(), self.now)

    def _sample_usage(self, usage: UsageLedger, now: int) -> None:
        """Who had much lately is another one now: in queues that are shared by usage lines stand in another order, and
        others would leave first."""
        shared = [record for record in self.state.records.values() if record.shares_by_usage]
        if not usage.sample(now, [member for record in shared for member in record.reserved.values()]):
            return
        for record in shared:
            self.state.forest.bump(record.node)
            self.heads.arrived(record)
            if record.waiting.strict:
                self._freed(record)  # its head may be another one, which keeps other quota from the rest

    def _lead(self) -> None:
        """After a restart: gangs for which others are leaving go to the front of their queues again."""
        for uid in sorted(self.state.awaited):
            record = self.state.records.get(self._waiting_in.get(uid, ""))
            if record is not None and uid in record.waiting and record.waiting.sticky not in self.state.rooms:
                record.waiting.sticky = uid

    def why_ignored(self, member: QueueMember) -> str:
        """Why the gang is not looked at; empty when it is."""
        record = self.state.records.get(member.queue)
        if member.key in self.loose or record is None:
            return self.loose.get(member.key, "")
        return f"ClusterQueue {record.name} is inactive: {record.inactive}" if record.inactive else ""

    @property
    def waiting(self) -> int:
        """How many gangs stand in line for quota."""
        return len(self._waiting_in)

    def next_wake(self) -> int | None:
        """The moment at which a back-off ends, a gang stops waiting for others to end, or usage is to be sampled."""
        sample = self.state.usage.next_sample() if self.state.usage is not None else None
        moments = [self.state.preemption_pause.next_end(), self._next_awake(), sample]
        return min((one for one in moments if one is not None), default=None)

    def _next_awake(self) -> int | None:
        while self._sleepers:
            at, key = self._sleepers[0]
            member = self.members.get(key)
            if member is not None and not member.holds and member.terms.requeue_at == at:
                return at
            heapq.heappop(self._sleepers)
        return None


def _asks_the_same(old: QueueMember, member: QueueMember) -> bool:
    """Is the room that others leave for it still what it needs, where it needs it?"""
    return old.uid == member.uid and old.shape == member.shape and old.queue == member.queue


def _discard(index: dict[Index, set[str]], at: Index, key: str) -> None:
    keys = index.get(at)
    if keys is not None:
        keys.discard(key)
        if not keys:
            del index[at]
