"""Orders that ship, and one's own."""

import sys
import types

import msgspec
import pytest

from shoal.engine.policies import SHIPPED, Priority, load
from shoal.errors import BadInput

from .build import SECOND, admitted, engine, gang, held, node, pod, pods, preempted


def test_fifo_ignores_priority():
    judge = engine(node("n", cpu=1), gang("old", at=1), gang("urgent", at=2, priority=9), policy="fifo")
    assert admitted(judge.plan(3)) == ["old"]


def test_fair_share_serves_the_namespace_that_holds_least():
    rich = [gang(f"rich{n}", namespace="rich", at=n) for n in range(3)]
    poor = [gang(f"poor{n}", namespace="poor", at=5 + n) for n in range(3)]
    judge = engine(node("n", cpu=4), *rich, *poor, policy="fair-share")
    assert admitted(judge.plan(9)) == ["rich0", "poor0", "rich1", "poor1"], "in turns, not by age"


def test_strict_priority_lets_no_gang_overtake():
    judge = engine(node("n", cpu=2), gang("big", pods(3), at=1), gang("small", at=2), policy="strict-priority")
    plan = judge.plan(3)
    assert admitted(plan) == [] and held(plan) == {"big": "resources", "small": "order"}


def test_backfill_keeps_room_for_the_front_and_fills_the_rest():
    """Two nodes: the big gang waits for the one that will be free; small ones use what it will not need."""
    judge = engine(node("a", cpu=4), node("b", cpu=4), policy="backfill")
    judge.update(gang("running", pods(1, cpu=4), at=1))
    assert admitted(judge.plan(1 * SECOND)) == ["running"]
    judge.update(gang("big", pods(2, cpu=4), at=2))
    judge.update(gang("small", pods(1, cpu=1), at=3))
    plan = judge.plan(2 * SECOND)
    assert admitted(plan) == [], "the small one would delay the big one"
    judge.update(node("c", cpu=1))
    assert admitted(judge.plan(3 * SECOND)) == ["small"], "here it delays no other gang"
    judge.remove("AppWrapper/default/running")
    assert admitted(judge.plan(4 * SECOND)) == ["big"]


def test_priority_preemption_takes_the_lowest_and_newest_and_no_more_than_needed():
    judge = engine(
        node("n", cpu=4),
        gang("older", pods(1), at=1),
        gang("newer", pods(1), at=2),
        gang("middle", pods(2), priority=3, at=3),
        preemption=True,
    )
    for turn in range(3):
        judge.plan((turn + 1) * SECOND)
    judge.update(gang("urgent", pods(1), priority=9, at=5))
    assert preempted(judge.plan(9 * SECOND)) == ["newer"]


def test_preemption_spares_gangs_that_would_not_help():
    judge = engine(
        node("a", cpu=1), node("b", cpu=4), gang("elsewhere", pods(1, cpu=1), at=2), gang("wide", pods(1, cpu=4), at=1),
        preemption=True,
    )  # fmt: skip
    judge.plan(1)
    judge.update(gang("urgent", pods(1, cpu=4), priority=9, at=3))
    assert preempted(judge.plan(2)) == ["wide"]


def test_a_gang_that_may_not_be_preempted_stays():
    judge = engine(node("n", cpu=1), gang("firm", preemptable=False), preemption=True)
    judge.plan(1)
    judge.update(gang("urgent", priority=9, at=1))
    assert preempted(judge.plan(2)) == []


def test_stopping_gangs_hold_their_room_until_their_pods_are_gone():
    judge = engine(node("n", cpu=1), gang("leaving"))
    judge.plan(1)
    judge.update(pod("p", on="n", of="leaving"))
    known = judge.gang("AppWrapper/default/leaving")
    judge.update(msgspec.structs.replace(known, state="stopping"))
    judge.update(gang("next", at=1))
    assert admitted(judge.plan(2)) == []
    judge.update(pod("p", on="n", of="leaving", phase="Succeeded"))
    judge.update(msgspec.structs.replace(known, state="finished"))
    assert admitted(judge.plan(3)) == ["next"]


class ByName(Priority):
    """A user's own: alphabetical."""

    name = "by-name"

    def order(self, gang):
        return (gang.name, gang.uid)


def test_ones_own_policy_is_named_by_import_path(monkeypatch):
    module = types.ModuleType("house_rules")
    module.ByName = ByName
    monkeypatch.setitem(sys.modules, "house_rules", module)
    judge = engine(node("n", cpu=1), gang("zebra", at=1), gang("ant", at=2), policy="house_rules:ByName")
    assert admitted(judge.plan(3)) == ["ant"]


class SmallestFirst:
    """A user's own that says no more than it has to."""

    name = "smallest-first"

    def order(self, gang):
        return (sum(one.count for one in gang.pod_sets), gang.uid)

    def may_preempt(self, preemptor, victim):
        return preemptor.priority > victim.priority


def test_ones_own_policy_needs_no_more_than_name_order_and_preemption(monkeypatch):
    module = types.ModuleType("house_rules")
    module.smallest = SmallestFirst()
    monkeypatch.setitem(sys.modules, "house_rules", module)
    judge = engine(node("n", cpu=3), policy="house_rules:smallest", preemption=True)
    for one in (gang("three", pods(3), at=1), gang("two", pods(2), at=2), gang("one", pods(1), at=3)):
        judge.update(one)
    assert admitted(judge.plan(4)) == ["one", "two"]
    judge.update(gang("urgent", pods(2), at=5, priority=1))
    assert preempted(judge.plan(6)) == ["two"]
    assert judge.explain("AppWrapper/default/three").position == 2


@pytest.mark.parametrize(
    "name", ["alphabetical", "no.such.module:thing", "shoal.engine.policies:nothing", "json:dumps"]
)
def test_a_policy_that_cannot_be_loaded_is_named(name):
    with pytest.raises(BadInput, match=name.split(":")[0].split(".")[0]):
        load(name)


def test_every_shipped_policy_has_its_name():
    assert sorted(SHIPPED) == ["backfill", "fair-share", "fifo", "priority", "priority-slope", "strict-priority"]
