"""Gangs that could start and that no plan looked at: behind one that is kept from starting, or on a flavor behind."""

from __future__ import annotations

import msgspec
import pytest

from shoal.engine.kueue import Flavor
from shoal.engine.kueue.cycle.cycle import QueueCycle
from shoal.engine.kueue.cycle.entry import Entry
from shoal.engine.kueue.cycle.planner import KEPT_FROM, QueuePlanner
from shoal.engine.kueue.facts import FlavorQuota, ResourceGroup
from shoal.engine.model import PodSet
from tests.faults import proven
from tests.unit.engine.kueue.world import CPU, World, cohort, gang, limits, queue


def _beside_a_strict_queue() -> World:
    """The strict head `large` waits for more than is left and keeps it; `wants` would borrow it; `small` would not."""
    world = World(cohort("all"), queue("a", 4, "all", strategy="StrictFIFO"), queue("b", limits(1, lending=0), "all"))
    world.tell(gang("running", "a", 2)).settle()
    world.tell(gang("large", "a", 3, priority=9), gang("wants", "b", 3, priority=5))
    world.settle()
    assert world.running() == {"running"}
    return world


def lets_no_gang_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueuePlanner, "_let_others_pass", lambda self, entries: False)


@proven(without=lets_no_gang_pass)
def test_f203_a_head_that_a_strict_queue_keeps_from_starting_lets_those_behind_it_pass() -> None:
    """F203: the head of a BestEffortFIFO queue fits, and the head of a strict queue of its cohort keeps what it needs.
    Holds: a gang behind it that needs nothing of that starts; and the head itself, once the strict one has gone."""
    world = _beside_a_strict_queue()
    world.tell(gang("small", "b", 1))
    world.settle()
    assert world.running() == {"running", "small"}
    world.finish("small", "large")
    world.settle()
    assert world.running() == {"running", "wants"}


def test_a_head_that_was_let_pass_stands_first_again_when_something_changes() -> None:
    world = _beside_a_strict_queue()
    world.tell(gang("small", "b", 1))
    world.settle()
    world.finish("running")
    world.settle()
    assert world.running() == {"large", "small"}
    world.finish("large", "small")
    world.tell(gang("late", "b", 2))
    world.settle()
    assert world.running() == {"wants", "late"}


def looks_at_all_flavors_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang that may shrink does so only on the flavors that are looked at from the first on."""
    shrink = QueueCycle._shrink

    def shrunk(self: QueueCycle, member, search):  # type: ignore[no-untyped-def]
        return None if member.flavors_remain else shrink(self, member, search)

    monkeypatch.setattr(QueueCycle, "_shrink", shrunk)


@proven(without=looks_at_all_flavors_first)
def test_f204_a_gang_that_may_shrink_starts_on_the_flavors_behind() -> None:
    """F204: a gang of two pod sets fits only if the first, made smaller, leaves the first flavor to the second. Holds:
    it starts so."""
    flavors = tuple(FlavorQuota(name, {"cpu": limits(cpu)}) for name, cpu in (("default", 9), ("spot", 2)))
    world = World(Flavor(name="spot"), queue("q", groups=(ResourceGroup(("cpu",), flavors),)))
    sets = (
        PodSet(name="helpers", count=3, min_count=1, requests={"cpu": 2 * CPU}),
        PodSet(name="workers", count=3, requests={"cpu": 3 * CPU}),
    )
    world.tell(msgspec.structs.replace(gang("mine", "q"), pod_sets=sets)).settle()
    assert world.running() == {"mine"}
    assert [(one.count, one.flavors["cpu"]) for one in world.gangs["mine"].assignment] == [(1, "spot"), (3, "default")]


def says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Entry, "passed", property(lambda self: False, lambda self, value: None))


@proven(without=says_nothing)
def test_f757_a_gang_that_a_strict_head_keeps_from_starting_is_told_so() -> None:
    """F757: a queue that was stopped runs again, and what its gang needs is kept for the head of a strict queue. Holds:
    the gang is told that, and not for ever what it was told before."""
    strict = queue("strict", limits(5, borrowing=0), "all", strategy="StrictFIFO")
    world = World(cohort("all"), strict, queue("team", 5, "all"), queue("shared", 5, "all"))
    world.tell(gang("runs", "strict", 3), gang("team-runs", "team", 10)).settle()
    world.tell(queue("team", 5, "all", stopped=True), gang("front", "strict", 3), gang("kept", "team", 1))
    told = {one.uid: one.message for one in world.plan().waiting}
    assert "is stopped" in told["uid-kept"]
    plan = world.tell(queue("team", 5, "all")).plan()
    assert not plan.reserved
    assert {one.uid: one.message for one in plan.waiting}["uid-kept"] == KEPT_FROM
