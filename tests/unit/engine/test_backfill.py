"""Backfill under reservation: what the front of a strict queue waits for is lent, and never delays it."""

from __future__ import annotations

import msgspec
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from shoal.engine import Engine
from shoal.engine.kueue import Terms
from shoal.engine.kueue.cycle.backfill import QueueBackfill
from shoal.engine.kueue.surplus import SurplusLedger
from shoal.engine.model import Gang, Plan
from tests.faults import proven

from .build import engine, node, pods
from .test_elastic import job, queue

SECOND = 1_000_000
replace = msgspec.structs.replace


class Shop:
    """One strict queue and a node; stores every decision at once, and lets gangs that leave go at once."""

    def __init__(self, cpu: int = 8, *, backfill: bool = True, room: int = 64, **more) -> None:
        facts = queue(cpu=cpu, strategy="StrictFIFO", backfill=backfill, **more)
        self.engine: Engine = engine(node("n", cpu=room), *facts)
        self.now = self.submitted = 0
        self.started: dict[str, int] = {}
        self.evicted: list[str] = []

    def submit(self, name: str, cpu: int, *, longest: int = 0, drainable: bool = False) -> None:
        """In the order in which they are submitted."""
        terms = Terms(longest=longest * SECOND, drainable=drainable)
        made = job(name, pods(cpu), details={"kueue": terms})
        self.submitted += 1
        self.engine.update(replace(made, created_at=self.submitted, queued_at=self.submitted))

    def end(self, name: str) -> None:
        self.engine.remove(f"Workload/default/{name}")
        self.started.pop(name, None)

    def settle(self) -> list[Plan]:
        """Plans until there is nothing to do."""
        plans = []
        for _ in range(50):
            plan = self.engine.plan(self.now * SECOND)
            if plan.is_empty:
                return plans
            plans.append(plan)
            self._store(plan)
        raise AssertionError("decisions do not come to rest")

    def _store(self, plan: Plan) -> None:
        for one in plan.turns:
            self._tell(one.gang, backfilled=False)
        for one in plan.reservations:
            known = self._tell(one.gang, cluster_queue=one.queue, backfilled=one.backfilled)
            self.engine.update(
                replace(known, state="reserved", assignment=one.assignment, admitted_at=self.now * SECOND)
            )
        for one in plan.admits:
            known = self.engine.fact_of(one.gang)
            self.engine.update(replace(known, state="admitted", assignment=one.assignment))
            self.started[known.name] = self.now
        for one in plan.preempts:
            known = self._tell(one.gang, cluster_queue="", backfilled=False)
            self.engine.update(replace(known, state="waiting", assignment=(), admitted_at=0, stopping_for=""))
            self.started.pop(known.name, None)
            self.evicted.append(known.name)

    def _tell(self, key: str, **terms) -> Gang:
        known = self.engine.fact_of(key)
        known = replace(known, details={"kueue": replace(known.details["kueue"], **terms)})
        self.engine.update(known)
        return known

    @property
    def running(self) -> set[str]:
        return set(self.started)


def blocked(**more) -> Shop:
    """Six of eight are taken for 100 seconds; the front needs all eight."""
    shop = Shop(**more)
    shop.submit("long", 6, longest=100)
    shop.settle()
    shop.now = 1
    shop.submit("front", 8)
    shop.settle()
    assert shop.running == {"long"}
    shop.now = 2
    return shop


def test_without_backfill_nothing_passes_the_front():
    shop = blocked(backfill=False)
    shop.submit("small", 2, drainable=True)
    shop.settle()
    assert shop.running == {"long"}


def test_a_drainable_gang_fills_and_leaves_when_the_front_can_start():
    shop = blocked()
    shop.submit("small", 2, drainable=True)
    assert [one.backfilled for plan in shop.settle() for one in plan.reservations] == [True]
    assert shop.running == {"long", "small"}
    shop.now = 50
    shop.end("long")
    plans = shop.settle()
    assert [(one.gang, one.preemptor, one.term) for plan in plans for one in plan.preempts] == [
        ("Workload/default/small", "Workload/default/front", "InClusterQueue")
    ]
    assert shop.running == {"front"}


def test_a_gang_that_ends_before_the_front_needs_it_fills_by_its_declared_limit():
    shop = blocked()
    shop.submit("late", 1, longest=99)
    shop.submit("timely", 1, longest=98)
    shop.submit("endless", 1)
    shop.settle()
    assert shop.running == {"long", "timely"}


def test_where_no_end_is_declared_only_drainable_gangs_fill():
    shop = Shop()
    shop.submit("long", 6)
    shop.settle()
    shop.now = 1
    shop.submit("front", 8)
    shop.submit("timely", 1, longest=5)
    shop.submit("drainable", 1, drainable=True)
    shop.settle()
    assert shop.running == {"long", "drainable"}


def test_when_its_turn_comes_it_runs_on_and_leaves_no_more():
    shop = blocked()
    shop.submit("small", 2, drainable=True)
    shop.settle()
    shop.end("front")
    plans = shop.settle()
    assert [one.gang for plan in plans for one in plan.turns] == ["Workload/default/small"]
    shop.submit("next", 8)
    shop.end("long")
    shop.settle()
    assert shop.running == {"small"} and shop.evicted == []


