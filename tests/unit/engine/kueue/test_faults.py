"""Faults that queues met elsewhere, and what holds here."""

from __future__ import annotations

import random

import msgspec
import pytest

from shoal.engine.kueue import (
    Cohort,
    Flavor,
    FlavorQuota,
    FlavorResource,
    Kueue,
    KueueSettings,
    Limits,
    LocalQueue,
    ResourceGroup,
    Terms,
    demand,
    terms_of,
    unheard,
)
from shoal.engine.kueue.cycle import cycle, planner, register
from shoal.engine.kueue.cycle.cycle import QueueCycle
from shoal.engine.kueue.cycle.planner import QueuePlanner
from shoal.engine.kueue.cycle.register import Register
from shoal.engine.kueue.demand import PodDemand
from shoal.engine.kueue.index.waiting import WaitingIndex
from shoal.engine.kueue.preemption import candidates, classical
from shoal.engine.kueue.quota.tree import QuotaTreeNode
from shoal.engine.kueue.views import quota_of, victims_of
from shoal.engine.model import Namespace, PodSet, Taint
from tests.faults import proven
from tests.unit.engine.kueue import world as worlds
from tests.unit.engine.kueue.world import CPU, World, cohort, gang, limits, queue


def exactly_as_kueue(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(worlds.DEFAULTS, "exact", True)


def zero_counts_as_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        PodDemand, "total", lambda self, count: {r: each * max(1, count) for r, each in self.requests.items()}
    )


@proven(without=zero_counts_as_one)
def test_f013_a_pod_set_scaled_to_zero_asks_for_nothing():
    """F13: a pod set with count 0, even of a resource no queue has. Holds: it is admitted and the plan ends."""
    idle = PodSet(name="idle", count=0, requests={"cpu": 50 * CPU, "example.com/tpu": 8})
    world = World(
        queue("a", 4), gang("train", "a", pod_sets=(PodSet(name="head", count=1, requests={"cpu": CPU}), idle))
    )
    decisions = world.plan()
    assert [part.count for part in decisions.reserved[0].assignment] == [1, 0]
    assert world.used("a") == 1


@proven(without=exactly_as_kueue)
def test_f015_fair_sharing_settles():
    """F15: fair sharing and partial starts; each gang's share looks unfair to the other. Holds: one fixed point."""
    world = World(
        queue("owner", 5, "team", within="LowerOrNewerEqualPriority", reclaim="Any", strategy="StrictFIFO"),
        queue("guest", 4, "team", reclaim="Any", weight=0),
        gang("guest-job", "guest", cpu=4, count=2, least=1, priority=100, at=4),
        gang(
            "owner-job",
            "owner",
            priority=10,
            at=4,
            pod_sets=(
                PodSet(name="workers", count=2, min_count=1, requests={"cpu": 2 * CPU}),
                PodSet(name="head", count=1, requests={"cpu": 2 * CPU}),
            ),
        ),
        fair_sharing=True,
    )
    assert world.settle(most=20) < 10
    assert len(world.evictions) == len(set(world.evictions))


@proven(without=exactly_as_kueue)
def test_f016_room_freed_for_a_preemptor_is_kept_while_victims_leave_one_by_one():
    """F16: the first victim has left, the second not; a small gang would fit meanwhile. Holds: the room is kept."""
    policy = {"within": "LowerPriority", "reclaim": "LowerPriority", "borrow": "LowerPriority"}
    world = World(queue("a", 4, "team", **policy), queue("b", 2, "team"))
    world.tell(gang("old-1", "a", cpu=3), gang("old-2", "a", cpu=3))
    world.plan()
    world.tell(gang("urgent", "a", cpu=6, priority=10))
    assert {entry.gang for entry in world.plan().evicted} == {"Workload/default/old-1", "Workload/default/old-2"}
    world.tell(gang("opportunist", "b", cpu=2))
    world.let_go("old-1")
    world.plan()
    assert world.running() == {"old-2"}
    world.let_go("old-2")
    world.plan()
    assert world.running() == {"urgent"}


def without_noticing_rest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueuePlanner, "_note_idle", lambda self, *told: None)


