"""What would happen: a copy of the engine in which something is done, planned until nothing moves.

`Engine.explain` asks it before it says that anything would help, so that gangs ahead, evictions and the policy count as
they will. The copy is made once, at the cost of about one plan, and read back for each trial; the engine itself is
never touched. Nothing here decides: whatever is tried is thrown away.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, Protocol, TypeVar
from weakref import ReferenceType, ref

import msgspec

from shoal.engine.kueue import ClusterQueue, Cohort, Flavor, LocalQueue
from shoal.engine.kueue.facts import FlavorResource, terms_of
from shoal.engine.line.queues import QueueFact
from shoal.engine.model import Fact, Gang, Namespace, NodeFact, NodePool, Plan, PodFact, QuotaSubtree

T = TypeVar("T")
SECOND = 1_000_000
MOST_ROUNDS = 100
"""Plans after which a trial counts as not come to rest, and so as a no."""

_SHARED = (
    Gang, NodeFact, NodePool, PodFact, QuotaSubtree, Namespace, ClusterQueue, Cohort, Flavor, LocalQueue,
    FlavorResource,
)  # fmt: skip
"""Frozen: copies share them."""


class Deed(msgspec.Struct, frozen=True):
    """Something that could be done: gangs end, facts come or change."""

    ends: tuple[str, ...] = ()
    facts: tuple[Fact | QueueFact, ...] = ()


class RehearsedEngine(Protocol):
    """The part of an engine that a rehearsal uses."""

    def update(self, fact: Fact | QueueFact) -> None: ...
    def remove(self, key: str) -> None: ...
    def plan(self, now: int) -> Plan: ...
    def gang(self, key: str) -> Gang | None: ...
    def fact_of(self, key: str) -> Gang | None: ...
    def pods_of(self, uid: str) -> list[str]: ...
    def stopping(self) -> list[Gang]: ...
    def leaving(self) -> list[str]: ...


class Rehearsal:
    """Trials on one gang. `work` counts what they cost, in gangs, nodes and pods carried through a trial. `classes`: of
    those left out of a thinned world, the equals that were kept."""

    def __init__(
        self,
        engine: RehearsedEngine,
        key: str,
        now: int,
        size: int,
        budget: int,
        classes: tuple[tuple[str, ...], ...] = (),
    ) -> None:
        self.key = key
        self.classes = classes
        self.unsure = False
        """A trial proved nothing, because equals of those that started were left out."""
        self.now = now
        self.size = max(1, size)
        self.budget = budget
        self.work = 0
        self._kept: list[Any] = []
        self._image = self._copied(engine)
        self._known: dict[tuple[frozenset[str], str], bool] = {}

    @property
    def is_spent(self) -> bool:
        return self.work + self.size > self.budget

    @property
    def is_complete(self) -> bool:
        """Was every question answered so far?"""
        return not (self.is_spent or self.unsure)

    def starts(self, deed: Deed) -> bool:
        """Does the gang start, and is it still there when everything has come to rest? Once spent, always no."""
        asked = (frozenset(deed.ends), repr(deed.facts))
        known = self._known.get(asked)
        if known is None:
            if self.is_spent:
                return False
            self.work += self.size
            known = self._known[asked] = self._tried(deed)
        return known

    def _tried(self, deed: Deed) -> bool:
        engine = self._fresh()
        for key in deed.ends:
            end(engine, key)
        for fact in deed.facts:
            engine.update(fact)
        if not come_to_rest(engine, self.now):
            return False
        for keys in self.classes:
            if all((kept := engine.gang(key)) is None or has_started(kept) for key in keys):
                self.unsure = True
                return False
        gang = engine.gang(self.key)
        return gang is not None and has_started(gang)

    def _copied(self, engine: RehearsedEngine) -> bytes:
        image = io.BytesIO()
        _Writer(image, self._kept).dump(engine)
        return image.getvalue()

    def _fresh(self) -> RehearsedEngine:
        found: RehearsedEngine = _FactReader(io.BytesIO(self._image), self._kept).load()
        return found


def come_to_rest(engine: RehearsedEngine, now: int) -> bool:
    """Plan and carry out until nothing moves; False when it never does."""
    for _ in range(MOST_ROUNDS):
        now += SECOND
        if not carry_out(engine, engine.plan(now), now):
            return True
    return False


def copy_of(engine: T) -> T:
    """An engine that may be changed at will. Frozen facts are shared."""
    kept: list[Any] = []
    image = io.BytesIO()
    _Writer(image, kept).dump(engine)
    found: T = _FactReader(io.BytesIO(image.getvalue()), kept).load()
    return found


def has_started(gang: Gang) -> bool:
    """Has it got all that the engine gives? Checks of others come after quota and are theirs to answer."""
    return gang.state == "admitted" or (gang.state == "reserved" and not gang.checks_done)


def end(engine: RehearsedEngine, key: str) -> None:
    gang = engine.gang(key)
    if gang is not None:
        engine.remove(key)
        _remove_pods(engine, gang.uid)


def carry_out(engine: RehearsedEngine, plan: Plan, now: int) -> bool:
    """Do what the plan says, at once and without fail; False when there was nothing to do."""
    for reservation in plan.reservations:
        gang = engine.fact_of(reservation.gang)
        if gang is not None:
            terms = msgspec.structs.replace(terms_of(gang), cluster_queue=reservation.queue, evicted_at=None)
            _update(
                engine, gang, state="reserved", assignment=reservation.assignment, stopping_for="",
                details={**gang.details, "kueue": terms},
            )  # fmt: skip
    for admit in plan.admits:
        gang = engine.fact_of(admit.gang)
        if gang is not None:
            _update(
                engine, gang, state="admitted", admitted_at=now, seats=admit.seats, assignment=admit.assignment,
                stopping_for="",
            )  # fmt: skip
    for reseat in plan.reseats:
        gang = engine.fact_of(reseat.gang)
        if gang is not None:
            _update(engine, gang, seats=reseat.seats)
    for pod in {*engine.leaving(), *(shrink.pod for shrink in plan.shrinks)}:
        engine.remove(f"Pod/{pod}")
    leaving = {gang.key: gang.stopping_for for gang in engine.stopping()}
    leaving |= {preempt.gang: preempt.preemptor_uid for preempt in plan.preempts}
    for key, preemptor in leaving.items():
        gang = engine.fact_of(key)
        if gang is not None:
            _stop(engine, gang, preemptor, now)
    return bool(leaving) or plan.unfinished or not plan.is_empty


def _stop(engine: RehearsedEngine, gang: Gang, preemptor: str, now: int) -> None:
    """Its pods end, and it waits again."""
    details = gang.details
    if gang.dialect == "kueue":
        terms = msgspec.structs.replace(
            terms_of(gang), cluster_queue="", evicted_at=now, evicted_reason="Preempted", reclaimable={}
        )
        details = {**details, "kueue": terms}
    _update(engine, gang, state="stopping", stopping_for=preemptor)
    _remove_pods(engine, gang.uid)
    stopping = engine.fact_of(gang.key) or gang
    _update(
        engine, stopping, state="waiting", stopping_for=preemptor, seats={}, assignment=(), admitted_at=0,
        details=details,
    )  # fmt: skip


def _remove_pods(engine: RehearsedEngine, uid: str) -> None:
    for pod in engine.pods_of(uid):
        engine.remove(f"Pod/{pod}")


def _update(engine: RehearsedEngine, gang: Gang, **what: Any) -> None:
    engine.update(msgspec.structs.replace(gang, **what))


class _Writer(pickle.Pickler):
    def __init__(self, image: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(image, protocol=pickle.HIGHEST_PROTOCOL)
        self._kept = kept

    def persistent_id(self, thing: object) -> int | None:
        if not isinstance(thing, _SHARED):
            return None
        self._kept.append(thing)
        return len(self._kept) - 1

    def reducer_override(self, thing: Any) -> Any:
        """A weak reference of the engine leads to its counterpart in the copy."""
        return (ref, (thing(),)) if isinstance(thing, ReferenceType) else NotImplemented


class _FactReader(pickle.Unpickler):
    def __init__(self, image: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(image)
        self._kept = kept

    def persistent_load(self, number: int) -> Any:
        return self._kept[number]
