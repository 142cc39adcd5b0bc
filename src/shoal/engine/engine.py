"""The judge: facts in, plans out.

Controllers, the simulator and `shoal why` each hold one Engine, tell it what they see and carry out what it answers. It
does no I/O, reads no clock and never raises on a bad fact: what cannot be used is named in the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from shoal.engine.explain.case import case_of
from shoal.engine.explain.forecast import MOST_ENDS, Forecast, RunLength, foretold
from shoal.engine.explain.helps import by_itself, find_help
from shoal.engine.explain.holding import strangers
from shoal.engine.explain.rehearsal import Rehearsal, copy_of, has_started
from shoal.engine.explain.thinning import thinned
from shoal.engine.explain.trial import MOST_COPIED, DraftTrial, most, resized, tried
from shoal.engine.explain.why import explain, front, plain_reason
from shoal.engine.kueue import ClusterQueue, Cohort, Flavor, LocalQueue, LocalQueueUsage, Places, TopologyFact
from shoal.engine.kueue import KueueSettings as QueueSettings
from shoal.engine.kueue.decisions import hold_of
from shoal.engine.kueue.unheard import Known
from shoal.engine.kueue.views import exact_share, published_share
from shoal.engine.line.bids import Bids, bids_of, grant
from shoal.engine.line.cycle import Cycle
from shoal.engine.line.queues import QueueFact, Queues
from shoal.engine.line.recovery import Deadline, Recovery, recovery
from shoal.engine.line.state import LineState
from shoal.engine.line.surplus import is_surplus, surplus_uid
from shoal.engine.mcad.quota_view import NodeUse, quota_use
from shoal.engine.model import Amounts, Explanation, Fact, Gang, Hold, Namespace, NodeFact, Plan, PodFact, QuotaIncrease
from shoal.engine.settings import EngineSettings

NO_HELP = ("bad-fact", "held", "backing-off")
EFFORT = 20_000
"""What one explanation may cost: gangs, nodes and pods carried through its trials, about a second in all."""
FORECAST_EFFORT = 200_000
"""What one forecast may cost, in the same measure; its plans look only at what an end changes."""
MOST_WHOLE = 600
"""Gangs up to which all are copied; of more, those that matter."""
FEWEST_TRIALS = 10
"""An engine of which not even so many copies may be looked at is not copied at all."""


class Engine:
    """Facts win: whatever `update` says replaces what an earlier plan assumed. Feed it from a cache that has seen your
    own writes, or a gang may be planned twice (harmless, but noisy)."""

    def __init__(self, settings: EngineSettings | None = None, queues: QueueSettings | None = None) -> None:
        self._state = LineState(settings or EngineSettings())
        self._queues = Queues(queues)
        self._room_cycles = 0

    def update(self, fact: Fact | QueueFact) -> None:
        """A fact is new or has changed. Telling the same again costs next to nothing."""
        if isinstance(fact, Gang):
            if fact.dialect == "kueue":
                self._queues.kueue.update(fact)
                fact = self._queues.in_line(fact)
        elif isinstance(fact, (ClusterQueue, Cohort, LocalQueue, Flavor, TopologyFact)):
            self._queues.update(fact)
            return
        elif isinstance(fact, (PodFact, NodeFact, Namespace)):
            self._queues.kueue.update(fact)
        self._state.update(fact)

    def remove(self, key: str) -> None:
        """A fact is gone; `key` as `model.key_of` or `queues.queue_key` gives it. Unknown keys are ignored."""
        gang = self._state.gangs.get(key)
        if gang is None:
            self._queues.remove_place(key)
            if self._queues.remove(key):
                return
        elif gang.dialect == "kueue":
            self._queues.kueue.remove(gang)
        self._state.remove(key)

    def plan(self, now: int, most: int | None = None) -> Plan:
        """Decide at this moment. The decisions are assumed carried out until facts say otherwise. `most`: once about so
        many gangs of queues are given quota, the rest is left to the next plan, and the plan says that it is
        unfinished."""
        self._room_cycles += 1
        if self._state.surplus:
            self._state.surplus.settle(self._state)
            self._queues.charge_surplus(self._state)
        if not self._queues.kueue.members:
            return Cycle(self._state, now).run()
        quota, reservations = self._queues.decide(self._state, now, most)
        room = Cycle(self._state, now).run()
        grows = grant(self._state, self._queues, now) if self._state.surplus else ()
        wakes = [moment for moment in (room.wake_at, self._queues.next_wake()) if moment]
        return msgspec.structs.replace(
            room,
            reservations=reservations,
            places=quota.places,
            preempts=quota.preempts + room.preempts,
            holds=quota.holds + room.holds,
            grows=room.grows + grows,
            shrinks=quota.shrinks + room.shrinks,
            turns=quota.turns,
            warnings=quota.warnings + room.warnings,
            unfinished=quota.unfinished or room.unfinished,
            wake_at=min(wakes, default=0),
        )

    def explain(self, key: str, now: int = 0, effort: int = EFFORT) -> Explanation | None:
        """Why this gang waits, in full, as of the last plan. None: it is not waiting or not known. Changes nothing.

        What would help is tried out before it is said; `effort` bounds that, and where it is spent less is said.
        """
        gang = self._state.gangs.get(key)
        if gang is not None and gang.dialect == "kueue" and gang.state == "waiting":
            found = self._queues.explain(key)
        else:
            found = explain(self._state, key, now, guess=self._unchanging * FEWEST_TRIALS <= effort)
        if gang is None or found is None or found.reason in NO_HELP or gang.nowhere:
            return found
        return self._with_help(gang, found, now, effort)

    def _with_help(self, gang: Gang, found: Explanation, now: int, effort: int) -> Explanation:
        """What would start it, tried out."""
        rehearsal = self._rehearsal(gang, now, effort)
        if rehearsal is None:
            return msgspec.structs.replace(found, least_increase=None, release=(), explored=False)
        if by_itself(rehearsal):
            return msgspec.structs.replace(
                found, starts_by_itself=True, least_increase=None, release=(), release_measure="least"
            )
        case = case_of(gang, found, self._state, self._queues)
        found_help = find_help(case, rehearsal)
        more, fresh = found_help.increase, found_help.nodes
        if more is None and fresh is not None and fresh.count == 1:
            more = QuotaIncrease("nodes", fresh.amounts, fresh.measure)
        return msgspec.structs.replace(
            found,
            release=found_help.release,
            release_measure=found_help.release_measure,
            least_increase=more,
            new_nodes=fresh,
            together=found_help.together,
        )

    def trial(self, gang: Gang, now: int, effort: int = EFFORT) -> DraftTrial:
        """Would this gang, which is not there yet, start now? Changes nothing."""
        if self._unchanging + len(self._state.gangs) > MOST_COPIED:
            return DraftTrial("unknown")
        return tried(self, gang, now, effort)

    def largest(self, gang: Gang, pod_set: str, limit: int, now: int) -> int | None:
        """With how many pods of this pod set would this gang, which is not there yet, start now? -1: with none. None:
        the cluster is too large to try it out. Changes nothing."""
        if (self._unchanging + len(self._state.gangs)) * FEWEST_TRIALS > MOST_COPIED:
            return None
        return most(self, lambda count: resized(gang, pod_set, count), limit, now)

    def forecast(self, gang: Gang | str, now: int, lengths: Callable[[Gang], RunLength | None]) -> Forecast | None:
        """When would this gang start, were every other as long as `lengths` says? A gang that is not there yet is given
        whole, one that waits by its key. None: the cluster is too large to try it out. Changes nothing."""
        size = self._unchanging + len(self._state.gangs)
        if size > MOST_COPIED:
            return None
        copy = copy_of(self)
        key = gang if isinstance(gang, str) else gang.key
        if not isinstance(gang, str):
            copy.update(gang)
        return foretold(copy, key, now, lengths, max(20, min(MOST_ENDS, FORECAST_EFFORT // max(1, size))))

    def running(self) -> Iterator[Gang]:
        """Gangs that were started, as far as the engine gives."""
        gangs = list(self._state.gangs.values())
        return (gang for gang in gangs if has_started(gang) and not is_surplus(gang.uid))

    def emptied(self) -> None:
        """Forget every gang and every pod: for copies, to see what a gang could ever have."""
        for pod in list(self._state.ledger.pods):
            self.remove(f"Pod/{pod}")
        for key in list(self._state.gangs):
            self.remove(key)

    @property
    def _unchanging(self) -> int:
        """Nodes and pods: all of them are in every copy."""
        return len(self._state.ledger.pods) + self._state.ledger.room.node_count

    def _rehearsal(self, gang: Gang, now: int, effort: int) -> Rehearsal | None:
        """A copy to try things on, of everything or of what matters; None where even that is too much."""
        state = self._state
        fixed = self._unchanging
        if (fixed + len(state.gangs)) * FEWEST_TRIALS <= effort and len(state.gangs) <= MOST_WHOLE:
            return Rehearsal(self, gang.key, now, fixed + len(state.gangs), effort)
        if fixed * FEWEST_TRIALS > effort:
            return None
        part = thinned(gang, state, self._queues)
        if part is None or part.size * FEWEST_TRIALS > effort:
            return None
        smaller = Engine(state.settings, self._queues.kueue.settings)
        smaller._state.adopt(state)
        smaller._queues.adopt_places(self._queues)
        for fact in part.facts:
            smaller.update(fact)
        return Rehearsal(smaller, gang.key, now, part.size, effort, part.classes)

    def reason(self, key: str, known: Known) -> Hold | None:
        """Why a gang that waits for quota does so as of now, cheaply: equal gangs share what is `known`. None: what a
        plan said last still holds."""
        found = self._queues.kueue.reason(key, known)
        return hold_of(found) if found is not None else None

    def room_reason(self, key: str, known: dict[object, Explanation], now: int = 0) -> Explanation | None:
        """The same for a gang that waits for room, or for quota of MCAD's trees."""
        return plain_reason(self._state, key, known, now)

    def places(self, key: str) -> Places | None:
        """Where a gang that waits for quota stands: among all of its ClusterQueue, and in its own LocalQueue."""
        return self._queues.kueue.places(key)

    def line(self, cluster_queue: str) -> list[Gang]:
        """All gangs that wait for the quota of this ClusterQueue, the next one first."""
        return self._queues.kueue.line(cluster_queue)

    def waiting_counts(self, cluster_queue: str) -> tuple[int, int]:
        """How many of a ClusterQueue's gangs would be tried, and how many wait until something changes."""
        return self._queues.kueue.waiting_counts(cluster_queue)

    def waiting_amounts(self, cluster_queue: str) -> dict[str, int]:
        """What all gangs that wait for a ClusterQueue ask for together, by resource."""
        return self._queues.kueue.waiting_amounts(cluster_queue)

    def usage(self, namespace: str, name: str) -> LocalQueueUsage | None:
        """What a LocalQueue had lately, where queues are shared by usage; None: nothing is known yet."""
        return self._queues.kueue.usage(namespace, name)

    def usage_changed(self) -> set[tuple[str, str]]:
        """Namespace and name of the LocalQueues whose usage is another since the last call."""
        ledger = self._queues.kueue.state.usage
        return ledger.take_changed() if ledger is not None else set()

    def weighted_share(self, kind: Literal["ClusterQueue", "Cohort"], name: str) -> int | None:
        """How much of what its cohort lends a ClusterQueue or Cohort has, by weight, as Kueue publishes it."""
        return published_share(self._queues.kueue, kind, name)

    def exact_share(self, kind: Literal["ClusterQueue", "Cohort"], name: str) -> float | None:
        """The same, not rounded."""
        return exact_share(self._queues.kueue, kind, name)

    def exchange(self, pod: str, other: str) -> bool:
        """Another pod of the same elastic gang leaves instead of this one, which was told to. False: they are not
        equal. Plan again after it."""
        return self._state.surplus.exchange(pod, other, self._state)

    def regrown(self) -> set[str]:
        """UIDs of elastic gangs whose `surplus_usage` is another since the last call."""
        found, self._queues.regrown = self._queues.regrown, set()
        return found

    def strangers(self, key: str, explanation: Explanation) -> tuple[str, ...]:
        """Pods of no gang that take what this one lacks, on nodes that it could use, as `Pod/namespace/name`."""
        gang = self._state.gangs.get(key)
        return strangers(self._state, gang, explanation.shortfalls) if gang is not None else ()

    def recovery(self, deadlines: Mapping[str, Deadline], now: int) -> Recovery:
        """Which incomplete gang goes back, of those that may (by UID), because it keeps another from being whole.
        Changes nothing."""
        return recovery(self._state, self._queues, deadlines, now)

    def front(self, count: int, now: int) -> list[str]:
        """Keys of the waiting gangs that are next in order."""
        return front(self._state, count, now)

    @property
    def trees(self) -> tuple[str, ...]:
        """Names of the quota trees in force."""
        return self._state.forest.trees if self._state.settings.quota else ()

    def quota_use(self) -> dict[tuple[str, str], NodeUse]:
        """By tree and node: what is allocated, what is borrowed, and by which gangs."""
        return quota_use(self._state.forest, self._state.keys)

    @property
    def cycles(self) -> int:
        """How many cycles plans took so far: over quota in queues, and over room."""
        return self._queues.kueue.planner.cycles + self._room_cycles

    @property
    def waiting(self) -> int:
        """How many gangs wait."""
        return len(self._state.waiting)

    @property
    def standing(self) -> int:
        """How many gangs wait, for room or for quota."""
        return len(self._state.waiting) + self._queues.kueue.register.waiting

    @property
    def crowd(self) -> int:
        """How many gangs wait, or hold quota of a queue."""
        return len(self._state.waiting) + len(self._queues.kueue.members)

    @property
    def reserved(self) -> Amounts:
        """What admitted gangs will still need, beyond the pods that exist."""
        return dict(self._state.ledger.total_reserved)

    @property
    def allocatable(self) -> Amounts:
        """What all nodes offer."""
        room = self._state.ledger.room
        return {resource: room.total_allocatable(resource) for resource in room.resources}

    @property
    def free_room(self) -> Amounts:
        """What was free on all nodes at the last plan, less what is planned there: a sum, whatever fits where."""
        room = self._state.ledger.room
        return {resource: room.sum_free(resource, room.alive) for resource in room.resources}

    @property
    def is_timeless(self) -> bool:
        """Is the order of all gangs that of the policy within one lane?"""
        return self._state.policy.timeless

    def order(self, gang: Gang) -> tuple[Any, ...]:
        """Its place within its lane by the policy; smallest first."""
        return self._state.policy.order(gang)

    def gang(self, key: str) -> Gang | None:
        """What is known of a gang, assumptions included."""
        return self._state.gangs.get(key)

    def key_of(self, uid: str) -> str:
        """Key of the gang with this UID; empty where none is known."""
        return self._state.keys.get(uid, "")

    def uids(self) -> list[str]:
        """Of all gangs that are known."""
        return list(self._state.keys)

    def fact_of(self, key: str) -> Gang | None:
        """A gang as it was told last, without what follows from its flavors."""
        member = self._queues.kueue.members.get(key)
        return member.gang if member is not None else self._state.gangs.get(key)

    def pods_of(self, uid: str) -> list[str]:
        """UIDs of the pods of a gang."""
        return sorted({*self._state.ledger.by_gang.get(uid, ()), *self._state.surplus.of(uid)})

    def stopping(self) -> list[Gang]:
        """Gangs that are being taken back and still hold what they had."""
        return [gang for gang in self._state.gangs.values() if gang.state == "stopping" and not is_surplus(gang.uid)]

    def leaving(self) -> list[str]:
        """UIDs of pods that elastic gangs have beyond their admission and that are on their way out."""
        state = self._state
        return [pod for pod in sorted(state.surplus.owners) if state.by_uid(surplus_uid(pod)).state == "stopping"]

    def bids(self, uid: str) -> Bids | None:
        """How an elastic gang that runs fares with what it wants beyond its admission; None: it wants nothing more."""
        return bids_of(self._state, uid)

    def surplus_usage(self, uid: str) -> dict[tuple[str, str], int]:
        """By flavor and resource: what an elastic gang is charged beyond its admission."""
        return self._queues.surplus_usage(uid, self._state)

    def facts(self) -> Iterator[Fact | QueueFact]:
        """Everything known, assumptions included: an engine fed with these decides the same."""
        yield from self._queues.current_facts()
        yield from self._state.facts()
