"""Preemptors and waiting gangs that are edited, moved or overtaken while others leave for them."""

from __future__ import annotations

import msgspec
import pytest

from shoal.engine.kueue import Flavor, KueueSettings, Terms
from shoal.engine.kueue.cycle import register
from shoal.engine.kueue.cycle.planner import QueuePlanner
from shoal.engine.kueue.cycle.state import QueueState
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import FlavorQuota, Limits, ResourceGroup
from shoal.engine.kueue.index import waiting
from shoal.engine.kueue.index.waits_for import QuotaPlaces, WaitsFor
from shoal.engine.model import PodSetAssignment
from tests.faults import proven
from tests.unit.engine.kueue.world import CPU, World, cohort, gang, queue

GROUPS = {"cpu": ResourceGroup(("cpu",), (FlavorQuota("default", {"cpu": Limits(100 * CPU)}),))}


def keeps_the_front(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang that once evicted others stays the head of a strict queue."""
    monkeypatch.setattr(QueuePlanner, "_make_way", lambda self, record, member: None)


@proven(without=keeps_the_front)
def test_f147_a_preemptor_for_which_no_gang_leaves_any_more_makes_way_in_a_strict_queue() -> None:
    """F147: the quota of a strict queue is cut while a victim leaves for a preemptor that then no longer fits. Holds:
    the gang that is first by priority is the head again, and starts."""
    world = World(
        queue("q", 4, within="LowerPriority", strategy="StrictFIFO"),
        gang("victim", "q", 4),
    )
    world.settle()
    world.tell(gang("large", "q", 4, priority=1))
    world.plan()
    assert world.evictions == [("large", "victim")]
    world.tell(queue("q", 2, within="LowerPriority", strategy="StrictFIFO"), gang("first", "q", 1, priority=9))
    world.settle()
    assert world.running() == {"first"}


class Survey:
    """There is enough for every gang. A queue need not ask it often."""

    def __init__(self) -> None:
        self.asked = 0
        self.known_places: dict[object, QuotaPlaces] = {}

    def within(self, at_places: QuotaPlaces, priority: int) -> tuple[int, int] | None:
        return None

    def may_fit(self, waits_for: WaitsFor, priority: int) -> bool:
        return True

    def waits_for(self, member: QueueMember) -> WaitsFor:
        self.asked += 1
        assert self.asked < 100, "it asks for ever"
        return WaitsFor(member, GROUPS, {"default": Flavor(name="default")}, KueueSettings(), self.known_places)


def goes_by_its_place_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry of a gang counts as long as the gang has that place in line, whatever it asks for now."""
    monkeypatch.setattr(waiting, "_stands_there", lambda member, shape, order: member.order == order)
    monkeypatch.setattr(waiting.WaitingIndex, "discard", _discard)


def _discard(self: waiting.WaitingIndex, uid: str) -> None:
    member = self._members.pop(uid)
    self._inadmissible.discard(uid)
    shape = self._shapes[member.shape]
    shape.size -= 1
    if not shape.size:
        self._forget(member.shape)


@proven(without=goes_by_its_place_alone)
def test_f148_a_waiting_gang_is_edited_beside_others_of_its_former_shape() -> None:
    """F148: one of several equal waiting gangs is edited and keeps its place. Holds: the plan ends, and each is tried
    once, in order."""
    line, survey = waiting.WaitingIndex(strict=False), Survey()
    for name in ("one", "two"):
        line.push(QueueMember(gang(name, "q", 2), "q"))
    line.discard("uid-one")
    line.push(QueueMember(gang("one", "q", 3), "q"))
    heads = [line.pop(survey), line.pop(survey), line.pop(survey)]
    assert [head.gang.name for head in heads if head is not None] == ["one", "two"]


def goes_by_its_shape_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room that others leave for a gang stays kept when it moves to another queue."""
    monkeypatch.setattr(register, "_asks_the_same", lambda old, member: old.shape == member.shape)


@proven(without=goes_by_its_shape_alone)
def test_f149_a_preemptor_moves_to_another_queue_while_its_victim_leaves() -> None:
    """F149: a gang for which another leaves is moved to another queue. Holds: nothing is kept for it where it was, and
    every queue is charged what its gangs have."""
    world = World(
        cohort("team"),
        queue("here", 4, "team", within="LowerPriority"),
        queue("there", 4, "team"),
        gang("victim", "here", 4),
        gang("guest", "there", 4),
    )
    world.settle()
    mover = gang("mover", "here", 4, priority=1)
    world.tell(mover)
    world.plan()
    assert world.evictions == [("mover", "victim")]
    world.tell(msgspec.structs.replace(mover, queue="there"))
    world.plan()
    assert not world.kueue.state.rooms
    assert (world.used("here"), world.used("there")) == (4, 4)
    world.finish("guest")
    world.settle()
    assert world.running() == {"mover", "victim"}
    assert (world.used("here"), world.used("there")) == (4, 4)


def keeps_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quota that is kept for a preemptor stays so when the facts say that it has quota, or others are not called."""
    monkeypatch.setattr(QueueState, "give_up_room", lambda self, uid: None)


@proven(without=keeps_what_is_kept)
def test_f202_a_preemptor_has_quota_by_a_write_that_was_not_seen() -> None:
    """F202: a gang waits for its victim to leave when it turns out that an earlier reservation of it was stored. Holds:
    nothing is kept for it any more, and a gang in another queue that fits beside it starts."""
    world = World(cohort("all"), queue("a", 2, "all", reclaim="Any"), queue("b", 2, "all"))
    world.tell(gang("victim", "b", 3)).settle()
    preemptor = gang("preemptor", "a", 2)
    world.tell(preemptor)
    world.plan()
    assert world.evictions == [("preemptor", "victim")]
    world.let_go()
    world.finish("victim")
    given = PodSetAssignment(name="main", count=1, flavors={"cpu": "default"}, usage={"cpu": 2 * CPU})
    terms = Terms(cluster_queue="a")
    world.tell(msgspec.structs.replace(preemptor, state="admitted", assignment=(given,), details={"kueue": terms}))
    world.tell(gang("other", "b", 2)).settle()
    assert world.running() == {"preemptor", "other"}
    assert not world.kueue.state.rooms


def test_gangs_that_wait_for_what_was_kept_are_called_when_it_is_given_up() -> None:
    """Quota of the first victim is free, and kept for the preemptor until the second has left; then that one goes."""
    world = World(cohort("all"), queue("a", 4, "all", reclaim="Any"), queue("b", 0, "all"), queue("c", 0, "all"))
    world.tell(gang("first", "b", 2), gang("second", "b", 2)).settle()
    world.tell(gang("preemptor", "a", 4))
    world.plan()
    world.let_go("first")
    world.finish("first")
    world.tell(gang("other", "c", 1))
    world.plan()
    assert world.running() == {"second"}
    world.finish("preemptor")
    world.plan()
    assert world.running() == {"second", "other"}


def test_a_victim_that_comes_to_another_turn_calls_those_who_found_none() -> None:
    """Of two borrowers the one admitted last goes first, and only one may be taken: the small one is not enough."""
    world = World(cohort("all"), queue("a", 4, "all", reclaim="Any"), queue("b", 3, "all"), fair_sharing=True)
    for one in (gang("large", "b", 3), gang("small", "b", 2), gang("own", "a", 2), gang("waits", "a", 3)):
        world.tell(one).settle()
    assert world.running() == {"large", "small", "own"}
    world.tell(msgspec.structs.replace(world.gangs["large"], admitted_at=world.now))
    world.settle()
    assert world.running() == {"small", "own", "waits"}
