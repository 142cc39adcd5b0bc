"""Preemptors that wait for others to end: no two count on the same gang, and what one frees too much helps the next."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from shoal.engine import Engine
from shoal.engine.kueue import KueueSettings
from shoal.engine.kueue.cycle.state import QueueState
from shoal.engine.kueue.facts import (
    ClusterQueue,
    Cohort,
    Flavor,
    FlavorQuota,
    Limits,
    LocalQueue,
    Preemption,
    ResourceGroup,
)
from shoal.engine.kueue.preemption.candidates import NO_GANGS, Victim
from shoal.engine.kueue.preemption.preempt import Preemptor
from shoal.engine.model import Gang, Namespace, PodSet
from shoal.engine.settings import EngineSettings
from tests.faults import proven

PATIENCE = 10_000_000


def gang(name: str, queue: str, cpu: int, priority: int = 0, created_at: int = 1) -> Gang:
    sets = (PodSet(name="main", count=1, requests={"cpu": cpu}),)
    return Gang(
        key=f"Workload/default/{name}", uid=name, namespace="default", name=name, dialect="kueue", queue=queue,
        priority=priority, created_at=created_at, supply="off", pod_sets=sets,
    )  # fmt: skip


def lenders(*names: str, quota: int = 10) -> Engine:
    """Queues that own quota and take it back from `borrower`, which owns none."""
    engine = Engine(EngineSettings(), KueueSettings(patience=PATIENCE))
    engine.update(Namespace(name="default"))
    engine.update(Flavor(name="default"))
    engine.update(Cohort(name="all"))
    policy = Preemption(reclaim_within_cohort="Any", within_cluster_queue="LowerPriority")
    for name in (*names, "borrower"):
        own = Limits(quota if name != "borrower" else 0)
        group = ResourceGroup(("cpu",), (FlavorQuota("default", {"cpu": own}),))
        engine.update(ClusterQueue(name=name, cohort="all", groups=(group,), namespace_selector={}, preemption=policy))
        engine.update(LocalQueue(namespace="default", name=name, cluster_queue=name))
    return engine


def started(engine: Engine, now: int) -> list[str]:
    plan = engine.plan(now)
    assert not plan.preempts
    return sorted(one.uid for one in plan.reservations)


def awaited(engine: Engine) -> dict[str, set[str]]:
    """By preemptor: for which gangs it waits."""
    rooms = engine._queues.kueue.state.rooms  # no decision shows it before one of them ends
    return {uid: {victim for _, victim, _ in room.victims} for uid, room in rooms.items()}


def end(engine: Engine, *names: str) -> None:
    for name in names:
        engine.remove(f"Workload/default/{name}")


def counting(patch: pytest.MonkeyPatch) -> Counter[str]:
    searches: Counter[str] = Counter()
    find = Preemptor.find_victims

    def counted(self: Preemptor, *given: Any, **named: Any) -> list[Victim]:
        searches["all"] += 1
        return find(self, *given, **named)

    patch.setattr(Preemptor, "find_victims", counted)
    return searches


def _claims_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueState, "claimed", lambda self, member, wanted: NO_GANGS)


@proven(without=_claims_nothing)
def test_f700_two_preemptors_of_a_cohort_do_not_wait_for_the_same_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    """F700: two gangs want back what a third queue borrows, one after the other, and wait for gangs there to end.
    Holds: each waits for its own; when these end it starts, though the other's run on; neither looks for victims
    again."""
    engine = lenders("one", "two")
    for name in ("w0", "w1", "w2", "w3"):
        engine.update(gang(name, "borrower", 5))
    assert len(started(engine, 1_000_000)) == 4
    engine.update(gang("first", "one", 10))
    assert started(engine, 2_000_000) == []
    engine.update(gang("second", "two", 10, created_at=2))
    assert started(engine, 3_000_000) == []
    waits_for = awaited(engine)
    assert waits_for["first"] | waits_for["second"] == {"w0", "w1", "w2", "w3"}
    searches = counting(monkeypatch)
    end(engine, *waits_for["second"])
    assert started(engine, 4_000_000) == ["second"]
    end(engine, *waits_for["first"])
    assert started(engine, 5_000_000) == ["first"]
    assert searches["all"] == 0


def test_one_that_comes_before_takes_a_victim_over_and_the_other_looks_for_another() -> None:
    engine = lenders("one", "two")
    for name, priority in (("w0", 1), ("w1", 0)):
        engine.update(gang(name, "borrower", 10, priority))
    assert len(started(engine, 1_000_000)) == 2
    engine.update(gang("low", "one", 10))
    assert started(engine, 2_000_000) == []
    assert awaited(engine) == {"low": {"w1"}}
    engine.update(gang("high", "two", 10, priority=9, created_at=2))
    assert started(engine, 3_000_000) == []
    assert awaited(engine) == {"high": {"w1"}, "low": {"w0"}}
    end(engine, "w1")
    assert started(engine, 4_000_000) == ["high"]
    end(engine, "w0")
    assert started(engine, 5_000_000) == ["low"]


def test_what_one_frees_beyond_its_need_is_part_of_what_the_next_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are still waited for in every later plan, without a search."""
    engine = lenders("one", "two")
    for name in ("w0", "w1"):
        engine.update(gang(name, "borrower", 10))
    assert len(started(engine, 1_000_000)) == 2
    engine.update(gang("first", "one", 8))
    engine.update(gang("second", "two", 10, created_at=2))
    assert started(engine, 2_000_000) == []
    searches = counting(monkeypatch)
    for moment in range(5):
        engine.update(gang(f"more{moment}", "borrower", 30))  # never fits; the tree is looked at again
        assert started(engine, 3_000_000 + moment) == []
    assert searches["all"] <= 5  # of those that come
    end(engine, "w0", "w1")
    assert started(engine, 4_000_000) == ["first", "second"]


def test_with_the_end_of_a_preemptor_its_victims_are_free_for_others() -> None:
    engine = lenders("one", "two")
    engine.update(gang("w0", "borrower", 20))
    assert started(engine, 1_000_000) == ["w0"]
    engine.update(gang("first", "one", 10))
    assert started(engine, 2_000_000) == []
    engine.update(gang("second", "two", 10, created_at=2))
    assert started(engine, 3_000_000) == []
    end(engine, "first")
    assert started(engine, 4_000_000) == []
    assert awaited(engine) == {"second": {"w0"}}
    assert [one.uid for one in engine.plan(5_000_000 + PATIENCE).preempts] == ["w0"]
