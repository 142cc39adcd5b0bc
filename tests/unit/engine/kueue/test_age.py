"""Where a queue lets older gangs evict newer ones of equal priority, gangs of one shape do not all get one answer."""

from __future__ import annotations

from shoal.engine.kueue import Terms
from tests.unit.engine.kueue.world import World, gang, queue


def running_and_waiting() -> World:
    """`newcomer` runs since moment 5, and `young` of moment 7 cannot evict it."""
    world = World(queue("q", 4, within="LowerOrNewerEqualPriority"), gang("newcomer", "q", 3, at=5))
    world.settle()
    world.tell(gang("young", "q", 3, at=7))
    world.settle()
    assert world.running() == {"newcomer"} and not world.evictions
    return world


def test_an_elder_gang_of_a_shape_that_was_set_aside_is_looked_at():
    world = running_and_waiting()
    world.tell(gang("elder", "q", 3, at=3))
    world.settle()
    assert world.evictions == [("elder", "newcomer")]
    assert world.running() == {"elder"}


def test_an_elder_gang_that_backed_off_is_looked_at_when_it_returns():
    world = running_and_waiting()
    back = world.now + 10_000_000
    world.tell(gang("elder", "q", 3, at=3, details={"kueue": Terms(requeue_at=back)}))
    world.settle()
    assert not world.evictions, "it backs off"
    world.now = back
    world.settle()
    assert world.evictions == [("elder", "newcomer")]


def test_a_younger_gang_joins_those_set_aside():
    world = running_and_waiting()
    world.tell(gang("younger", "q", 3, at=8))
    world.settle()
    assert not world.evictions
    assert {one.gang.name for one in world.kueue.state.records["q"].waiting.inadmissible()} == {"young", "younger"}
