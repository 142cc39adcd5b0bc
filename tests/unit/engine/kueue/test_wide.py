"""What must hold in wide worlds: shortcuts change nothing, no gang waits that could start, what would help is true."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Any

import msgspec
import pytest

from shoal.engine.kueue import ClusterQueue, FlavorQuota, Kueue, Limits, Preemption, ResourceGroup
from shoal.engine.kueue.flavors.assign import Search
from shoal.engine.kueue.flavors.assignment import Outcome
from shoal.engine.kueue.index.reach import Reach
from shoal.engine.kueue.preemption.preempt import Preemptor
from shoal.engine.model import Gang
from tests.unit.engine.kueue.test_properties import assert_within_quota
from tests.unit.engine.kueue.wide_world import queues_of, wide_gang, wide_world
from tests.unit.engine.kueue.world import World

ANYTHING = 1 << 80


@pytest.mark.parametrize("block", range(8))
def test_bounds_change_no_decision(block, monkeypatch):
    """A search for victims that is not tried because it could not succeed would not have."""
    for seed in range(block * 10, block * 10 + 10):
        answers = []
        for bounded in (True, False):
            with monkeypatch.context() as patch:
                if not bounded:
                    patch.setattr(Reach, "most", lambda *asked, **more: ANYTHING)
                    patch.setattr(Reach, "fit", lambda *asked: None)
                answers.append(_cycles(seed))
        assert answers[0] == answers[1], seed


def _cycles(seed: int) -> list[Any]:
    """Some cycles, one head per queue, with new heads each time; victims leave at once."""
    chance, world, facts = wide_world(seed, exact=True)
    found = []
    for step in range(4):
        world.now += 1_000_000
        for queue in queues_of(facts):
            world.tell(wide_gang(chance, len(world.gangs) + 100 * step, [queue]))
        decisions = world.kueue.cycle(world.now)
        found.append((decisions.reserved, decisions.evicted, decisions.waiting))
        for entry in decisions.evicted:
            world.kueue.remove(world.gangs[entry.gang.rpartition("/")[2]])
        for wait in decisions.waiting:
            world.kueue.remove(world.gangs[wait.gang.rpartition("/")[2]])
    return found


@pytest.mark.parametrize("block", range(8))
def test_at_rest_no_gang_waits_that_could_start(block):
    for seed in range(block * 12, block * 12 + 12):
        chance, world, facts = wide_world(seed)
        for number in range(18):
            world.tell(wide_gang(chance, number, queues_of(facts)))
            if number % 6 == 5:
                world.settle()
                assert_within_quota(world.kueue)
                assert list(_could_start(world.kueue)) == [], seed
                world.finish(*chance.sample(sorted(world.running()), min(2, len(world.running()))))


def _could_start(kueue: Kueue) -> Iterable[str]:
    """Who would get quota, or somebody's, by a plain look. Where a strict head waits, others may have to."""
    state = kueue.state
    for record in state.records.values():
        tree = [state.records[node.name] for node in record.node.root().queues()]
        if any(other.waiting.strict and len(other.waiting) for other in tree) or state.rooms:
            continue
        for member in record.waiting.everyone():
            victims = Preemptor(state.records, state.settings, spared=state.spared_by)
            oracle = victims.oracle(member, kueue.now)
            search = Search(member, record.fact, record.groups, record.node, state.flavors, state.settings, oracle)
            memory, member.memory = member.memory, None
            found = search.run()
            member.memory = memory
            preempts = found.outcome is Outcome.PREEMPT and victims.find_victims(
                member, found.usage, found.needing_room, kueue.now
            )
            if found.outcome is Outcome.FIT or preempts:
                yield member.uid


@pytest.mark.parametrize("block", range(8))
def test_what_would_help_does_and_nothing_less_would(block):
    for seed in range(block * 5, block * 5 + 5):
        chance, world, facts = wide_world(seed)
        for number in range(14):
            world.tell(wide_gang(chance, number, queues_of(facts)))
        world.settle()
        running = [gang.key for gang in world.gangs.values() if gang.state == "admitted"]
        for gang in [gang for gang in world.gangs.values() if gang.state == "waiting"]:
            told = world.kueue.explain(gang.key)
            assert told is not None
            if told.least_increase is not None:
                place, more = told.least_increase.place, told.least_increase.amounts
                assert _starts(world, _raised(facts, place, more), gang), (seed, gang.key)
                for resource in more if all(part.min_count is None for part in gang.pod_sets) else ():
                    less = _raised(facts, place, {**more, resource: more[resource] - 1})
                    assert not _starts(world, less, gang), (seed, gang.key)
            if told.release:
                assert _starts(world, facts, gang, told.release), (seed, gang.key)
            for size in range(min(len(told.release), 2)):
                shorter = combinations(running, size)
                assert not any(_starts(world, facts, gang, some) for some in shorter), (seed, gang.key)


def _starts(world: World, facts: list[Any], gang: Gang, ended: Iterable[str] = ()) -> bool:
    """Would it start if no other gang waited, none could be evicted, and these had ended?"""
    peaceful = [
        msgspec.structs.replace(fact, preemption=Preemption()) if isinstance(fact, ClusterQueue) else fact
        for fact in facts
    ]
    fresh = World(*peaceful, fair_sharing=world.kueue.settings.fair_sharing)
    kept = [one for one in world.gangs.values() if one.state == "admitted" and one.key not in ended]
    fresh.tell(*kept, gang)
    return any(entry.gang == gang.key for entry in fresh.kueue.plan(world.now).reserved)


def _raised(facts: list[Any], place: str, more: dict[str, int]) -> list[Any]:
    """The facts with one queue's quota on one flavor raised."""
    queue, _, flavor = place.rpartition("/")

    def raised(quota: FlavorQuota) -> FlavorQuota:
        if quota.name != flavor:
            return quota
        return FlavorQuota(
            flavor,
            {
                name: Limits(limits.nominal + more.get(name, 0), limits.borrowing, limits.lending)
                for name, limits in quota.limits.items()
            },
        )

    found = []
    for fact in facts:
        if isinstance(fact, ClusterQueue) and fact.name == queue:
            groups = [ResourceGroup(one.resources, tuple(raised(each) for each in one.flavors)) for one in fact.groups]
            fact = msgspec.structs.replace(fact, groups=tuple(groups))
        found.append(fact)
    return found
