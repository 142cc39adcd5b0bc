"""Random worlds with deeds: what an explanation says would help is done, and less than it says, and the gang has to
start, or not to. 200 worlds here; `make test-long PART=deeds` does 5,000."""

from __future__ import annotations

from collections import Counter

import pytest

from shoal.engine import Engine
from shoal.engine import engine as engine_module
from shoal.engine.explain import helps, thinning
from shoal.engine.model import Explanation, HostPort, NewNodes
from tests.faults import proven

from .build import admitted, engine, gang, node, pods
from .deeds import judge, waiting_in
from .deeds_world import DeedsWorld

WORLDS, AT_ONCE = 200, 10


def tells_its_guesses(patch: pytest.MonkeyPatch) -> None:
    """As if nothing were ahead of the gang."""
    patch.setattr(Engine, "_with_help", lambda self, one, found, now, effort: found)


def tries_nothing_less(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(helps, "_steps", lambda most, unit: iter(()))


@pytest.mark.parametrize("first", range(0, WORLDS, AT_ONCE))
def test_what_is_said_to_help_helps_and_less_does_not(first):
    seen: Counter[str] = Counter()
    lies = [lie for seed in range(first, first + AT_ONCE) for lie in judge(seed, seen, 1)]
    assert not lies, "\n".join(lies)
    assert seen["asked"] and not seen["loops"], seen


@proven(without=tells_its_guesses)
def test_f173_what_would_help_counts_those_ahead():
    """F173: a gang asks what would help while others wait ahead of it, in random worlds of both dialects with
    preemption, cohorts and fair sharing. Holds: once that is done, it starts, although those ahead are served first."""
    seen: Counter[str] = Counter()
    lies = [lie for seed in range(1000, 1016) for lie in judge(seed, seen, 2)]
    assert not lies, "\n".join(lies)
    assert seen["ends yes"] and seen["quota yes"] and seen["nodes yes"] and seen["together yes"], seen


@proven(without=tries_nothing_less)
def test_f174_least_is_least():
    """F174: an increase of quota or a node is called the least, where others would take a part of it. Holds: with any
    less of it the gang does not start."""
    seen: Counter[str] = Counter()
    lies = [lie for seed in range(2000, 2016) for lie in judge(seed, seen, 2)]
    assert not lies, "\n".join(lies)
    assert seen["quota, no"] > 10 and seen["nodes, no"] > 10, seen


def test_most_who_ask_are_told_something_that_helps():
    helped: Counter[bool] = Counter()
    for seed in range(3000, 3030):
        world = DeedsWorld(seed)
        for key in waiting_in(world, 1):
            why = world.engine.explain(key, world.now)
            helped[_helps(why)] += 1
    assert helped[True] > 3 * helped[False], helped


def _helps(why: Explanation) -> bool:
    found = (why.release, why.least_increase, why.new_nodes, why.together)
    return why.starts_by_itself or why.reason == "bad-fact" or any(found)


def test_asking_changes_nothing():
    """An engine that was asked about everything decides as one that was not."""
    for seed in range(4000, 4005):
        asked, other = DeedsWorld(seed), DeedsWorld(seed)
        for key in sorted(asked.gangs):
            asked.engine.explain(key, asked.now)
        for world in (asked, other):
            running = sorted(key for key, one in world.gangs.items() if one.state == "admitted")
            for key in running[::2]:
                world.end(key)
            world.settle()
        assert asked.gangs == other.gangs


def test_a_gang_that_starts_by_itself_is_told_so():
    """Those evicted for it are on their way out: nothing has to be done."""
    judge_engine = engine(node("n", cpu=4), gang("old", pods(4), at=0), preemption=True)
    judge_engine.plan(1)
    judge_engine.update(gang("urgent", pods(3), priority=9, at=1))
    judge_engine.plan(2)
    why = judge_engine.explain("AppWrapper/default/urgent", 2)
    assert (why.reason, why.starts_by_itself, why.release) == ("preempting", True, ())
    assert why.message == "waits for AppWrapper/default/old to stop"


def test_several_equal_nodes_where_one_would_not_do():
    """Its pods need a host port each: however large a node is, it takes one of them."""

    judge_engine = engine(node("n", cpu=1), gang("ports", pods(3, cpu=2, host_ports=(HostPort(80),)), at=0))
    assert admitted(judge_engine.plan(1)) == []
    fresh = judge_engine.explain("AppWrapper/default/ports", 1).new_nodes
    assert (fresh.count, fresh.amounts) == (3, {"cpu": 2000})


def test_of_very_many_that_wait_a_few_of_each_kind_stand_for_all(monkeypatch):
    """What is told of a thinned world is true of the whole one."""
    monkeypatch.setattr(engine_module, "MOST_WHOLE", 0)
    monkeypatch.setattr(thinning, "KEPT", 2)
    seen: Counter[str] = Counter()
    lies = [lie for seed in range(5000, 5016) for lie in judge(seed, seen, 1)]
    assert not lies, "\n".join(lies)
    assert seen["quota yes"] and seen["ends yes"], seen


def test_an_explanation_is_bounded_however_many_wait():
    """The front learns what would help; one behind thousands of equals learns its position alone."""
    line = [gang(f"w{number:05}", pods(2), at=number) for number in range(5_000)]
    judge_engine = engine(node("n", cpu=3), *line)
    judge_engine.plan(6_000)
    front = judge_engine.explain("AppWrapper/default/w00001", 6_000)
    assert front.explored and front.release == ("AppWrapper/default/w00000",)
    assert front.new_nodes == NewNodes(amounts={"cpu": 1000})
    last = judge_engine.explain("AppWrapper/default/w04999", 6_000)
    assert (last.explored, last.position, last.release, last.new_nodes) == (False, 4_999, (), None)


def test_nothing_is_said_beyond_the_effort():
    judge_engine = engine(node("n", cpu=4), gang("runs", pods(4)), gang("waits", pods(1), at=1))
    judge_engine.plan(2)
    assert judge_engine.explain("AppWrapper/default/waits", 2).release == ("AppWrapper/default/runs",)
    short = judge_engine.explain("AppWrapper/default/waits", 2, effort=1)
    assert (short.explored, short.release, short.least_increase) == (False, (), None)
    assert short.message == "1 cpu needed, 0 free"
