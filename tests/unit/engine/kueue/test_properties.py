"""What must hold whatever the queues look like."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.engine.kueue import FlavorResource, Kueue
from shoal.engine.kueue.cycle import planner
from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.views import victims_of
from shoal.engine.model import Gang, Namespace
from tests.faults import proven
from tests.unit.engine.kueue.random_world import random_facts, random_gang, random_world
from tests.unit.engine.kueue.world import DEFAULTS, World

SEEDS = st.integers(min_value=0, max_value=10**9)
MANY = settings(max_examples=150, deadline=None)


def assert_within_quota(kueue: Kueue) -> None:
    """No node uses more than its subtree has, plus what it may borrow; no tree more than it has."""
    kueue.state.forest.settled()
    for node in [*kueue.state.forest.queues.values(), *kueue.state.forest.cohorts.values()]:
        for at, used in node.usage.items():
            limits = node.limits.get(at)
            if node.parent is None:
                assert used <= node.subtree.get(at, 0), (node.name, at, used)
            elif limits is not None and limits.borrowing is not None:
                assert used <= node.subtree[at] + limits.borrowing, (node.name, at, used)


def live(chance: random.Random, world: World, queues: list[str], steps: int = 6) -> None:
    """Arrivals and ends, with decisions carried out in between."""
    number = 0
    for _ in range(steps):
        for _ in range(chance.randint(1, 5)):
            world.tell(random_gang(chance, number, queues))
            number += 1
        world.settle()
        assert_within_quota(world.kueue)
        running = sorted(world.running())
        world.finish(*chance.sample(running, min(len(running), chance.randint(0, 2))))
    world.settle()


@MANY
@given(SEEDS)
def test_never_over_quota_and_always_at_rest(seed):
    chance, world, queues = random_world(seed)
    live(chance, world, queues)
    assert_within_quota(world.kueue)


@MANY
@given(SEEDS, st.sampled_from((0, 3_000_000)))
@example(792, 0)
@example(849, 3_000_000)
def test_never_over_quota_while_victims_have_yet_to_leave(seed, patience):
    """Gangs come and end while victims take their time; some preemptors wait for theirs to end by themselves."""
    chance, world, queues = random_world(seed, patience=patience)
    number = 0
    for _ in range(8):
        for _ in range(chance.randint(1, 6)):
            world.tell(random_gang(chance, number, queues))
            number += 1
        world.plan()
        assert_within_quota(world.kueue)
        told = [one.gang.rpartition("/")[2] for one in world.leaving]
        if told and chance.random() < 0.5:
            world.let_go(chance.choice(told))
        running = sorted(world.running() - {*told})
        world.finish(*chance.sample(running, min(len(running), chance.randint(0, 2))))


@MANY
@given(SEEDS)
def test_no_gang_is_evicted_twice_by_the_same_gang_without_outside_change(seed):
    chance, world, queues = random_world(seed)
    for number in range(12):
        world.tell(random_gang(chance, number, queues))
    world.settle()
    assert len(world.evictions) == len(set(world.evictions))
    assert len(world.admitted_in_order) <= 2 * len(world.gangs) + len(world.evictions)


@MANY
@given(SEEDS)
def test_queues_that_preempt_come_to_rest_in_bounded_rounds(seed):
    """A round is a plan, carried out, with all victims gone; every round but the last starts or stops somebody."""
    chance, world, queues = random_world(seed)
    for number in range(12):
        world.tell(random_gang(chance, number, queues))
    cycles = world.kueue.planner.cycles
    rounds = world.settle()
    assert rounds <= 2 * len(world.gangs) + 2
    assert world.kueue.planner.cycles - cycles <= 20 * len(world.gangs) * (rounds + 1)
    decisions = world.plan()
    assert not decisions.reserved and not decisions.evicted


@MANY
@given(SEEDS)
def test_the_order_of_facts_does_not_matter(seed):
    chance = random.Random(seed)
    facts = random_facts(chance)
    queues = [fact.name for fact in facts if type(fact).__name__ == "ClusterQueue"]
    gangs = [random_gang(chance, number, queues) for number in range(10)]
    fair = chance.random() < 0.5
    answers = []
    for _ in range(2):
        world = World(*facts, fair_sharing=fair)
        world.tell(*gangs)
        decisions = world.plan()
        answers.append((decisions.reserved, decisions.evicted))
        chance.shuffle(gangs)
        chance.shuffle(facts)
    assert answers[0] == answers[1]


@MANY
@given(SEEDS)
def test_a_ledger_rebuilt_from_the_facts_agrees(seed):
    """At rest, a fresh ledger told the same facts has the same usage and wants nothing done either."""
    chance, world, queues = random_world(seed)
    live(chance, world, queues, steps=3)
    fresh = World(*_facts_of(world.kueue), fair_sharing=world.kueue.settings.fair_sharing)
    fresh.tell(*world.gangs.values())
    decisions = fresh.kueue.plan(world.now)
    assert not decisions.reserved
    for name, node in world.kueue.state.forest.queues.items():
        other = fresh.kueue.state.forest.queues[name]
        assert {at: used for at, used in node.usage.items() if used} == {at: u for at, u in other.usage.items() if u}


def _facts_of(kueue: Kueue) -> list[object]:
    forest = kueue.state.forest
    facts: list[object] = [Namespace(name="default"), *kueue.state.flavors.values(), *forest._cohort_facts.values()]
    return [*facts, *(record.fact for record in kueue.state.records.values())]


@MANY
@given(SEEDS)
def test_victims_are_never_spare(seed):
    chance, world, queues = random_world(seed)
    live(chance, world, queues, steps=2)
    wanting: Gang = random_gang(chance, 99, queues)
    name = wanting.queue
    record = world.kueue.state.records[name]
    wanted = {FlavorResource("default", "cpu"): chance.randint(1, 8) * 1000}
    if record.node.fits(wanted):
        return  # no gang is asked to leave then
    victims = victims_of(world.kueue, wanting, name, wanted, frozenset(wanted), world.now)
    for victim in victims:
        victim.leave()
    assert not victims or record.node.fits(wanted)
    for victim in victims:
        victim.come_back()
        fits_anyway = record.node.fits(wanted)
        borrows = any(record.node.borrows_with(at, amount) for at, amount in wanted.items())
        # Spare only where all others must go so that the preemptor need not borrow.
        assert not fits_anyway or (not world.kueue.settings.fair_sharing and borrows)
        victim.leave()
    for victim in victims:
        victim.come_back()


def takes_back_any_equal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueRecord, "tie", lambda self, member: (0, member.uid.encode()))
    patch.setattr(planner.QueuePlanner, "_equals_behind", lambda self, *_: [])


@proven(without=takes_back_any_equal)
@MANY
@example(18820090)
@given(SEEDS)
def test_f753_same_queue_same_shape_starts_in_order(seed):
    """F753: gangs of one queue get quota in one plan, and another of its cohort reclaims some of it. Holds: of equal
    ones the first in line starts, whatever their UIDs."""
    assert out_of_order(seed) == []


def out_of_order(seed):
    """Pairs of equal gangs of one queue of which the later one started before the first, in one plan."""
    chance, world, queues = random_world(seed)
    gangs = [random_gang(chance, number, queues) for number in range(12)]
    world.tell(*gangs)
    decisions = world.plan()
    place = {entry.uid: index for index, entry in enumerate(decisions.reserved)}
    found = []
    for one in gangs:
        for other in gangs:
            same = one.queue == other.queue and one.pod_sets == other.pod_sets and one.priority == other.priority
            first = (one.created_at, one.uid) < (other.created_at, other.uid)
            if same and first and place.get(one.uid, len(place)) > place.get(other.uid, len(place)):
                found.append((one.uid, other.uid))
    return found


@proven(without=lambda patch: patch.setattr(planner.QueuePlanner, "_equals_behind", lambda self, *_: []))
def test_f870_of_equal_gangs_none_passes_another_whose_quota_is_taken_within_a_plan():
    """F870: of two equal gangs the first got quota of one flavor and the second, in part, of another; a gang of the
    cohort took the first one's back within the same plan, and the second started before it. Holds: both are tried
    again, in their order."""
    assert out_of_order(2326) == []


def never_restless(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planner, "RESTLESS", planner.MOST_CYCLES)


@proven(without=never_restless)
def test_f762_a_plan_comes_to_rest_where_gangs_wait_for_others_to_end(monkeypatch):
    """F762: with a pause before evictions, what victims hold yet is not kept from others: a gang of another queue takes
    what a preemptor needs beside it, is sent away again within the same plan, and so on. Holds: such a plan keeps rooms
    whole after a while, and ends."""
    monkeypatch.setitem(DEFAULTS, "patience", 10_000_000)
    chance, world, queues = random_world(2293)
    live(chance, world, queues, steps=3)
    assert not world.plan().reserved
