"""What would help a gang, were it the only one that waits: applied, it admits the gang; a little less does not.

These guesses are where the search for what would help begins; `test_deeds.py` judges what is told in the end.
"""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine import Engine
from shoal.engine.explain.why import explain as guess
from shoal.engine.model import Gang, NodeFact, QuotaIncrease, QuotaSubtree

from .build import SECOND, admitted, engine, gang, node, pods, quota, subtree
from .test_properties import quota_world

SEEDS = st.integers(0, 10**9)


def told_alone(world_engine: Engine, wanting: Gang, *more: object, without: frozenset[str] = frozenset()) -> list[str]:
    """Would a plan start this gang, were it the only one that waits? In a rebuilt engine, with what is added."""
    again = Engine(msgspec.structs.replace(world_engine._state.settings, preemption=False))
    for fact in world_engine.facts():
        if isinstance(fact, Gang) and (fact.key in without or (fact.state == "waiting" and fact.key != wanting.key)):
            continue
        again.update(fact)
    for fact in more:
        again.update(fact)
    return [admit.gang for admit in again.plan(10**6 * SECOND).admits]


def raised(world_engine: Engine, increase: QuotaIncrease, less: str = "") -> QuotaSubtree:
    """The subtree with the increased node in it; `less`: by one unit of that resource less."""
    _, _, name = increase.place.partition("/")
    for fact in world_engine.facts():
        if isinstance(fact, QuotaSubtree) and any(entry.name == name for entry in fact.nodes):
            nodes = []
            for entry in fact.nodes:
                more = (
                    {key: value - (key == less) for key, value in increase.amounts.items()}
                    if entry.name == name
                    else {}
                )
                grown = {key: entry.quota.get(key, 0) + more.get(key, 0) for key in entry.quota.keys() | more.keys()}
                nodes.append(msgspec.structs.replace(entry, quota=grown))
            return msgspec.structs.replace(fact, nodes=tuple(nodes))
    raise AssertionError(name)


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_the_least_increase_of_a_quota_admits_the_gang_and_no_less_does(seed):
    world = quota_world(seed)
    for _ in range(3):
        world.add_node()
    for _ in range(20):
        made = world.submit(labels={"team": world.dice.choice(["a", "b", "default"])})
        assert made.supply == "fit"
        world.plan()
    for waiting in [one for one in world.gangs.values() if one.state == "waiting"][:4]:
        why = guess(world.engine._state, waiting.key, world.now)
        increase = why.least_increase
        if increase is None or increase.place == "nodes":
            continue
        assert waiting.key in told_alone(world.engine, waiting, raised(world.engine, increase)), increase
        for resource in increase.amounts:
            fewer = raised(world.engine, increase, less=resource)
            assert waiting.key not in told_alone(world.engine, waiting, fewer), (increase, resource)


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_those_listed_end_and_the_gang_starts(seed):
    """The shortest list: enough as it is, and not one of them is there for nothing."""
    world = quota_world(seed)
    for _ in range(20):
        world.submit(labels={"team": world.dice.choice(["a", "b", "default"])})
        world.plan()
    for waiting in [one for one in world.gangs.values() if one.state == "waiting"][:4]:
        why = guess(world.engine._state, waiting.key, world.now)
        if not why.release:
            continue
        assert waiting.key in told_alone(world.engine, waiting, without=frozenset(why.release))
        for spared in why.release:
            kept = frozenset(why.release) - {spared}
            assert waiting.key not in told_alone(world.engine, waiting, without=kept)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_the_least_node_that_would_help(nodes, count, cpu):
    judge = engine(*(node(f"n{n}", cpu=size) for n, size in enumerate(nodes)), gang("g", pods(count, cpu=cpu)))
    if admitted(judge.plan(1)):
        return
    increase = judge.explain("AppWrapper/default/g", 1).least_increase
    assert increase is not None and increase.place == "nodes"
    assert increase.amounts == {"cpu": (count - sum(size // cpu for size in nodes)) * cpu * 1000}
    short = NodeFact(name="short", allocatable={"cpu": increase.amounts["cpu"] - 1})
    judge.update(short)
    assert not admitted(judge.plan(2))
    judge.update(msgspec.structs.replace(short, allocatable=increase.amounts))
    assert admitted(judge.plan(3)) == ["g"]


def test_where_nodes_are_full_too_no_quota_alone_would_help():
    trees = subtree("team", "", quota("root", cpu=4)), subtree("team", "root", quota("a", cpu=4))
    first, second = (gang(name, pods(4), labels={"team": "a"}, at=at) for at, name in enumerate(("first", "second")))
    judge = engine(node("n", cpu=4), *trees, first, second, quota=True)
    assert admitted(judge.plan(SECOND)) == ["first"]
    why = judge.explain("AppWrapper/default/second", SECOND)
    assert why.shortfalls[0].kind == "quota" and why.least_increase is None
    assert why.release == ("AppWrapper/default/first",), "its end would free both"
    judge.update(node("m", cpu=4))
    judge.plan(2 * SECOND)
    found = judge.explain("AppWrapper/default/second", 2 * SECOND).least_increase
    assert found == QuotaIncrease("team/root", {"cpu": 4000})
