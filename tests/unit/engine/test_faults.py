"""Faults that the decisions themselves must withstand. Each test is seen to fail without its protection."""

import random
from itertools import count

import msgspec

from shoal.engine import policies
from shoal.engine.line import cycle as line_cycle
from shoal.engine.line import judge as judging
from shoal.engine.line import validate
from shoal.engine.line.cycle import Cycle
from shoal.engine.line.yielding import Yielding
from shoal.engine.nodes import fit, supply, to_come
from shoal.engine.nodes.fit import Placement, place
from shoal.engine.nodes.ledger import Ledger
from tests.faults import proven

from .build import SECOND, admitted, engine, gang, held, node, pod, pods, preempted, quota, subtree, why
from .world import World


def _half_is_enough(patch):
    def find_room(one, books, extra=None, **more):
        half = tuple(msgspec.structs.replace(part, count=part.count // 2) for part in one.pod_sets)
        return place(msgspec.structs.replace(one, pod_sets=half), books.room)

    patch.setattr(judging, "find_room", find_room)


@proven(without=_half_is_enough)
def test_f004_two_gangs_never_hold_half_of_the_nodes_each():
    """F4: two gangs each hold half of the nodes. Holds: the whole gang's fit is decided before any pod exists."""
    judge = engine(node("a", cpu=2), node("b", cpu=2), gang("one", pods(4), at=1), gang("two", pods(4), at=2))
    plan = judge.plan(3)
    assert admitted(plan) == ["one"] and held(plan) == {"two": "resources"}
    assert sum(plan.admits[0].assignment[0].nodes.values()) == 4


def _by_sums(patch):
    def find_room(one, books, extra=None, **more):
        missing = supply.aggregate_shortfalls(one, books, {})
        return missing or Placement(tuple({} for _ in one.pod_sets))

    patch.setattr(judging, "find_room", find_room)


@proven(without=_by_sums)
def test_f005_sums_that_fit_are_not_enough():
    """F5: sums fit, nodes do not. Holds: not admitted under fit; the reason names the shortfall on nodes."""
    fragments = engine(node("a", cpu=2), node("b", cpu=2), gang("x", pods(1, cpu=3)))
    plan = fragments.plan(1)
    assert admitted(plan) == []
    assert "the largest free piece is 2" in why(plan, "x")
    tainted = engine(node("a", cpu=4, taints=[("own", "", "NoSchedule")]), node("b", cpu=1), gang("x", pods(2)))
    assert "have the taint {own: }" in why(tainted.plan(1), "x")
    selected = engine(node("a", cpu=4), gang("x", pods(2, node_selector={"zone": "moon"})))
    assert "do not match its node selector" in why(selected.plan(1), "x")


def _zero_has_no_place(patch):
    pack = fit._pack
    patch.setattr(fit, "_pack", lambda part, holding, field: pack(part, holding, field) if part.count else None)


@proven(without=_zero_has_no_place)
def test_f013_zero_is_a_legal_size():
    """F13: pod set with count 0, or scaled to 0. Holds: zero is a legal size everywhere; the cycle ends."""
    judge = engine(node("n", cpu=1), gang("none", pods(0)), gang("part", pods(0, name="head"), pods(1, name="worker")))
    assert admitted(judge.plan(1)) == ["none", "part"]
    assert judge.plan(2).is_empty
    assert admitted(engine(gang("none", pods(0))).plan(1)) == ["none"], "even without nodes"


def _no_gang_remembers(patch):
    """One plan goes round without end then: it is ended."""
    asked = count()

    def outranks(self, other, uid):
        assert next(asked) < 1000, "two gangs evict each other within one plan"
        return False

    patch.setattr(Yielding, "outranks", outranks)


@proven(without=_no_gang_remembers)
def test_f015_two_gangs_do_not_evict_each_other_for_ever():
    """F15: borrowing and priority: A evicts B, B evicts A. Holds: a fixed point without outside change."""
    world = World(1, quota=True, preemption=True)
    for fact in (node("n", cpu=64),):
        world.nodes[fact.name] = fact
        world.tell(fact)
    world.tell(subtree("team", "", quota("root", cpu=10)))
    world.tell(subtree("team", "root", quota("a", cpu=4), quota("b", cpu=4), quota("default", cpu=0)))
    for one in (
        gang("rest", pods(4), labels={"team": "b"}),
        gang("borrower", pods(6), labels={"team": "a"}, priority=5, at=1),
        gang("owner", pods(3), labels={"team": "a"}, at=2),
    ):
        world.gangs[one.key] = one
        world.tell(one)
    assert world.settle(limit=40) <= 2 * len(world.gangs)
    assert sum(one.state == "admitted" for one in world.gangs.values()) == 2


@proven(without=lambda patch: patch.setattr(Ledger, "claim", lambda self, one, placement, **more: None))
def test_f016_room_freed_for_a_preemptor_is_held_for_it():
    """F16: victims leave at different times and others ask for the freed room. Holds: it stays the preemptor's."""
    judge = engine(node("n", cpu=4), gang("v1", pods(2)), gang("v2", pods(2)), preemption=True)
    judge.plan(1)
    judge.update(gang("urgent", pods(4), priority=9, at=2))
    plan = judge.plan(2 * SECOND)
    assert sorted(preempted(plan)) == ["v1", "v2"] and held(plan)["urgent"] == "preempting"
    first = judge.gang("AppWrapper/default/v1")
    judge.update(msgspec.structs.replace(first, state="waiting", assignment=(), admitted_at=0))
    judge.update(gang("small", at=3))
    assert judge.plan(3 * SECOND).is_empty, "neither the newcomer nor the victim may slip in"
    second = judge.gang("AppWrapper/default/v2")
    judge.update(msgspec.structs.replace(second, state="waiting", assignment=(), admitted_at=0))
    assert admitted(judge.plan(4 * SECOND)) == ["urgent"]


@proven(without=lambda patch: patch.setattr(Cycle, "_is_spent", property(lambda self: False)))
def test_f018_a_cycle_has_a_step_budget(monkeypatch):
    """F18: decision code whose cost explodes on odd input. Holds: a cycle ends within its budget; the rest follows."""
    shapes = [gang(f"g{n}", pods(1, cpu=f"{n + 1}m"), at=n) for n in range(40)]
    monkeypatch.setattr(line_cycle, "STEPS", 7)
    judge = engine(node("n", cpu=8), *shapes)
    first = judge.plan(1)
    assert len(first.admits) == 7 and first.unfinished
    rounds = 1
    while judge.plan(1).unfinished:
        rounds += 1
        assert rounds < 20
    assert all(judge.gang(one.key).state == "admitted" for one in shapes)


@proven(without=lambda patch: patch.setattr(policies.Priority, "strict", True))
def test_f019_a_gang_that_can_never_fit_does_not_stop_the_others():
    """F19: one gang that can never fit at the head. Holds: others of the queue are decided in the same cycle."""
    judge = engine(node("n", cpu=2), gang("giant", pods(1, cpu=99), priority=9), gang("small", at=5))
    plan = judge.plan(9)
    assert admitted(plan) == ["small"] and held(plan) == {"giant": "resources"}


def _no_tie_break(patch):
    patch.setattr(policies, "by_age", lambda one: (one.queued_at,))


@proven(without=_no_tie_break)
def test_f022_equal_moments_are_ordered_by_name_and_uid():
    """F22: equal timestamps, map order. Holds: a total order with the UID last; same facts, same plan."""
    facts = [gang(f"g{n}", pods(1, cpu=f"{1000 + n}m"), at=1) for n in range(6)]
    plans = []
    for seed in range(5):
        shuffled = [node("n", cpu=3), *facts]
        random.Random(seed).shuffle(shuffled)
        plans.append(engine(*shuffled).plan(9))
    assert all(plan.admits == plans[0].admits for plan in plans)
    assert admitted(plans[0]) == ["g0", "g1"]


@proven(without=lambda patch: patch.setattr(Ledger, "set_gang", lambda self, one: None))
def test_f023_two_decisions_of_one_cycle_never_use_the_same_room():
    """F23: two decisions of one cycle pick the same nodes. Holds: a plan is built on one ledger, entry by entry."""
    judge = engine(node("n", cpu=3), *(gang(f"g{n}", pods(2), at=n) for n in range(3)))
    plan = judge.plan(9)
    assert admitted(plan) == ["g0"]
    assert sorted(held(plan)) == ["g1", "g2"]


@proven(without=lambda patch: patch.setattr(policies.Priority, "order", policies.Fifo.order))
def test_f027_order_survives_eviction_and_priority_counts():
    """F27: order lost when the head is evicted; static priority ignored. Holds: priority, then the first arrival."""
    judge = engine(node("n", cpu=1), gang("first", at=1), preemption=True)
    judge.plan(1)
    judge.update(gang("urgent", priority=5, at=2))
    assert preempted(judge.plan(2)) == ["first"]
    stopped = judge.gang("AppWrapper/default/first")
    judge.update(msgspec.structs.replace(stopped, state="waiting", assignment=(), admitted_at=0))
    assert admitted(judge.plan(3)) == ["urgent"]
    judge.update(gang("later", at=3))
    judge.remove("AppWrapper/default/urgent")
    assert admitted(judge.plan(5)) == ["first"], "evicted once, but still ahead of those who came later"
    waiting = [gang("old", at=1), gang("high", at=2, priority=5)]
    assert admitted(engine(node("n", cpu=1), *waiting).plan(9)) == ["high"]


@proven(
    without=lambda patch: (
        patch.setattr(supply, "MOST_REASONS", 10**6),
        patch.setattr(supply, "LONGEST_MESSAGE", 10**9),
    )
)
def test_f028_messages_do_not_grow():
    """F28: a message grows with every round trip. Holds: texts are bounded and rebuilt, not appended."""
    many = {f"vendor.example/device-{n}": 1 for n in range(300)}
    wide = msgspec.structs.replace(pods(1), requests=many)
    judge = engine(node("n"), gang("wide", wide))
    first = why(judge.plan(1), "wide")
    assert len(first) <= 1000 and "and 295 more" in first
    for turn in range(30):
        judge.update(gang("wide", wide, priority=turn + 1))
        assert why(judge.plan(turn + 2), "wide") == first


@proven(without=lambda patch: patch.setattr("shoal.engine.line.state.gang_problem", lambda one: ""))
def test_f029_amounts_are_exact_and_never_negative():
    """F29: huge, negative amounts, sums past 64 bits. Holds: exact integers; negatives refused and named."""
    negative = msgspec.structs.replace(pods(1), requests={"cpu": -1000})
    judge = engine(node("n", cpu=4), gang("bad", negative), gang("good", at=1))
    plan = judge.plan(1)
    assert admitted(plan) == ["good"] and held(plan) == {"bad": "bad-fact"}
    assert "AppWrapper/default/bad: pod set 'main' requests -1000 cpu" in why(plan, "bad")
    assert validate.node_problem(node("n")) == ""
    huge = engine(*(node(f"n{n}", memory=2**62) for n in range(4)), gang("x", pods(5, cpu=0, memory=2**62)))
    (shortfall,) = huge.plan(1).holds[0].explanation.shortfalls
    assert (shortfall.needed, shortfall.available) == (5 * 2**62, 4 * 2**62)


@proven(without=lambda patch: patch.setattr(to_come, "pod_set_index", lambda pod_sets, fact: None))
def test_f037_each_pod_counts_once_for_the_gang_that_owns_it():
    """F37: pod counted twice, or under an owner matched by name only. Holds: by UID along the owners; each pod once."""
    mine = gang("train", pods(2), uid="uid-mine")
    judge = engine(node("n", cpu=5), mine)
    judge.plan(1)
    for name in ("p", "q"):
        judge.update(msgspec.structs.replace(pod(name, on="n"), gang="uid-mine"))
    namesake = gang("train", pods(2), uid="uid-theirs", namespace="other", at=1)
    judge.update(namesake)
    judge.update(pod("stranger", on="n", labels={"appwrapper.mcad.ibm.com": "train"}))
    plan = judge.plan(2)
    assert [admit.uid for admit in plan.admits] == ["uid-theirs"], "5 cpu: 2 mine, 1 a stranger's, 2 left"
