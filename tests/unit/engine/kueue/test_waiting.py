"""Gangs that wait for one queue: order, setting aside by shape, calling back only those that may find enough."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.kueue import Flavor, FlavorResource, KueueSettings
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import FlavorQuota, Limits, ResourceGroup
from shoal.engine.kueue.index.waiting import WaitingIndex
from shoal.engine.kueue.index.waits_for import QuotaPlaces, Reachable, WaitsFor
from tests.unit.engine.kueue.world import CPU, gang

PLACE = FlavorResource("default", "cpu")
GROUPS = {"cpu": ResourceGroup(("cpu",), (FlavorQuota("default", {"cpu": Limits(100 * CPU)}),))}


class Supply:
    """A survey with so many cpus at the one place there is; counts how often it was asked about a gang."""

    def __init__(self, cpus: int) -> None:
        self.cpus = cpus
        self.asked = 0
        self.known_places: dict[object, QuotaPlaces] = {}

    def within(self, at_places: QuotaPlaces, priority: int) -> tuple[int, int] | None:
        return self.cpus * CPU, self.cpus * CPU

    def may_fit(self, waits_for: WaitsFor, priority: int) -> bool:
        self.asked += 1
        return waits_for.together[0] <= self.cpus * CPU

    def waits_for(self, member: QueueMember) -> WaitsFor:
        return WaitsFor(member, GROUPS, {"default": Flavor(name="default")}, KueueSettings(), self.known_places)


def member(name: str, cpu: int = 1, *, priority: int = 0, at: int = 0) -> QueueMember:
    return QueueMember(gang(name, "q", cpu, priority=priority, at=at), "q")


def filled(*members: QueueMember, strict: bool = False) -> WaitingIndex:
    waiting = WaitingIndex(strict=strict)
    for one in members:
        waiting.push(one)
    return waiting


def popped(waiting: WaitingIndex, survey: Supply | None = None) -> str:
    head = waiting.pop(survey)
    return head.gang.name if head is not None else ""


def test_priority_then_age_then_uid():
    waiting = filled(member("b", at=1), member("a", at=1), member("late", at=2), member("urgent", priority=9, at=9))
    assert [popped(waiting) for _ in range(5)] == ["urgent", "a", "b", "late", ""]


def test_the_sticky_one_goes_first_whatever_its_place():
    waiting = filled(member("first", at=1), member("sticky", 50, at=9))
    waiting.sticky = "uid-sticky"
    assert popped(waiting, Supply(1)) == "sticky"


def test_a_shape_that_failed_is_set_aside_whole_and_late_comers_join_it():
    waiting = filled(member("one", 4, at=1), member("two", 4, at=2), member("small", 1, at=3))
    head = waiting.pop(None)
    assert head is not None and head.gang.name == "one"
    waiting.push(head)
    waiting.set_inadmissible(head)
    waiting.push(member("three", 4, at=4))
    assert [one.gang.name for one in waiting.inadmissible()] == ["one", "two", "three"]
    assert popped(waiting) == "small" and popped(waiting) == ""
    waiting.requeue()
    assert popped(waiting) == "one", "called back, in order"


def test_those_without_hope_take_up_no_turn():
    waiting = filled(member("huge", 50, at=1), member("large", 9, at=2), member("small", 2, at=3))
    assert popped(waiting, Supply(3)) == "small"
    assert sorted(one.gang.name for one in waiting.inadmissible()) == ["huge", "large"]


def test_a_call_reaches_only_gangs_that_may_find_enough():
    waiting = filled(*(member(f"g{size:02}", size, at=size) for size in range(1, 40)))
    assert popped(waiting, Supply(0)) == ""
    waiting.requeue(survey=Supply(3))
    supply = Supply(3)
    assert [popped(waiting, supply) for _ in range(4)] == ["g01", "g02", "g03", ""]
    assert supply.asked <= 6, "the other 36 are not looked at"


def test_what_could_be_had_shrinks_before_the_turn_comes():
    waiting = filled(member("large", 5, at=1), member("small", 2, at=2))
    assert popped(waiting, Supply(0)) == ""
    waiting.requeue(survey=Supply(9))
    assert popped(waiting, Supply(3)) == "small"
    waiting.requeue(survey=Supply(9))
    assert popped(waiting, Supply(9)) == "large"


def test_without_a_survey_what_was_known_of_needs_is_void():
    waiting = filled(member("large", 5, at=1))
    assert popped(waiting, Supply(0)) == ""
    waiting.requeue()
    assert popped(waiting) == "large"


def test_a_head_that_comes_back_finds_what_was_known_of_its_shape():
    waiting = filled(member("sole", 5, at=1))
    head = waiting.pop(Supply(9))
    assert head is not None
    waiting.push(head)
    assert popped(waiting, Supply(2)) == "", "it needs five"
    head = waiting.pop(None)
    assert head is None
    waiting.requeue(survey=Supply(5))
    head = waiting.pop(Supply(5))
    assert head is not None
    waiting.gone(head)
    assert len(waiting) == 0 and not waiting._shapes and popped(waiting, Supply(9)) == ""


def test_a_gang_for_which_quota_is_kept_is_the_head_whatever_was_found_of_its_shape():
    waiting = WaitingIndex(strict=False)
    for one in (member("kept", cpu=5), member("other", cpu=1)):
        waiting.push(one)
    head = waiting.pop(Supply(1), first="uid-kept")
    assert head is not None and head.gang.name == "kept"
    waiting.push(head)
    waiting.set_inadmissible(head)
    assert waiting.pop(Supply(1), first="uid-kept") is head
    assert waiting.pop(Supply(1)).gang.name == "other"


def test_those_set_aside_alone_stay_when_told_so():
    waiting = filled(member("awake", at=2))
    waiting.push(member("asleep", at=1), inadmissible=True)
    waiting.requeue(stays={"uid-asleep"}, survey=Supply(9))
    assert popped(waiting, Supply(9)) == "awake" and popped(waiting, Supply(9)) == ""
    waiting.wake("uid-asleep")
    assert popped(waiting, Supply(9)) == "asleep"


def test_everyone_is_listed_in_order_set_aside_or_not():
    waiting = filled(member("b", 9, at=2), member("a", 1, at=1))
    waiting.pop(Supply(0))
    assert [one.gang.name for one in waiting.everyone()] == ["a", "b"]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9))
def test_the_head_is_always_the_first_gang_that_finds_enough(seed):
    """Against the plainest answer there is: sort all who wait and take the first that fits."""
    chance = random.Random(seed)
    waiting, known = WaitingIndex(strict=False), {}
    for number in range(60):
        supply = Supply(chance.randint(0, 8))
        match chance.randrange(5):
            case 0 | 1:
                one = member(f"g{number}", chance.randint(1, 8), priority=chance.choice((0, 0, 5)), at=number % 7)
                known[one.uid] = one
                waiting.push(one)
            case 2 if known:
                uid = chance.choice(sorted(known))
                del known[uid]
                waiting.discard(uid)
            case _:
                waiting.requeue(survey=supply)
                fitting = [one for one in known.values() if one.demands[0].total(1)["cpu"] <= supply.cpus * CPU]
                expected = min(fitting, key=lambda one: one.order, default=None)
                head = waiting.pop(supply)
                assert (head.uid if head else "") == (expected.uid if expected else "")
                if head is not None and chance.random() < 0.5:
                    waiting.push(head)
                elif head is not None:
                    del known[head.uid]
                    waiting.gone(head)
        assert len(waiting) == len(known)


@pytest.mark.parametrize(("cpu", "count", "free", "fits"), [(2, 3, 6, True), (2, 3, 5, False), (9, 0, 0, True)])
def test_a_wish_is_granted_exactly_when_there_is_enough(cpu, count, free, fits):
    one = QueueMember(gang("g", "q", cpu, count=count), "q")
    waits_for = Supply(free).waits_for(one)
    there = Reachable((free * CPU,), (free * CPU,), None, (), (free * CPU,))
    assert (there.tempts(waits_for) and there.allows(waits_for)) is fits
