"""Nodes that can still come: asked for whole or not at all, never booked twice, never started on before they exist."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine import Engine, EngineSettings
from shoal.engine.model import Gang, NodeFact, NodePool, Obtain, Plan, Taint, Toleration

from .build import SECOND, admitted, engine, gang, held, node, pods, preempted, quota, requests, subtree, why


def pool(name: str, count: int, cpu: int = 4, gpu: int = 0, **more: object) -> NodePool:
    return NodePool(name=name, obtainable=count, allocatable={"pods": 110, **requests(cpu, "32Gi", gpu)}, **more)


def asked(plan: Plan) -> dict[str, dict[str, int]]:
    return {one.gang.rsplit("/", 1)[1]: one.nodes for one in plan.obtains}


def come(one: Obtain, pools: dict[str, NodePool]) -> list[NodeFact]:
    """The nodes of a request appear."""
    made = []
    for name, count in one.nodes.items():
        for number in range(count):
            called = f"{name}-{one.uid}-{number}"
            shape = pools[name]
            labels = {**shape.labels, "kubernetes.io/hostname": called}
            told = {"labels": labels, "taints": shape.taints, "allocatable": shape.allocatable}
            made.append(NodeFact(name=called, held_for=one.uid, **told))
    return made


def test_a_gang_without_room_asks_for_the_fewest_nodes_that_make_it_fit():
    judge = engine(node("n", cpu=4), pool("more", 5), gang("wide", pods(4, cpu=3)))
    plan = judge.plan(1)
    assert admitted(plan) == [] and asked(plan) == {"wide": {"more": 3}}, "one pod goes on the node that exists"
    assert plan.obtains[0].pod_sets == (("main", 3),)
    assert held(plan) == {"wide": "obtaining"}
    assert why(plan, "wide") == "there is no room for it now; waits for 3 node(s) of pool more to come"
    assert judge.plan(2).is_empty, "asked once"
    assert judge.explain("AppWrapper/default/wide", 2).message == why(plan, "wide")


def test_where_there_is_room_nothing_is_asked_for():
    plan = engine(node("n", cpu=4), pool("more", 5), gang("small")).plan(1)
    assert admitted(plan) == ["small"] and asked(plan) == {}


def test_whole_or_nothing():
    plan = engine(pool("more", 2), gang("wide", pods(3, cpu=3))).plan(1)
    assert asked(plan) == {} and held(plan) == {"wide": "resources"}


def test_nothing_starts_before_all_nodes_are_there_and_no_other_gang_takes_the_first_of_them():
    judge = engine(pool("more", 2), gang("wide", pods(2, cpu=4), at=1), gang("small", pods(1, cpu=4), at=2))
    assert asked(judge.plan(SECOND)) == {"wide": {"more": 2}}, "nothing is left for the small one"
    judge.update(node("more-0", cpu=4))
    judge.update(pool("more", 1))
    assert admitted(judge.plan(2 * SECOND)) == []
    judge.update(node("more-1", cpu=4))
    judge.update(pool("more", 0))
    assert admitted(judge.plan(3 * SECOND)) == ["wide"]


def test_nodes_that_came_are_not_waited_for():
    shape = pool("more", 5, cpu=4, labels={"pool": "more"})
    judge = engine(shape, gang("wide", pods(3, cpu=3)))
    plan = judge.plan(1)
    first, second, third = come(plan.obtains[0], {"more": shape})
    judge.update(first)
    waiting = "there is no room for it now; waits for 2 node(s) of pool more to come"
    assert why(judge.plan(2), "wide") == waiting
    assert judge.explain("AppWrapper/default/wide", 2).message == waiting
    judge.update(second)
    judge.update(msgspec.structs.replace(third, unschedulable=True))
    assert why(judge.plan(3), "wide").startswith("the requested nodes have joined")
    judge.update(third)
    assert admitted(judge.plan(4)) == ["wide"]


def test_room_that_exists_is_kept_for_the_gang_that_asked():
    judge = engine(node("n", cpu=4), pool("more", 1), gang("wide", pods(2, cpu=4), at=1))
    assert asked(judge.plan(SECOND)) == {"wide": {"more": 1}}
    judge.update(gang("late", pods(1, cpu=4), at=2, priority=9))
    plan = judge.plan(2 * SECOND)
    assert admitted(plan) == [] and asked(plan) == {}, "or the node that comes would not be enough"


def test_two_gangs_never_book_the_same_nodes():
    judge = engine(pool("more", 3), *(gang(f"g{n}", pods(2, cpu=4), at=n) for n in range(2)))
    assert asked(judge.plan(SECOND)) == {"g0": {"more": 2}}
    judge.update(pool("more", 4))
    assert asked(judge.plan(2 * SECOND)) == {"g1": {"more": 2}}


def test_a_request_that_came_to_nothing_gives_its_nodes_back():
    first, second = gang("first", pods(2, cpu=4), at=1), gang("second", pods(2, cpu=4), at=2)
    judge = engine(pool("more", 2), first, second)
    assert asked(judge.plan(SECOND)) == {"first": {"more": 2}}
    judge.update(msgspec.structs.replace(first, obtaining={}, may_obtain=False))
    assert asked(judge.plan(2 * SECOND)) == {"second": {"more": 2}}
    judge.remove("AppWrapper/default/second")
    assert asked(judge.plan(3 * SECOND)) == {}, "the first one backs off"
    judge.update(first)
    assert asked(judge.plan(4 * SECOND)) == {"first": {"more": 2}}


def test_only_pools_whose_nodes_the_pods_may_use():
    spot = pool("a-spot", 9, taints=(Taint("spot"),))
    zoned = pool("b-zoned", 9, labels={"zone": "east"})
    wish = {"node_selector": {"zone": "east"}}
    assert asked(engine(spot, zoned, gang("g", pods(1, **wish))).plan(1)) == {"g": {"b-zoned": 1}}
    tolerant = pods(1, tolerations=(Toleration("spot", "Exists"),))
    assert asked(engine(spot, gang("g", tolerant)).plan(1)) == {"g": {"a-spot": 1}}
    assert asked(engine(spot, gang("g")).plan(1)) == {}


def test_one_pool_if_one_can_do_it_with_the_fewest_nodes_else_several():
    offered = [pool("large", 2, cpu=6), pool("small", 9, cpu=3)]
    assert asked(engine(*offered, gang("g", pods(3, cpu=2))).plan(1)) == {"g": {"large": 1}}
    assert asked(engine(*offered, gang("g", pods(9, cpu=2))).plan(1)) == {"g": {"small": 9}}
    assert asked(engine(*offered, gang("g", pods(12, cpu=2))).plan(1)) == {"g": {"large": 1, "small": 9}}


def test_accelerated_nodes_are_asked_for_only_by_those_who_need_them():
    offered = [pool("gpu", 5, cpu=8, gpu=4), pool("plain", 5, cpu=8)]
    plan = engine(*offered, gang("g", pods(1, cpu=2, name="head"), pods(2, cpu=2, gpu=4, name="worker"))).plan(1)
    assert asked(plan) == {"g": {"gpu": 2}}, "the head finds room beside a worker"
    assert asked(engine(*offered, gang("g", pods(2, cpu=8))).plan(1)) == {"g": {"plain": 2}}


def test_pods_that_keep_apart_get_a_node_each():
    apart = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "ray"}}}
            ]
        }
    }
    plan = engine(pool("more", 9, cpu=8), gang("g", pods(3, affinity=apart, labels={"app": "ray"}))).plan(1)
    assert asked(plan) == {"g": {"more": 3}}


def test_new_nodes_are_asked_for_before_anybody_is_stopped():
    judge = engine(node("n", cpu=4), pool("more", 1), gang("low", pods(1, cpu=4), at=1), preemption=True)
    assert admitted(judge.plan(SECOND)) == ["low"]
    judge.update(gang("high", pods(1, cpu=4), at=2, priority=5))
    plan = judge.plan(2 * SECOND)
    assert preempted(plan) == [] and asked(plan) == {"high": {"more": 1}}
    judge.update(gang("higher", pods(1, cpu=4), at=3, priority=9))
    assert preempted(judge.plan(3 * SECOND)) == ["low"], "the pool is spoken for"


def test_quota_is_asked_first_and_kept_while_nodes_come():
    tree = subtree("team", "nil", quota("root", cpu=4), key="a"), subtree("team", "root", quota("blue", cpu=4), key="b")
    blue = {"labels": {"team": "blue"}}
    first, second = gang("first", pods(1, cpu=4), at=1, **blue), gang("second", pods(1, cpu=4), at=2, **blue)
    judge = engine(*tree, pool("more", 5), first, second, quota=True)
    plan = judge.plan(SECOND)
    assert asked(plan) == {"first": {"more": 1}} and held(plan)["second"] == "quota"
    again = Engine(judge._state.settings)
    for fact in judge.facts():
        again.update(fact)
    assert asked(again.plan(2 * SECOND)) == {} and asked(judge.plan(2 * SECOND)) == {}
    judge.update(node("new", cpu=4))
    assert admitted(judge.plan(3 * SECOND)) == ["first"]


def test_who_needs_quota_of_borrowers_and_new_nodes_asks_for_the_nodes_first():
    """No gang is stopped for a gang that could not start anyway; once the nodes are there, the borrower leaves."""
    judge = Engine(EngineSettings(quota=True, preemption=True))
    judge.update(subtree("team", "", quota("root", cpu=8, memory="64Gi")))
    judge.update(subtree("team", "root", quota("a", cpu=4, memory="32Gi"), quota("b", cpu=4, memory="32Gi")))
    judge.update(node("n", cpu=4))
    judge.update(gang("borrower", pods(2, cpu=2), at=1, labels={"team": "b"}))
    assert admitted(judge.plan(SECOND)) == ["borrower"]
    judge.update(node("m", cpu=3))
    judge.update(gang("other", pods(1, cpu=3), at=2, labels={"team": "b"}))
    assert admitted(judge.plan(2 * SECOND)) == ["other"], "b borrows from a"
    judge.update(pool("more", 3))
    judge.update(gang("owner", pods(1, cpu=4), at=3, labels={"team": "a"}))
    plan = judge.plan(3 * SECOND)
    assert preempted(plan) == [] and asked(plan) == {"owner": {"more": 1}}
    for fact in come(plan.obtains[0], {"more": pool("more", 3)}):
        judge.update(fact)
    judge.update(pool("more", 2))
    plan = judge.plan(4 * SECOND)
    assert preempted(plan) == ["other"] and held(plan)["owner"] == "preempting"
    judge.remove("AppWrapper/default/other")
    assert admitted(judge.plan(5 * SECOND)) == ["owner"]


def test_a_bad_pool_is_named_and_adds_nothing():
    plan = engine(NodePool(name="odd", obtainable=-1, allocatable={"cpu": 4000}), gang("g")).plan(1)
    assert asked(plan) == {} and plan.warnings == ("NodePool/odd offers -1 nodes; it adds nothing",)


def test_quota_alone_and_sums_alone_ask_for_nothing():
    assert admitted(engine(pool("more", 5), gang("g", supply="off")).plan(1)) == ["g"]
    assert asked(engine(pool("more", 5), gang("g", supply="aggregate")).plan(1)) == {}


def test_a_node_that_came_for_a_gang_is_for_no_other_while_it_asks():
    first, second = gang("first", pods(2, cpu=4), at=1), gang("second", pods(1, cpu=4), at=2)
    judge = engine(pool("more", 3), first, second)
    assert asked(judge.plan(SECOND)) == {"first": {"more": 2}, "second": {"more": 1}}
    judge.update(node("x", cpu=4, held_for="uid-second"))
    assert admitted(judge.plan(2 * SECOND)) == ["second"], "the first one asked for others"
    judge.update(node("y", cpu=4, held_for="uid-first"))
    judge.update(gang("third", pods(1, cpu=4), at=3, priority=9, may_obtain=False))
    assert admitted(judge.plan(3 * SECOND)) == []
    assert sorted(fact.name for fact in judge.facts() if isinstance(fact, NodeFact)) == ["x", "y"]
    judge.remove("AppWrapper/default/first")
    assert admitted(judge.plan(4 * SECOND)) == ["third"], "no gang asks any more"


def test_thinking_of_nodes_leaves_no_trace():
    """What the room knew before is what it knows afterwards: names, sums, versions, which gangs a change helped."""
    judge = engine(node("n", cpu=4), gang("g", pods(9, cpu=4)))
    judge.plan(1)
    room = judge._state.ledger.room
    before = (room.version, room.around.version, room.node_count, sorted(room.by_name), room.totals.tolist())
    with room.imagining([node(f"x{n}", cpu=4) for n in range(100)]):
        assert room.totals.max() >= 101
    assert (room.version, room.around.version, room.node_count, sorted(room.by_name), room.totals.tolist()) == before
    assert not room.take_helped() and not room.imagined
    judge.update(node("m", cpu=40))
    assert admitted(judge.plan(2)) == ["g"], "a column that was only thought of may be used again"


sizes = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 5)), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(gangs=sizes, nodes=st.lists(st.integers(1, 6), max_size=3), small=st.integers(0, 4), large=st.integers(0, 3))
def test_what_was_asked_for_is_enough_and_none_of_it_is_spare(gangs, nodes, small, large):
    """Each request, once its nodes are there, starts its gang; with one node less it would not fit. No pool is ever
    asked for more than it has."""
    pools = {"small": pool("small", small, cpu=3), "large": pool("large", large, cpu=6)}
    waiting = [gang(f"g{n}", pods(count, cpu=cpu), at=n) for n, (count, cpu) in enumerate(gangs)]
    judge = engine(*(node(f"n{n}", cpu=cpu) for n, cpu in enumerate(nodes)), *pools.values(), *waiting)
    left = {"small": small, "large": large}
    open_requests: dict[str, Obtain] = {}
    for turn in range(20):
        plan = judge.plan(turn * SECOND)
        for one in plan.obtains:
            assert one.uid not in open_requests, "one request at a time"
            open_requests[one.uid] = one
            assert_none_spare(judge, one)
        for admit in plan.admits:
            open_requests.pop(admit.uid, None)
        for name, most in left.items():
            assert sum(one.nodes.get(name, 0) for one in open_requests.values()) <= most
        if not open_requests:
            break
        uid, one = sorted(open_requests.items())[0]
        for fact in come(one, pools):
            judge.update(fact)
        for name, count in one.nodes.items():
            left[name] -= count
            judge.update(msgspec.structs.replace(pools[name], obtainable=left[name]))
        started = {admit.uid for admit in judge.plan(turn * SECOND).admits}
        assert uid in started, "enough"
        open_requests = {uid: one for uid, one in open_requests.items() if uid not in started}
    else:
        raise AssertionError("did not come to rest")


def assert_none_spare(judge: Engine, one: Obtain) -> None:
    state = judge._state
    wanting: Gang = state.by_uid(one.uid)
    with state.ledger.without([one.uid]):
        for name in one.nodes:
            fewer = {**one.nodes, name: one.nodes[name] - 1}
            assert state.pools._with(fewer, wanting, state.ledger.room) is None