@proven(without=without_noticing_rest)
def test_f018_a_head_that_cannot_be_served_does_not_keep_the_plan_busy():
    """F18: a standalone strict queue whose head never fits. Holds: the plan ends after a few cycles, others go on."""
    world = World(queue("stuck", 1, strategy="StrictFIFO"), queue("free", 5))
    world.tell(gang("huge", "stuck", cpu=9), *(gang(f"small-{n}", "free") for n in range(5)))
    decisions = world.plan()
    assert len(decisions.reserved) == 5 and not decisions.warnings
    assert world.kueue.planner.cycles < 10


def one_head_each(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueuePlanner, "settle", QueuePlanner.cycle)


@proven(without=one_head_each)
def test_f019_a_head_that_never_fits_does_not_hold_up_the_others():
    """F19: the first gang of a best-effort queue can never fit. Holds: the rest is decided in the same plan."""
    world = World(queue("a", 4), gang("huge", "a", cpu=9, priority=10), *(gang(f"g{n}", "a", at=n) for n in range(4)))
    world.plan()
    assert world.running() == {"g0", "g1", "g2", "g3"}


def no_gang_is_called_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WaitingIndex, "requeue", lambda self, **known: False)
    patch.setattr(Register, "_shape_changed", lambda self: None)
    patch.setattr(Register, "_replace", lambda self, keys: None)


TAINTED = Flavor(name="default", taints=(Taint("pool", "reserved"),))
HELPFUL = {
    "quota raised": ([queue("a", 1)], [queue("a", 4)]),
    "cohort joined": ([queue("a", 1), queue("rich", 9, "team")], [queue("a", 1, "team")]),
    "cohort got quota": ([cohort("team"), queue("a", 1, "team")], [cohort("team", cpu=5)]),
    "cohort got a parent": ([cohort("rich", cpu=9), cohort("team"), queue("a", 1, "team")], [cohort("team", "rich")]),
    "flavor lost its taint": ([queue("a", 9), TAINTED], [Flavor(name="default")]),
    "flavor appeared": (
        [queue("a", groups=(ResourceGroup(("cpu",), (FlavorQuota("new", {"cpu": limits(9)}),)),))],
        [Flavor(name="new")],
    ),
    "namespace got its label": (
        [queue("a", 9, namespace_selector={"matchLabels": {"team": "x"}})],
        [Namespace(name="default", labels={"team": "x"})],
    ),
    "queue was resumed": ([queue("a", 9, stopped=True)], [queue("a", 9)]),
    "lender may lend": (
        [queue("a", 1, "team"), queue("b", limits(9, lending=0), "team")],
        [queue("b", 9, "team")],
    ),
}


@pytest.mark.parametrize("what", HELPFUL)
@proven(without=no_gang_is_called_back)
def test_f021_what_could_help_a_waiting_gang_is_noticed(what):
    """F21: a fact changes that lets a waiting gang in. Holds: the next plan admits it, as a fresh ledger would."""
    before, after = HELPFUL[what]
    world = World(*before)
    world.tell(gang("patient", "a", cpu=3))
    assert not world.plan().reserved
    assert not world.plan().reserved  # and again, from rest
    world.tell(*after)
    assert [entry.gang for entry in world.plan().reserved] == ["Workload/default/patient"]
    fresh = World(*before, *after, gang("patient", "a", cpu=3))
    assert [entry.gang for entry in fresh.plan().reserved] == ["Workload/default/patient"]


def arrival_decides(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(classical, "order_key", lambda request, member: candidates.order_key(request, member)[:-1])


@proven(without=arrival_decides)
def test_f022_equal_moments_give_equal_victims():
    """F22: victims equal in everything but their UID, told in any order. Holds: the same one leaves."""
    chosen = set()
    names = [f"g{number}" for number in range(6)]
    for seed in range(5):
        random.Random(seed).shuffle(names)
        world = World(queue("a", 6, within="LowerPriority"))
        running = {}
        for name in names:
            waiting = gang(name, "a")
            assignment = world_assignment(waiting)
            terms = {"kueue": Terms(cluster_queue="a")}
            running[name] = msgspec.structs.replace(
                waiting, state="admitted", admitted_at=5, assignment=assignment, details=terms
            )
        world.tell(*running.values())
        world.tell(gang("urgent", "a", priority=10))
        chosen.add(tuple(entry.gang for entry in world.plan().evicted))
    assert len(chosen) == 1


def world_assignment(waiting):
    probe = World(queue("a", 100), waiting)
    return probe.plan().reserved[0].assignment


def each_for_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueCycle, "_still_fits", lambda self, entry: True)


