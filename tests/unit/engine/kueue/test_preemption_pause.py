"""Where no pause before evictions is set: gangs that end within seconds are waited for, others are evicted at once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.engine import Engine
from shoal.engine.kueue import Flavor, KueueSettings, LocalQueue
from shoal.engine.kueue.cycle import preemption_pause
from shoal.engine.kueue.cycle.preemption_pause import PreemptionPause
from shoal.engine.kueue.cycle.returns import QuotaReturns
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import Terms
from shoal.engine.kueue.quota.tree import QuotaTreeNode
from shoal.engine.model import Gang, Namespace, Plan
from shoal.engine.settings import EngineSettings
from tests.faults import proven
from tests.unit.engine.kueue.world import gang, queue

SECOND = 1_000_000
MANY = 20


class Line:
    """A queue of one cpu whose gangs run one after the other, then one of two cpu."""

    def __init__(self, **settings: Any) -> None:
        self.engine = Engine(EngineSettings(), KueueSettings(**{"patience": None, **settings}))
        self.now = 1_000 * SECOND
        self.numbers = 0
        self.engine.update(Namespace(name="default"))
        self.engine.update(Flavor(name="default"))
        self.engine.update(queue("research", 1, within="LowerPriority"))
        self.engine.update(LocalQueue(namespace="default", name="research", cluster_queue="research"))

    def plan(self, after: float = 0.1) -> Plan:
        self.now += round(after * SECOND)
        return self.engine.plan(self.now)

    def wants(self, name: str, priority: int = 0, *, to: str = "research", cpu: int = 1) -> Gang:
        made = msgspec.structs.replace(gang(name, to, cpu, priority=priority, at=self.now), supply="off")
        self.engine.update(made)
        return made

    def start(self, name: str, priority: int = 0) -> Gang:
        """It waits, is given quota, and that is stored."""
        made = self.wants(name, priority)
        (given,) = self.plan().reservations
        terms = {"kueue": Terms(cluster_queue="research")}
        stored = msgspec.structs.replace(
            made, state="admitted", admitted_at=self.now, assignment=given.assignment, details=terms
        )
        self.engine.update(stored)
        return stored

    def end(self, one: Gang) -> None:
        self.engine.update(msgspec.structs.replace(one, state="finished", assignment=()))

    def run(self, seconds: float, times: int = MANY) -> None:
        """So many gangs, one after the other."""
        for _ in range(times):
            self.numbers += 1
            one = self.start(f"run-{self.numbers}")
            self.now += round(seconds * SECOND)
            self.end(one)
        self.plan()


class Stream(Line):
    """A cohort of 40 cpu whose `research` holds all of it, with gangs of one cpu that run for twenty seconds: every
    half a second one ends, and the next starts. Half of the quota belongs to `lender`."""

    def __init__(self) -> None:
        super().__init__()
        self.engine.update(queue("research", 20, "all", within="LowerPriority"))
        self.engine.update(queue("lender", 20, "all", reclaim="Any", within="LowerPriority"))
        self.engine.update(LocalQueue(namespace="default", name="lender", cluster_queue="lender"))
        self.running: list[Gang] = []
        for _ in range(80):
            self.numbers += 1
            self.running.append(self.start(f"run-{self.numbers}"))
            self.now += SECOND // 2
            if len(self.running) > 39:
                self.end(self.running.pop(0))
        self.numbers += 1
        self.running.append(self.start(f"run-{self.numbers}"))


def nothing_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuotaReturns, "within", lambda self, tree, usage, now: float("inf"))


@proven(without=nothing_comes_back)
def test_f878_an_owner_of_quota_waits_for_what_comes_back_within_seconds() -> None:
    """F878: gangs that hold quota for twenty seconds borrow all that another queue owns, and one ends every half a
    second; then the owner's gang comes. Holds: it waits for the next end, evicts none, and comes before those of the
    borrower that wait."""
    stream = Stream()
    stream.wants("next")
    stream.wants("owner", to="lender")
    waiting = stream.plan()
    assert not waiting.preempts and not waiting.reservations
    (told,) = (one.explanation.message for one in waiting.holds if one.uid == "uid-owner")
    assert told.endswith(". Waiting for workloads that it may preempt to end by themselves")
    stream.end(stream.running.pop(0))
    assert [one.uid for one in stream.plan(0.4).reservations] == ["uid-owner"]


def test_an_owner_evicts_at_once_where_it_needs_more_than_comes_back_within_seconds() -> None:
    stream = Stream()
    stream.wants("owner", to="lender", cpu=16)
    assert len(stream.plan().preempts) == 16


def test_an_owner_evicts_once_no_more_comes_back() -> None:
    stream = Stream()
    stream.wants("owner", to="lender")
    assert not stream.plan().preempts
    assert not stream.plan(15.0).preempts
    assert len(stream.plan(6.0).preempts) == 1


def test_one_that_would_borrow_does_not_wait_for_what_others_give_back() -> None:
    """It may not have what they give back."""
    stream = Stream()
    stream.wants("urgent", priority=9)
    assert [one.uid for one in stream.plan().preempts] == [stream.running[-1].uid]


def evicts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PreemptionPause, "waits", lambda self, *asked: False)


@proven(without=evicts_at_once)
def test_f877_gangs_that_end_within_seconds_are_not_evicted_without_any_setting() -> None:
    """F877: gangs of a queue run for a second each, and one of higher priority comes while one runs. Holds: it waits
    for that one to end instead of evicting it, with settings as they are shipped, and has its quota then."""
    line = Line()
    line.run(1.0)
    one = line.start("short")
    line.wants("urgent", priority=9)
    assert not line.plan().preempts
    line.end(one)
    assert [started.uid for started in line.plan(1.0).reservations] == ["uid-urgent"]


def test_what_does_not_end_after_all_is_evicted_twenty_seconds_after_its_start() -> None:
    line = Line()
    line.run(1.0)
    line.start("endless")
    started = line.now
    line.wants("urgent", priority=9)
    waiting = line.plan(3.0)
    assert not waiting.preempts and waiting.wake_at == started + preemption_pause.WAIT
    assert not line.plan(16.9).preempts
    assert [one.uid for one in line.plan(0.1).preempts] == ["uid-endless"]


def test_one_that_has_just_started_has_a_few_seconds_where_too_few_have_ended_to_tell() -> None:
    line = Line()
    one = line.start("first")
    line.wants("urgent", priority=9)
    waiting = line.plan(0.5)
    assert not waiting.preempts and waiting.wake_at == line.now - SECOND // 2 + preemption_pause.FRESH
    assert not line.plan(preemption_pause.FRESH / SECOND - 1.0).preempts
    assert [each.uid for each in line.plan(0.5).preempts] == [one.uid]


def test_and_longer_once_enough_have_ended_meanwhile() -> None:
    line = Line()
    line.run(1.0, preemption_pause.ENOUGH - 1)
    line.engine.update(queue("research", 2, within="LowerPriority"))
    one, other = line.start("one"), line.start("other")
    line.wants("urgent", priority=9)
    line.wants("as-urgent", priority=9)
    assert not line.plan().preempts
    line.end(one)
    assert len(line.plan(1.5).reservations) == 1
    assert not line.plan(15.0).preempts
    assert [each.uid for each in line.plan(5.0).preempts] == [other.uid]


def test_one_that_had_none_to_evict_when_its_time_ended_waits_again_for_the_next() -> None:
    line = Line(patience=30 * SECOND)
    one = line.start("running")
    line.wants("urgent", priority=9)
    assert not line.plan().preempts
    line.engine.update(msgspec.structs.replace(one, priority=20))
    assert not line.plan(33.0).preempts
    line.engine.update(one)
    assert not line.plan().preempts
    assert not line.plan(29.0).preempts
    assert [one.uid for one in line.plan(1.0).preempts] == ["uid-running"]


def no_end_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    known = PreemptionPause.over

    def over(self: PreemptionPause, now: int) -> list[str]:
        found = known(self, now)
        self._over = frozenset()
        return found

    monkeypatch.setattr(PreemptionPause, "over", over)


@proven(without=no_end_is_noted)
def test_f879_a_gang_whose_time_ended_evicts_however_late_the_next_plan_is() -> None:
    """F879: thousands wait, so that plans are seconds apart, and the time that a gang waits for others to end by
    themselves is over long before the next one. Holds: it evicts them then, and does not wait all over."""
    line = Line(patience=30 * SECOND)
    one = line.start("running")
    line.wants("urgent", priority=9)
    assert not line.plan().preempts
    assert [each.uid for each in line.plan(36.0).preempts] == [one.uid]


@pytest.mark.parametrize("seconds, times", [(60.0, MANY), (12.0, MANY)])
def test_at_once_where_gangs_run_for_longer(seconds: float, times: int) -> None:
    line = Line()
    line.run(seconds, times)
    line.start("running")
    line.wants("urgent", priority=9)
    assert [one.uid for one in line.plan().preempts] == ["uid-running"]


def test_one_that_runs_for_long_already_is_evicted_at_once_though_others_end_soon() -> None:
    line = Line()
    line.run(1.0)
    line.start("long")
    line.plan(21.0)
    line.wants("urgent", priority=9)
    assert [one.uid for one in line.plan().preempts] == ["uid-long"]


def test_one_long_run_among_many_short_ones_changes_nothing() -> None:
    line = Line()
    line.run(1.0)
    line.run(3_600.0, 1)
    line.run(1.0, 1)
    line.start("short")
    line.wants("urgent", priority=9)
    assert not line.plan().preempts


def test_zero_is_at_once_whatever_was_seen() -> None:
    line = Line(patience=0)
    line.run(1.0)
    line.start("short")
    line.wants("urgent", priority=9)
    assert [one.uid for one in line.plan().preempts] == ["uid-short"]


def test_time_in_which_nothing_was_planned_counts_as_run() -> None:
    """Nothing changes while a gang runs for an hour, so that no plan is made until it has ended."""
    line = Line()
    for _ in range(MANY):
        line.numbers += 1
        one = line.start(f"run-{line.numbers}")
        line.now += 3_600 * SECOND
        line.end(one)
    line.start("running")
    line.wants("urgent", priority=9)
    assert [one.uid for one in line.plan().preempts] == ["uid-running"]


def test_one_whose_victims_have_all_ended_waits_for_its_own_time() -> None:
    """What they leave may be on its way to it yet."""
    line = Line()
    pause, root = PreemptionPause(None), QuotaTreeNode("research", is_queue=True)
    assert not pause.waits("urgent", root, [], line.now)
    one = QueueMember(gang("short", "research"), "research")
    one.reserved_at = line.now
    for _ in range(preemption_pause.ENOUGH):
        pause.ended(one, root, line.now + SECOND)
    assert pause.waits("urgent", root, [], line.now)
    assert not pause.waits("urgent", root, [], line.now + preemption_pause.WAIT)