def test_what_fills_takes_no_more_than_is_free():
    shop = blocked()
    for number in range(5):
        shop.submit(f"small-{number}", 1, drainable=True)
    shop.settle()
    assert shop.running == {"long", "small-0", "small-1"}


def test_only_those_that_are_in_the_way_leave_the_last_in_line_first():
    shop = Shop()
    shop.submit("a", 3)
    shop.submit("b", 3)
    shop.settle()
    shop.now = 1
    shop.submit("front", 4)
    shop.settle()
    shop.now = 2
    shop.submit("early", 1, drainable=True)
    shop.now = 3
    shop.submit("late", 1, drainable=True)
    shop.settle()
    assert shop.running == {"a", "b", "early", "late"}
    shop.end("a")
    shop.settle()
    assert shop.running == {"b", "front", "early"} and shop.evicted == ["late"]


def test_room_that_is_filled_is_the_fronts_as_well():
    """Quota enough for both, nodes not."""
    shop = Shop(cpu=8, room=8)
    shop.submit("long", 6)
    shop.settle()
    shop.now = 1
    shop.submit("front", 8)
    shop.submit("small", 2, drainable=True)
    shop.settle()
    assert shop.running == {"long", "small"}
    for fact in queue(cpu=16, strategy="StrictFIFO", backfill=True):
        shop.engine.update(fact)
    shop.end("long")
    shop.settle()
    assert shop.running == {"front"} and shop.evicted == ["small"]


def test_another_engine_knows_from_the_facts_which_gangs_fill():
    shop = blocked()
    shop.submit("small", 2, drainable=True)
    shop.settle()
    after = Shop()
    for name in ("long", "front", "small"):
        after.engine.update(shop.engine.fact_of(f"Workload/default/{name}"))
    after.started, after.now = dict(shop.started), 50
    assert after.settle() == []
    after.end("long")
    after.settle()
    assert after.running == {"front"} and after.evicted == ["small"]


class Draft(msgspec.Struct, frozen=True):
    """A gang of a random history."""

    arrives: int
    cpu: int
    runs: int
    declares: int
    drainable: bool


drafts = st.builds(
    Draft,
    arrives=st.integers(0, 30),
    cpu=st.integers(1, 8),
    runs=st.integers(1, 20),
    declares=st.integers(0, 10),
    drainable=st.booleans(),
)


def ends(gangs: list[Draft], *, backfill: bool) -> dict[str, int]:
    """When each gang of a history ends. What is evicted has lost its work."""
    shop = Shop(backfill=backfill)
    found: dict[str, int] = {}
    names = {f"g{number:02}": one for number, one in enumerate(gangs)}
    for shop.now in range(0, 500):
        for name, since in list(shop.started.items()):
            if since + names[name].runs <= shop.now:
                found[name] = shop.now
                shop.end(name)
        for name, one in names.items():
            if one.arrives == shop.now:
                longest = one.runs + one.declares - 1 if one.declares else 0
                shop.submit(name, one.cpu, longest=longest, drainable=one.drainable)
        shop.settle()
        assert sum(names[name].cpu for name in shop.started) <= 8, "quota is never exceeded"
        if len(found) == len(names):
            return found
    raise AssertionError(f"not all ended: {names.keys() - found.keys()}")


def _judged_beside(self: SurplusLedger, node, wanted, records):
    """Without the protection: what fills may stay where it is in the way."""
    with self.charged(node.root(), records):
        return not node.fits(wanted), []


@proven(without=lambda patch: patch.setattr(SurplusLedger, "in_the_way", _judged_beside))
@settings(max_examples=150, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(gangs=st.lists(drafts, min_size=2, max_size=14))
def test_f640_backfill_delays_no_gang(gangs: list[Draft]):
    """F640: gangs behind the front of a strict queue run in quota that it waits for, over random histories. Holds:
    every gang ends at the same moment as without backfill, or before."""
    without, filled = ends(gangs, backfill=False), ends(gangs, backfill=True)
    assert {name: (filled[name], at) for name, at in without.items() if filled[name] > at} == {}


def test_some_gangs_end_earlier_by_it():
    gangs = [Draft(0, 6, 20, 0, False), Draft(1, 8, 5, 0, False), *[Draft(2, 1, 6, 0, True)] * 4]
    without, filled = ends(gangs, backfill=False), ends(gangs, backfill=True)
    assert sum(filled.values()) < sum(without.values()) - 20


@proven(without=lambda patch: patch.setattr(QueueBackfill, "take_turns", lambda self: iter(())))
def test_f641_a_gang_whose_turn_came_is_not_evicted_for_one_behind_it():
    """F641: a gang was started by backfill, and those ahead of it have ended since. Holds: it keeps its quota against
    gangs behind it, as if it had been started in its turn."""
    shop = blocked()
    shop.submit("small", 2, drainable=True)
    shop.settle()
    shop.end("front")
    shop.now = 3
    shop.submit("behind", 8)
    shop.settle()
    shop.end("long")
    shop.settle()
    assert shop.running == {"small"}
