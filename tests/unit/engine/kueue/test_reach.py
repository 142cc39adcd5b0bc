"""How much a gang could get at most, of its cohort and of others: asked thousands of times a second."""

from __future__ import annotations

import msgspec

from shoal.engine import Engine
from shoal.engine.kueue import Flavor, KueueSettings, LocalQueue
from shoal.engine.kueue.facts import FlavorResource, Terms
from shoal.engine.kueue.index.reach import Reach
from shoal.engine.model import Namespace
from shoal.engine.settings import EngineSettings
from tests.unit.engine.kueue.world import CPU, gang, queue

AT = FlavorResource("default", "cpu")
HIGH = 9


def most(held_by_owner: int, **settings: str) -> int:
    """What a gang of `owner`, which owns 4 cpu and holds so many for gangs as urgent, could get of a cohort of 8 cpu;
    the rest is held by `borrower`."""
    engine = Engine(EngineSettings(), KueueSettings(patience=0))
    engine.update(Namespace(name="default"))
    engine.update(Flavor(name="default"))
    for name in ("owner", "borrower"):
        more = {"reclaim": "Any", **settings} if name == "owner" else {}
        engine.update(queue(name, 4, "all", **more))
        engine.update(LocalQueue(namespace="default", name=name, cluster_queue=name))
    for number in range(8):
        name = "owner" if number < held_by_owner else "borrower"
        made = msgspec.structs.replace(gang(f"{name}-{number}", name, priority=HIGH, at=number), supply="off")
        engine.update(made)
        (given,) = engine.plan(1_000_000 * (number + 1)).reservations
        terms = {"kueue": Terms(cluster_queue=name)}
        stored = {"state": "admitted", "admitted_at": 1_000_000, "assignment": given.assignment, "details": terms}
        engine.update(msgspec.structs.replace(made, **stored))
    state = engine._queues.kueue.state
    return Reach(state.records, state.settings).most(state.records["owner"], AT, HIGH) // CPU


def test_a_queue_may_have_what_it_owns_and_another_borrows() -> None:
    assert most(held_by_owner=1) == 3


def test_a_queue_that_holds_all_it_owns_may_have_nothing_that_others_borrow() -> None:
    assert most(held_by_owner=4) == 0


def test_unless_it_may_evict_while_it_borrows() -> None:
    assert most(held_by_owner=2, borrow="LowerPriority") > 2
