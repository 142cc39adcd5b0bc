"""Kueue's decisions behind four verbs: tell a fact, withdraw it, ask for decisions, ask why.

The engine (and the conformance runner) calls this; it owns the state and hands out only frozen data. Facts may come in any
order and as often as they like: the same facts give the same decisions. Decisions count as carried out at once; the facts
that follow confirm or correct them.
"""

from __future__ import annotations

import heapq
from typing import TypeVar

from shoal.engine.model import Gang, Namespace

from . import entry as back
from .activity import unqueued_reason, why_inactive
from .cycle import Cycle, send_back
from .decisions import Decisions, Evict, Reserve, Wait
from .demand import Member
from .entry import Entry
from .facts import ClusterQueue, Cohort, Flavor, LocalQueue, Settings
from .record import QueueRecord
from .state import State

Told = ClusterQueue | Cohort | LocalQueue | Flavor | Namespace | Gang
QueueKey = tuple[str, str]
Index = TypeVar("Index")


class Kueue:
    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.state = State(self.settings)
        self.local_queues: dict[QueueKey, LocalQueue] = {}
        self.members: dict[str, Member] = {}
        """Every gang that is not finished, by key."""
        self.loose: dict[str, str] = {}
        """Keys of gangs that no queue takes, and why."""
        self.now = 0
        self.cycles = 0
        self._by_local: dict[QueueKey, set[str]] = {}
        self._by_cluster: dict[str, set[str]] = {}
        self._hot: set[str] = set()
        """Cluster queues that may have someone to try."""
        self._sleepers: list[tuple[int, str]] = []
        self._unjudged: set[str] = set()
        """Keys of loose gangs whose reason has not been told yet."""
        self._activity_stale = False

    # Facts.

    def update(self, fact: Told) -> None:
        """Tell a fact, new or changed."""
        match fact:
            case Gang():
                self._update_gang(fact)
            case ClusterQueue():
                self._update_queue(fact)
            case Cohort():
                self.state.forest.set_cohort(fact)
                self._shape_changed()
            case LocalQueue():
                self._update_local(fact)
            case Flavor():
                if self.state.flavors.get(fact.name) != fact:
                    self.state.flavors[fact.name] = fact
                    self._shape_changed()
            case Namespace():
                if self.state.namespaces.get(fact.name) != fact.labels:
                    self.state.namespaces[fact.name] = fact.labels
                    self._wake_all()

    def remove_gang(self, key: str) -> None:
        member = self.members.pop(key, None)
        if member is None:
            return
        self._take_out(member)
        self._unindex(member)
        self.state.give_up_room(member.uid)
        self.state.outside_change()

    def remove_cluster_queue(self, name: str) -> None:
        """Gangs that hold quota in it keep being charged, against no quota, until they leave."""
        record = self.state.records.get(name)
        if record is None:
            return
        if record.reserved:
            ghost = ClusterQueue(name=name, cohort=record.fact.cohort, problem=f"ClusterQueue {name} doesn't exist")
            self._update_queue(ghost)
            return
        self._drop_record(record)

    def remove_cohort(self, name: str) -> None:
        self.state.forest.drop_cohort(name)
        self._shape_changed()

    def remove_local_queue(self, namespace: str, name: str) -> None:
        if self.local_queues.pop((namespace, name), None) is not None:
            self._replace(self._by_local.get((namespace, name), set()))
            self.state.outside_change()

    def remove_flavor(self, name: str) -> None:
        if self.state.flavors.pop(name, None) is not None:
            self._shape_changed()

    # Decisions.

    def cycle(self, now: int) -> Decisions:
        """Exactly one cycle with one head per cluster queue, for comparison with Kueue step by step."""
        self._begin(now)
        heads = [head for name in sorted(self._hot) if (head := self._head(name, again=True)) is not None]
        decisions, _ = self._run(heads)
        return decisions

    def plan(self, now: int) -> Decisions:
        """Decide everything that can be decided now: cycles until nothing moves."""
        self._begin(now)
        reserved: list[Reserve] = []
        evicted: dict[str, Evict] = {}
        waiting: dict[str, Wait] = {}
        skipped: dict[str, int] = {}
        warnings: list[str] = []
        idle: dict[str, int] = {}
        for step in range(self.settings.step_budget):
            heads = [head for name in sorted(self._hot) if (head := self._head(name)) is not None]
            if not heads:
                break
            generations = {head.queue: self._generation(head.queue) for head in heads}
            decisions, judged = self._run(heads)
            self._note_idle(judged, generations, idle)
            reserved += decisions.reserved
            evicted |= {entry.uid: entry for entry in decisions.evicted}
            waiting |= {entry.uid: entry for entry in decisions.waiting}
            for name, count in decisions.skipped_preemptions.items():
                skipped[name] = skipped.get(name, 0) + count
        else:
            warnings.append(
                f"decisions did not settle within {self.settings.step_budget} cycles; the rest waits for the next plan"
            )
        for entry in reserved:
            waiting.pop(entry.uid, None)
        return Decisions(
            reserved=tuple(reserved),
            evicted=tuple(evicted.values()),
            waiting=tuple(waiting.values()) + self._tell_loose(),
            skipped_preemptions=skipped,
            warnings=tuple(warnings),
        )

    def next_wake(self) -> int | None:
        """The moment at which a gang's back-off ends, so that a plan is worth asking for then."""
        while self._sleepers:
            at, key = self._sleepers[0]
            member = self.members.get(key)
            if member is not None and not member.holds and member.terms.requeue_at == at:
                return at
            heapq.heappop(self._sleepers)
        return None

    # Facts, inside.

    def _update_gang(self, gang: Gang) -> None:
        old = self.members.get(gang.key)
        if old is not None and old.gang == gang and old.holds == (gang.state in ("reserved", "admitted", "stopping")):
            return
        if gang.state == "finished":
            self.remove_gang(gang.key)
            return
        member = Member(gang, self._target(gang))
        if old is not None and old.uid == member.uid:
            if member.holds:
                member.evicted = member.evicted or old.evicted  # our own decision, not yet in the facts
            elif old.shape == member.shape and not old.holds:
                member.memory, member.memory_cycle = old.memory, old.memory_cycle
                member.memory_generation = old.memory_generation
        if old is None or old.uid != member.uid or old.shape != member.shape or old.queue != member.queue:
            self.state.outside_change()
        if old is not None:
            if old.holds and member.holds and old.queue == member.queue and old.usage == member.usage:
                self._swap(old, member)
                return
            self._take_out(old)
            self._unindex(old)
        if gang.state == "held" or member.uid not in self.state.rooms or old is None or old.shape != member.shape:
            self.state.give_up_room(member.uid)
        self.members[gang.key] = member
        self._index(member)
        self._put_in(member)

    def _swap(self, old: Member, member: Member) -> None:
        """The facts only confirm what the ledger knows."""
        self.members[member.key] = member
        record = self.state.records.get(member.queue)
        if record is not None and old.uid in record.reserved:
            del record.reserved[old.uid]
            record.reserved[member.uid] = member
        self._note_readiness(member)

    def _update_queue(self, fact: ClusterQueue) -> None:
        record = self.state.records.get(fact.name)
        if record is not None and record.fact == fact:
            return
        node = self.state.forest.set_queue(fact)
        if record is None:
            self.state.records[fact.name] = record = QueueRecord(fact, node)
        stopped = record.fact.stopped != fact.stopped
        record.describe(fact)
        self._shape_changed()
        if stopped or not (record.reserved or len(record.waiting)):
            self._replace(self._by_cluster.get(fact.name, set()))
        if fact.name in self._ghosts() and not record.reserved:
            self._drop_record(record)

    def _ghosts(self) -> set[str]:
        return {name for name, record in self.state.records.items() if record.fact.problem.endswith("doesn't exist")}

    def _drop_record(self, record: QueueRecord) -> None:
        del self.state.records[record.name]
        self.state.forest.drop_queue(record.name)
        self._hot.discard(record.name)
        self._shape_changed()
        self._replace(self._by_cluster.get(record.name, set()))

    def _update_local(self, fact: LocalQueue) -> None:
        key = (fact.namespace, fact.name)
        if self.local_queues.get(key) == fact:
            return
        self.local_queues[key] = fact
        self.state.outside_change()
        self._replace(self._by_local.get(key, set()))

    def _replace(self, keys: set[str]) -> None:
        """Take gangs out and put them in again where they now belong."""
        for key in sorted(keys):
            member = self.members[key]
            self._take_out(member)
            self._unindex(member)
            if not member.holds:
                member.queue = self._target(member.gang)
            self._index(member)
            self._put_in(member)

    def _target(self, gang: Gang) -> str:
        terms = gang.details.get("kueue")
        reserved_in = getattr(terms, "cluster_queue", "") if gang.state in ("reserved", "admitted", "stopping") else ""
        if reserved_in:
            return str(reserved_in)
        local = self.local_queues.get((gang.namespace, gang.queue))
        return local.cluster_queue if local is not None else ""

    def _put_in(self, member: Member) -> None:
        record = self.state.records.get(member.queue)
        if member.holds:
            if record is not None:
                record.reserved[member.uid] = member
                record.node.add(member.usage)
                self.state.forest.bump(record.node)
            self._note_readiness(member)
            return
        if member.gang.state == "held":
            return
        local = self.local_queues.get((member.gang.namespace, member.gang.queue))
        reason = unqueued_reason(member.gang.queue, local, record)
        if reason or record is None:
            self.loose[member.key] = reason
            self._unjudged.add(member.key)
            return
        asleep = member.terms.backing_off or member.terms.requeue_at > self.now
        if member.terms.requeue_at > self.now:
            heapq.heappush(self._sleepers, (member.terms.requeue_at, member.key))
        record.waiting.push(member, parked=asleep)
        record.stalled_at = -1
        self._hot.add(record.name)

    def _take_out(self, member: Member) -> None:
        self.loose.pop(member.key, None)
        self._unjudged.discard(member.key)
        self.state.unready.discard(member.uid)
        record = self.state.records.get(member.queue)
        if record is None:
            return
        if member.uid in record.reserved:
            del record.reserved[member.uid]
            record.node.remove(member.usage)
            self._freed(record)
            if record.fact.problem.endswith("doesn't exist") and not record.reserved:
                self._drop_record(record)
        else:
            record.waiting.discard(member.uid)
            record.stalled_at = -1
            if record.waiting.sticky == member.uid:
                record.waiting.sticky = ""

    def _freed(self, record: QueueRecord) -> None:
        """Quota came back: everyone in the tree may try again."""
        self.state.forest.settled()
        for node in record.node.root().queues():
            other = self.state.records.get(node.name)
            if other is not None:
                other.freed += 1
                self._unpark(other)
        self.state.forest.bump(record.node)

    def _unpark(self, record: QueueRecord) -> None:
        stays = {
            member.uid
            for member in record.waiting.parked_alone()
            if member.terms.backing_off
            or member.terms.requeue_at > self.now
            or not self.state.namespace_matches(record, member)
        }
        if record.waiting.unpark(stays=stays):
            self._hot.add(record.name)

    def _shape_changed(self) -> None:
        self._activity_stale = True
        self.state.outside_change()

    def _wake_all(self) -> None:
        self.state.outside_change()
        for record in self.state.records.values():
            record.stalled_at = -1
            self._unpark(record)

    def _note_readiness(self, member: Member) -> None:
        if self.settings.wait_for_pods_ready and not member.terms.pods_ready:
            self.state.unready.add(member.uid)
        elif member.uid in self.state.unready:
            self.state.unready.discard(member.uid)
            self._wake_all()

    def _index(self, member: Member) -> None:
        self._by_local.setdefault((member.gang.namespace, member.gang.queue), set()).add(member.key)
        self._by_cluster.setdefault(member.queue, set()).add(member.key)

    def _unindex(self, member: Member) -> None:
        _discard(self._by_local, (member.gang.namespace, member.gang.queue), member.key)
        _discard(self._by_cluster, member.queue, member.key)

    # Decisions, inside.

    def _begin(self, now: int) -> None:
        self.now = max(self.now, now)
        self.state.forest.settled()
        if self._activity_stale:
            self._activity_stale = False
            for record in self.state.records.values():
                record.inactive = why_inactive(record, self.state)
                record.freed += 1
                record.stalled_at = -1
                self._unpark(record)
                if len(record.waiting):
                    self._hot.add(record.name)
        while self._sleepers and self._sleepers[0][0] <= self.now:
            member = self.members.get(heapq.heappop(self._sleepers)[1])
            queue = self.state.records.get(member.queue) if member is not None else None
            if member is not None and queue is not None and not member.terms.backing_off:
                queue.waiting.wake(member.uid)
                self._hot.add(queue.name)

    def _head(self, name: str, *, again: bool = False) -> Member | None:
        record = self.state.records[name]
        if record.inactive:
            return None
        if not again and record.stalled_at == self._generation(name):
            return None
        head = record.waiting.pop()
        if head is None:
            self._hot.discard(name)
        return head

    def _generation(self, name: str) -> int:
        return self.state.records[name].node.root().generation

    def _run(self, heads: list[Member]) -> tuple[Decisions, list[Entry]]:
        self.cycles += 1
        decisions, judged = Cycle(self.state, self.now, self.cycles).run(heads)
        for entry in judged:
            if entry.admitted:
                continue
            send_back(entry, entry.record)
            if entry.back == back.PENDING_PREEMPTION:
                if entry.member.uid in self.state.rooms:
                    entry.record.waiting.sticky = entry.member.uid
            elif entry.back != back.AFTER_NOMINATION:
                self.state.give_up_room(entry.member.uid)
        return decisions, judged

    def _note_idle(self, judged: list[Entry], generations: dict[str, int], idle: dict[str, int]) -> None:
        """Queues of a tree in which a whole cycle changed nothing need not be asked again before something does."""
        trees: dict[str, list[Entry]] = {}
        for entry in judged:
            trees.setdefault(entry.record.node.root().name + "/" * entry.record.node.root().is_queue, []).append(entry)
        for tree, entries in trees.items():
            moved = any(
                entry.admitted
                or generations[entry.record.name] != self._generation(entry.record.name)
                or entry.member.uid not in entry.record.waiting
                or entry.record.waiting.is_parked(entry.member)
                for entry in entries
            )
            idle[tree] = 0 if moved else idle.get(tree, 0) + 1
            scanning = any(entry.member.flavors_remain for entry in entries)
            longest = max((len(group.flavors) for entry in entries for group in entry.record.fact.groups), default=1)
            if idle[tree] > (longest if scanning else 0):
                for entry in entries:
                    entry.record.stalled_at = self._generation(entry.record.name)

    def _tell_loose(self) -> tuple[Wait, ...]:
        """Say once, for every gang that no queue takes, why."""
        told = []
        for key in sorted(self._unjudged):
            member = self.members[key]
            told.append(
                Wait(
                    gang=key,
                    uid=member.uid,
                    cluster_queue=member.queue,
                    reason="Suspended" if "stopped" in self.loose[key] else "Misconfigured",
                    message=self.loose[key],
                )
            )
        self._unjudged.clear()
        return tuple(told)


def _discard(index: dict[Index, set[str]], at: Index, key: str) -> None:
    keys = index.get(at)
    if keys is not None:
        keys.discard(key)
        if not keys:
            del index[at]