@proven(without=each_for_itself)
def test_f023_two_heads_of_one_cycle_do_not_take_the_same_room():
    """F23: two queues' heads both fit the last room on their own. Holds: one gets it, usage stays within quota."""
    world = World(cohort("team", cpu=5), queue("a", 0, "team"), queue("b", 0, "team"))
    world.tell(gang("one", "a", cpu=4), gang("two", "b", cpu=4))
    world.plan()
    assert world.running() == {"one"}
    assert quota_of(world.kueue, "b").available[FlavorResource("default", "cpu")] == CPU


def test_two_preemptors_share_one_victim_and_both_get_in():
    world = World(queue("a", 4, "team", reclaim="Any"), queue("b", 4, "team", reclaim="Any"), queue("guest", 0, "team"))
    world.tell(gang("lodger", "guest", cpu=8))
    world.plan()
    world.tell(gang("one", "a", cpu=4), gang("two", "b", cpu=4))
    assert [entry.gang for entry in world.plan().evicted] == ["Workload/default/lodger"]
    world.settle()
    assert world.running() == {"one", "two"}
    assert len(world.evictions) == 1


def stops_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(register, "unqueued_reason", lambda name, local, record: "")
    patch.setattr(register, "why_inactive", lambda record, state: "")


@pytest.mark.parametrize("stop", ["cluster queue", "local queue"])
@proven(without=stops_are_ignored)
def test_f024_nothing_is_admitted_into_a_stopped_queue(stop):
    """F24: a queue is stopped with gangs waiting, and resumed. Holds: none admitted while stopped; they are told."""
    world = World(queue("a", 2), gang("first", "a", cpu=2), gang("second", "a", cpu=2, at=1))
    world.plan()
    stopped = {
        "cluster queue": queue("a", 2, stopped=True),
        "local queue": LocalQueue(namespace="default", name="a", cluster_queue="a", stopped=True),
    }[stop]
    world.kueue.update(stopped)
    world.finish("first")
    decisions = world.plan()
    assert not decisions.reserved
    assert [entry.message.endswith("a is inactive: it is stopped") for entry in decisions.waiting] == [True]
    world.tell(queue("a", 2))
    assert [entry.gang for entry in world.plan().reserved] == ["Workload/default/second"]


@proven(without=stops_are_ignored)
def test_f024_a_queue_deleted_and_created_again_takes_its_gangs_back():
    """F24: the queue is deleted while gangs wait. Holds: no crash, they are told, and wait again when it returns."""
    world = World(queue("a", 2), gang("one", "a", cpu=3), gang("two", "a", cpu=2))
    world.kueue.remove(queue("a"))
    decisions = world.plan()
    assert {entry.message for entry in decisions.waiting} == {"ClusterQueue a doesn't exist"}
    world.tell(queue("a", 2))
    world.plan()
    assert world.running() == {"two"}


def evicted_go_to_the_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(demand, "order_time", lambda told: terms_of(told).evicted_at or told.created_at)


@proven(without=evicted_go_to_the_back)
def test_f027_an_evicted_head_keeps_its_place():
    """F27: the first of a strict queue is preempted and returns. Holds: it is first again, by its creation time."""
    world = World(queue("a", 3, within="LowerPriority", strategy="StrictFIFO"))
    world.tell(gang("first", "a", cpu=3, at=1))
    world.plan()
    world.tell(gang("urgent", "a", cpu=3, priority=10, at=2), gang("second", "a", cpu=3, at=3))
    world.settle()
    assert world.running() == {"urgent"}
    world.finish("urgent")
    world.plan()
    assert world.running() == {"first"}


def texts_are_unbounded(patch: pytest.MonkeyPatch) -> None:
    for module in (cycle, unheard):
        patch.setattr(module, "bounded", lambda message: message)


