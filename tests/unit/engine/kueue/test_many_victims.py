"""Many gangs that evict others in one cycle: each costs by its own tree, not by all victims that were chosen before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shoal.engine import Engine
from shoal.engine.kueue import KueueSettings
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
from shoal.engine.kueue.preemption.candidates import Victim
from shoal.engine.kueue.preemption.preempt import Preemptor
from shoal.engine.kueue.preemption.taken import TakenVictims
from shoal.engine.kueue.quota.tree import QuotaTreeNode
from shoal.engine.model import Gang, Namespace, PodSet
from shoal.engine.settings import EngineSettings
from tests.faults import proven

QUEUES, SMALL = 40, 20


def gang(queue: int, number: int, cpu: int, priority: int) -> Gang:
    name = f"w{queue}-{number}"
    sets = (PodSet(name="main", count=1, requests={"cpu": cpu}),)
    return Gang(
        key=f"Workload/default/{name}", uid=name, namespace="default", name=name, dialect="kueue", queue=f"line{queue}",
        priority=priority, created_at=number, supply="off", pod_sets=sets,
    )  # fmt: skip


def _each_by_itself(patch: pytest.MonkeyPatch) -> None:
    chosen: dict[int, dict[str, Victim]] = {}
    kept = TakenVictims.add

    def add(self: TakenVictims, victims: Iterable[Victim]) -> None:
        victims = list(victims)
        chosen.setdefault(id(self), {}).update({one.member.uid: one for one in victims})
        kept(self, victims)

    @contextmanager
    def gone(self: TakenVictims, node: QuotaTreeNode, more: Iterable[Victim] = ()) -> Iterator[None]:
        leaving = {**chosen.get(id(self), {}), **{one.member.uid: one for one in more}}.values()
        for victim in leaving:
            victim.leave()
        yield
        for victim in leaving:
            victim.come_back()

    patch.setattr(TakenVictims, "add", add)
    patch.setattr(TakenVictims, "gone", gone)


@proven(without=_each_by_itself)
def test_f561_a_cycle_of_many_evictions_costs_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """F561: in every one of many queues a gang evicts others, all in one cycle. Holds: quota is moved a few times for
    each victim, so that a plan of a thousand queues ends long before a leader's lease."""
    engine = Engine(EngineSettings(), KueueSettings())
    group = ResourceGroup(("cpu",), (FlavorQuota("default", {"cpu": Limits(SMALL)}),))
    policy = Preemption(reclaim_within_cohort="Any", within_cluster_queue="LowerPriority")
    engine.update(Namespace(name="default"))
    engine.update(Flavor(name="default"))
    engine.update(Cohort(name="all"))
    for queue in range(QUEUES):
        engine.update(
            ClusterQueue(name=f"queue{queue}", cohort="all", groups=(group,), namespace_selector={}, preemption=policy)
        )
        engine.update(LocalQueue(namespace="default", name=f"line{queue}", cluster_queue=f"queue{queue}"))
        for number in range(SMALL):
            engine.update(gang(queue, number, 1, 50))
    assert len(engine.plan(1_000_000).reservations) == QUEUES * SMALL
    moved: Counter[str] = Counter()
    remove = QuotaTreeNode.remove

    def counted(self: QuotaTreeNode, wanted: Any) -> None:
        moved["away"] += 1
        remove(self, wanted)

    monkeypatch.setattr(QuotaTreeNode, "remove", counted)
    for queue in range(QUEUES):
        engine.update(gang(queue, SMALL, SMALL, 200))
    assert len(engine.plan(2_000_000).preempts) == QUEUES * SMALL
    assert moved["away"] < 10 * QUEUES * SMALL


def test_while_it_waits_for_others_to_end_it_looks_for_no_other_victims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each plan of a busy queue would search again, and find those that it waits for already."""
    engine = Engine(EngineSettings(), KueueSettings(patience=10_000_000))
    group = ResourceGroup(("cpu",), (FlavorQuota("default", {"cpu": Limits(SMALL)}),))
    policy = Preemption(within_cluster_queue="LowerPriority")
    engine.update(Namespace(name="default"))
    engine.update(Flavor(name="default"))
    engine.update(ClusterQueue(name="queue0", groups=(group,), namespace_selector={}, preemption=policy))
    engine.update(LocalQueue(namespace="default", name="line0", cluster_queue="queue0"))
    for number in range(SMALL):
        engine.update(gang(0, number, 1, 50))
    assert len(engine.plan(1_000_000).reservations) == SMALL
    searches: Counter[str] = Counter()
    find = Preemptor.find_victims

    def counted(self: Preemptor, *given: Any, **named: Any) -> list[Victim]:
        searches["all"] += 1
        return find(self, *given, **named)

    monkeypatch.setattr(Preemptor, "find_victims", counted)
    engine.update(gang(0, SMALL, SMALL, 200))
    assert not engine.plan(2_000_000).preempts
    first = searches["all"]
    for number in range(5):
        engine.remove(gang(0, number, 1, 50).key)
        plan = engine.plan(2_100_000 + number)
        assert not plan.preempts and not plan.reservations
    assert searches["all"] == first > 0
    assert len(engine.plan(12_000_001).preempts) == SMALL - 5  # its patience is over: those that are left
    for number in range(5, SMALL):
        engine.remove(gang(0, number, 1, 50).key)
    assert [one.gang for one in engine.plan(13_000_000).reservations] == [gang(0, SMALL, SMALL, 200).key]
