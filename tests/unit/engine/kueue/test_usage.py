"""Queues that are shared by usage: the LocalQueue (or user) that had less lately goes first."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.engine import Engine
from shoal.engine.kueue import ConsumedUsage, LocalQueue, Terms, UsageSharing
from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.fair_sharing import fair
from shoal.engine.kueue.index.heads import IndexedHeads
from shoal.engine.kueue.index.plain import PlainHeads
from shoal.engine.kueue.preemption.candidates import order_key
from shoal.engine.kueue.usage import UsageLedger
from shoal.engine.model import Gang, Namespace
from tests.faults import proven
from tests.unit.engine.kueue.history import History
from tests.unit.engine.kueue.world import CPU, World, gang, queue

SECOND = 1_000_000
HOUR = UsageSharing(half_life=3600 * SECOND, sampling=60 * SECOND)


def local(name: str, had: float = 0, *, at: int = SECOND, users: dict[str, float] | None = None, **more: Any) -> Any:
    """A LocalQueue of the cluster queue `team` that had so many cores lately."""
    consumed = ConsumedUsage(
        amounts={"cpu": had * CPU}, at=at, users={user: {"cpu": cpu * CPU} for user, cpu in (users or {}).items()}
    )
    return LocalQueue(namespace="default", name=name, cluster_queue="team", consumed=consumed, **more)


def shared(*locals_: LocalQueue, cpu: int = 4, sharing: UsageSharing = HOUR, **more: Any) -> World:
    return World(queue("team", cpu, by_usage=True, **more), *locals_, usage_sharing=sharing)


def of(user: str, made: Gang) -> Gang:
    return msgspec.structs.replace(made, details={"kueue": Terms(user=user)})


def test_the_queue_that_had_less_goes_first_whatever_its_priority() -> None:
    world = shared(local("much", 8), local("little", 1))
    world.tell(gang("first", "much", 4, priority=100, at=1), gang("second", "little", 4, at=2))
    world.plan()
    assert world.admitted_in_order == ["second"]


def test_without_the_setting_or_the_scope_usage_does_not_count() -> None:
    for world in (
        World(queue("team", 4, by_usage=True), local("much", 8), local("little", 1)),
        World(queue("team", 4), local("much", 8), local("little", 1), usage_sharing=HOUR),
    ):
        world.tell(gang("first", "much", 4, at=1), gang("second", "little", 4, at=2))
        world.plan()
        assert world.admitted_in_order == ["first"]


def test_a_reservation_counts_at_once_so_that_queues_take_turns() -> None:
    world = shared(local("a"), local("b"), cpu=4)
    world.tell(*(gang(f"{name}{number}", name, at=number) for number in range(4) for name in "ab"))
    world.plan()
    assert world.admitted_in_order == ["a0", "b0", "a1", "b1"]


def test_what_was_had_counts_half_after_the_half_life() -> None:
    world = shared(local("a", 8))
    world.kueue.plan(3601 * SECOND)
    known = world.kueue.usage("default", "a")
    assert known is not None and known.consumed.amounts["cpu"] == pytest.approx(4 * CPU)
    assert known.share == pytest.approx(4) and known.consumed.at == 3601 * SECOND


def test_what_runs_is_added_at_every_sample() -> None:
    world = shared(local("a"))
    world.tell(gang("runs", "a", 4))
    world.plan()
    began = world.now
    for minute in range(1, 61):
        world.kueue.plan(began + minute * 60 * SECOND)
    known = world.kueue.usage("default", "a")
    penalty = 4 * (1 - 0.5 ** (1 / 60))
    assert known is not None and known.share == pytest.approx(2 + penalty / 2, rel=1e-3)


def test_a_weight_divides_and_a_weight_of_nothing_comes_last() -> None:
    world = shared(local("heavy", 4, weight=4 * 10**9), local("light", 2), local("none", 0, weight=0), cpu=1)
    world.tell(*(gang(name, name, at=number) for number, name in enumerate(("none", "light", "heavy"))))
    world.plan()
    assert world.admitted_in_order == ["heavy"]
    assert [member.gang.name for member in world.kueue.state.records["team"].waiting.everyone()] == ["light", "none"]
    assert world.kueue.places("Workload/default/none").position == 2


def test_weights_of_resources_decide_what_counts() -> None:
    sharing = msgspec.structs.replace(HOUR, weights={"cpu": 0.0})
    world = shared(local("much", 8), local("little", 1), sharing=sharing)
    world.tell(gang("first", "much", 4, at=1), gang("second", "little", 4, at=2))
    world.plan()
    assert world.admitted_in_order == ["first"]


def test_without_a_half_life_nothing_is_accumulated() -> None:
    world = shared(local("a"), sharing=UsageSharing(sampling=60 * SECOND))
    world.tell(gang("runs", "a", 4))
    world.plan()
    world.kueue.plan(7200 * SECOND)
    assert world.kueue.usage("default", "a").share == 0


def test_users_share_within_a_queue_only_when_that_is_asked_for() -> None:
    gangs = (of("ann", gang("ann-1", "a", 4, at=1)), of("bob", gang("bob-1", "a", 4, at=2)))
    for per_user, first in ((True, "bob-1"), (False, "ann-1")):
        sharing = msgspec.structs.replace(HOUR, per_user=per_user)
        world = shared(local("a", 8, users={"ann": 7, "bob": 1}), sharing=sharing)
        world.tell(*gangs)
        world.plan()
        assert world.admitted_in_order == [first]


def test_a_user_of_a_queue_that_had_much_waits_for_users_of_another() -> None:
    world = shared(local("a", 8, users={"ann": 0}), local("b", 2, users={"bob": 2}),
                   sharing=msgspec.structs.replace(HOUR, per_user=True))  # fmt: skip
    world.tell(of("ann", gang("ann-1", "a", 4, at=1)), of("bob", gang("bob-1", "b", 4, at=2)))
    world.plan()
    assert world.admitted_in_order == ["bob-1"]


def test_a_strict_queue_has_another_head_after_a_sample() -> None:
    world = shared(local("a", 1), local("b", 2), cpu=4, strategy="StrictFIFO")
    world.tell(gang("runs", "a", 3, at=1))
    world.plan()
    world.tell(gang("wide", "a", 4, at=2), gang("narrow", "b", 1, at=3))
    world.plan()
    assert world.admitted_in_order == ["runs"], "the head of the queue that had less keeps the rest"
    world.kueue.update(world.gangs["runs"])
    decided = world.kueue.plan(world.now + 7200 * SECOND)
    assert [entry.gang for entry in decided.reserved] == ["Workload/default/narrow"]


def test_the_queue_that_had_more_gives_way_first() -> None:
    world = shared(local("a", 1), local("b", 9), cpu=2, within="LowerPriority")
    world.tell(gang("of-b", "b", at=1))
    world.plan()
    world.tell(gang("of-a", "a", at=2))
    world.plan()
    world.tell(gang("above", "a", at=3, priority=10))
    decided = world.plan()
    assert [evict.gang for evict in decided.evicted] == ["Workload/default/of-b"]


def test_a_copy_of_an_engine_knows_what_was_had() -> None:
    engine = Engine(queues=World(usage_sharing=HOUR).kueue.settings)
    facts = (Namespace(name="default"), queue("team", 4, by_usage=True), local("a", 8))
    for fact in facts:
        engine.update(fact)
    engine.update(gang("one", "a"))
    engine.plan(3601 * SECOND)
    (copied,) = (fact for fact in engine.facts() if isinstance(fact, LocalQueue))
    assert copied.consumed is not None and copied.consumed.amounts["cpu"] == pytest.approx(4 * CPU)


def forgets_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UsageLedger, "update_queue", lambda self, fact: None)


@proven(without=forgets_stored)
def test_f280_usage_survives_a_restart() -> None:
    """F280: the controller restarts between two samples. Holds: a LocalQueue that had much lately still goes last, and
    what was stored fades from the moment it was stored."""
    world = shared(local("much", 8, at=SECOND), local("little", 1, at=SECOND))
    world.tell(gang("first", "much", 4, at=1), gang("second", "little", 4, at=2))
    world.now = 3601 * SECOND
    world.plan()
    assert world.admitted_in_order == ["second"]
    assert world.kueue.usage("default", "much").share == pytest.approx(4, rel=1e-3)


def keeps_penalties(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UsageLedger, "left", lambda self, uid: None)


@proven(without=keeps_penalties)
def test_f281_a_reservation_that_is_taken_back_is_not_held_against_its_queue() -> None:
    """F281: a gang loses its quota before it was admitted, or is deleted. Holds: the penalty of its reservation is gone
    with it."""
    world = shared(local("a"), local("b"))
    for name in ("back", "gone"):
        waiting = gang(name, "a", 4)
        world.kueue.update(waiting)
        world.now += SECOND
        assert world.kueue.plan(world.now).reserved
        assert world.kueue.usage("default", "a").share > 0
        world.kueue.update(waiting) if name == "back" else world.kueue.remove(waiting)
        if name == "back":
            assert world.kueue.usage("default", "a").share == 0
            world.kueue.remove(waiting)
    assert world.kueue.usage("default", "a").share == 0


@pytest.mark.parametrize("block", range(2))
def test_where_the_index_rests_the_plain_way_has_no_gang_to_try(block: int) -> None:
    for seed in range(block * 30, block * 30 + 30):
        history = History(seed, sharing=UsageSharing(half_life=20 * SECOND, sampling=5 * SECOND))
        for _ in range(80):
            if history.step() == "plan":
                assert history.next_by_plain() == [], seed
        assert history.calm(), seed


def test_where_no_gang_may_be_evicted_index_and_plain_way_decide_the_same() -> None:
    for seed in range(20):
        ends = []
        for heads in (IndexedHeads, PlainHeads):
            sharing = UsageSharing(half_life=20 * SECOND, sampling=5 * SECOND)
            history = History(seed, peaceful=True, heads=heads, sharing=sharing)
            for _ in range(80):
                history.step()
            assert history.calm()
            ends.append(history.gangs)
        assert ends[0] == ends[1], seed


def _samples_queues_that_are_gone(patch: pytest.MonkeyPatch) -> None:
    def next_sample(self: UsageLedger) -> int:
        return min([one.at or 0 for one in self._lanes.values()]) + self.settings.sampling

    patch.setattr(UsageLedger, "_after_last_sample", next_sample)


@proven(without=_samples_queues_that_are_gone)
def test_f833_the_last_queue_that_is_shared_by_usage_may_go() -> None:
    """F833: usage is sampled, and the last LocalQueue is deleted before the next sample. Holds: the controller goes on,
    asks for no further sample, and counts again once there is a queue."""
    world = shared(local("a", 8))
    world.tell(gang("runs", "a", 1))
    world.plan()
    for name in ("a", "team"):  # the world makes one of the queue's own name
        world.kueue.remove(local(name))
    world.kueue.plan(3601 * SECOND)
    assert world.kueue.usage("default", "a") is None
    world.tell(local("b", 8, at=3601 * SECOND))
    world.kueue.plan(7201 * SECOND)
    known = world.kueue.usage("default", "b")
    assert known is not None and known.consumed.amounts["cpu"] == pytest.approx(4 * CPU)


def _counts_usage_in_the_own_queue_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueRecord, "_by_usage", lambda self, turns: turns)
    patch.setattr(fair, "order_within", lambda request, record, member: order_key(request, member))


@pytest.mark.parametrize("fair_sharing", [False, True])
@proven(without=_counts_usage_in_the_own_queue_alone)
def test_f880_a_queue_that_takes_its_quota_back_takes_it_from_those_who_had_most(fair_sharing: bool) -> None:
    """F880: a queue that is shared by usage has borrowed, and another reclaims. Holds: gangs of the LocalQueue that had
    most lately leave first, whatever their priority, as where the queue itself is short."""
    owner = queue("owner", 16, "all", reclaim="Any")
    borrower = queue("team", 16, "all", by_usage=True)
    world = World(owner, borrower, local("much", 8), local("little", 1), usage_sharing=HOUR, fair_sharing=fair_sharing)
    world.tell(gang("high", "much", 20, priority=10, at=1), gang("low", "little", 12, priority=1, at=2))
    world.settle()
    assert world.running() == {"high", "low"}
    world.tell(gang("reclaims", "owner", 10, at=3))
    world.plan()
    assert world.evictions == [("reclaims", "high")]