@proven(without=texts_are_unbounded)
def test_f028_messages_are_bounded_and_do_not_grow():
    """F28: many flavors, many pod sets, many rounds. Holds: the text fits a condition and is the same every time."""
    names = [f"flavor-{number:03}" for number in range(64)]
    quota = tuple(FlavorQuota(name, {"cpu": limits(5)}) for name in names)
    world = World(*(Flavor(name=name) for name in names), queue("a", groups=(ResourceGroup(("cpu",), quota),)))
    world.tell(*(gang(f"full-{number}", "a", cpu=5) for number in range(64)))
    world.plan()
    sets = tuple(PodSet(name=f"set-{number}", count=1, requests={"cpu": 1}) for number in range(18))
    world.tell(gang("wide", "a", pod_sets=sets))
    messages = set()
    for _ in range(5):
        messages |= {entry.message for entry in world.plan().waiting if entry.gang.endswith("/wide")}
        world.tell(queue("unrelated", 1), queue("unrelated", 2))
    assert len(messages) == 1
    assert all(1000 < len(message) <= 32768 for message in messages)


def wraps_at_64_bits(patch: pytest.MonkeyPatch) -> None:
    def total(self: PodDemand, count: int) -> dict[str, int]:
        wrapped = {name: (each * count + 2**63) % 2**64 - 2**63 for name, each in self.requests.items()}
        return {name: max(0, each) for name, each in wrapped.items()}

    patch.setattr(PodDemand, "total", total)


@proven(without=wraps_at_64_bits)
def test_f029_products_past_64_bits_are_exact():
    """F29: amounts whose product passes 64 bits. Holds: exact; not admitted to a small quota, fine with unlimited."""
    huge = PodSet(name="main", count=4, requests={"memory": 2**62})
    group = ResourceGroup(("memory",), (FlavorQuota("default", {"memory": Limits(2**40)}),))
    world = World(queue("a", groups=(group,)), gang("huge", "a", pod_sets=(huge,)))
    decisions = world.plan()
    assert not decisions.reserved and decisions.waiting[0].reason == "ExceedsMaxQuota"
    assert decisions.waiting[0].shortfalls[0].missing == 2**64 - 2**40


def trusts_negatives(patch: pytest.MonkeyPatch) -> None:
    def unchecked(pod_set: PodSet, terms: Terms) -> PodDemand:
        return PodDemand(pod_set.name, pod_set.count, pod_set.count, pod_set.requests, demand.Constraints({}, None, ()))

    patch.setattr(demand, "_demand", unchecked)


@proven(without=trusts_negatives)
def test_f029_negative_amounts_are_refused_by_name():
    """F29: a negative request, a negative quota. Holds: held with the field named; everyone else goes on."""
    bad = gang("bad", "a", pod_sets=(PodSet(name="main", count=1, requests={"cpu": -5}),))
    world = World(queue("a", 4), queue("broken", Limits(-3), "team"), queue("b", 2, "team"))
    world.tell(bad, gang("good", "a"), gang("stuck", "broken"), gang("fine", "b", cpu=2))
    messages = {entry.gang.rpartition("/")[2]: entry.message for entry in world.plan().waiting}
    assert world.running() == {"good", "fine"}
    assert "pod set main: cpu must not be negative" in messages["bad"]
    assert "negative quota for default/cpu" in messages["stuck"]


def deleted_means_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Register, "remove_cluster_queue", lambda self, name: self._drop(self.state.records[name]))


@proven(without=deleted_means_gone)
def test_f033_a_queue_deleted_under_load_is_charged_until_its_gangs_leave():
    """F33: a queue that borrowed is deleted while its gang runs. Holds: what it borrowed is not handed out again."""
    world = World(queue("a", 4, "team"), queue("b", 4, "team"), gang("tenant", "a", cpu=6))
    world.plan()
    world.kueue.remove(queue("a"))
    world.tell(gang("next", "b", cpu=4))
    assert not world.plan().reserved
    world.finish("tenant")
    world.plan()
    assert world.running() == {"next"}
    assert "a" not in world.kueue.state.records


def usage_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QuotaTreeNode, "raw_available", lambda self, at: self.potential.get(at, 0))


@proven(without=usage_is_forgotten)
def test_f033_a_lowered_limit_only_lets_usage_fall():
    """F33: quota falls below what is used. Holds: the overhang shows, nothing enters until it is gone."""
    world = World(queue("a", 6), *(gang(f"g{number}", "a", cpu=2, at=number) for number in range(5)))
    world.plan()
    world.tell(queue("a", 3))
    assert not world.plan().reserved
    assert world.used("a") == 6
    world.finish("g0")
    assert not world.plan().reserved
    world.finish("g1", "g2")
    world.plan()
    assert world.running() == {"g3"}


def test_a_cohort_cycle_stops_only_its_own_members():
    world = World(cohort("x", "y"), cohort("y", "x"), queue("a", 4, "x"), queue("b", 4, "z"))
    world.tell(gang("one", "a"), gang("two", "b"))
    messages = [entry.message for entry in world.plan().waiting]
    assert world.running() == {"two"}
    assert messages == ["ClusterQueue a is inactive: cohort x is part of a parent cycle or below one"]
    world.tell(Cohort(name="y"))
    world.plan()
    assert world.running() == {"one", "two"}


def test_a_plan_that_runs_out_of_steps_says_so_and_goes_on_next_time(monkeypatch):
    monkeypatch.setattr(planner, "MOST_CYCLES", 2)
    kueue = Kueue(KueueSettings())
    for fact in (Namespace(name="default"), Flavor(name="default"), queue("a", 9)):
        kueue.update(fact)
    kueue.update(LocalQueue(namespace="default", name="a", cluster_queue="a"))
    for number in range(5):
        kueue.update(gang(f"g{number}", "a"))
    first = kueue.plan(1)
    assert len(first.reserved) == 2 and "did not settle within 2 cycles" in first.warnings[0]
    assert len(kueue.plan(2).reserved) == 2


def test_victims_of_asks_no_gang_when_policy_forbids():
    world = World(queue("a", 2), gang("runs", "a", cpu=2))
    world.plan()
    wanted = {FlavorResource("default", "cpu"): 2 * CPU}
    assert victims_of(world.kueue, gang("urgent", "a", cpu=2, priority=9), "a", wanted, frozenset(wanted), 9) == []


def which_gang_leaves_for_which_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Register, "_lead", lambda self: None)
    patch.setattr(cycle.QueueCycle, "_ordered", lambda self, entries: iter(sorted(entries, key=lambda e: e.height)))


@proven(without=which_gang_leaves_for_which_is_forgotten)
def test_f016_after_a_restart_the_room_is_still_the_preemptors():
    """F16: a restart between the first and the last victim's end. Holds: a rebuilt ledger keeps the room too."""
    policy = {"within": "LowerPriority", "reclaim": "LowerPriority", "borrow": "LowerPriority"}
    facts = (queue("a", 4, "team", **policy), queue("b", 2, "team"))
    world = World(*facts, gang("old-1", "a", cpu=3), gang("old-2", "a", cpu=3))
    world.plan()
    world.tell(gang("urgent", "a", cpu=6, priority=10))
    world.plan()
    world.let_go("old-1")
    world.gangs["opportunist"] = gang("opportunist", "b", cpu=2)
    restarted = World(*facts, *world.gangs.values())
    restarted.leaving = world.leaving
    restarted.plan()
    assert restarted.running() == {"old-2"}
    restarted.let_go()
    restarted.plan()
    assert restarted.running() == {"urgent"}


def victims_count_as_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueCycle, "_may_start_now", lambda self, entry: True)


@proven(without=victims_count_as_gone)
def test_f873_no_gang_starts_on_the_quota_of_a_victim_that_has_yet_to_leave():
    """F873: one gang evicts another that holds more than it needs, and in the same plan two more fit into what is free,
    each by itself. Holds: the first of them starts; the second waits until the victim has left, and is told so."""
    world = World(
        *(queue("owner", 10, "team", reclaim="Any"), queue("one", 10, "team"), queue("two", 5, "team")),
        *(queue("guest", 0, "team"), gang("big", "guest", cpu=20)),
    )
    world.plan()
    world.tell(gang("urgent", "owner", 10, priority=10), gang("a", "one", cpu=5, at=1), gang("b", "two", cpu=5, at=2))
    messages = {one.gang.rpartition("/")[2]: one.message for one in world.plan().waiting}
    assert (world.evictions, world.running()) == ([("urgent", "big")], {"big", "a"})
    assert messages["b"].endswith("insufficient unused quota for cpu in flavor default, 5 more needed")
    world.let_go()
    world.plan()
    assert world.running() == {"urgent", "a", "b"}
