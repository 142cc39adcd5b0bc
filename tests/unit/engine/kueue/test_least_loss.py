"""Where a queue asks for it, those gangs are evicted that lose least, of the gangs that may be evicted at all."""

from __future__ import annotations

import msgspec
import pytest

from shoal.engine.kueue import FlavorQuota, FlavorResource, Limits, Loss, ResourceGroup, Terms, loss_of
from shoal.engine.model import PodSet
from tests.unit.engine.kueue.world import World, gang, queue

SECOND = 1_000_000
GPU = "nvidia.com/gpu"


def gpus(name: str, count: int, **more):
    return gang(name, "q", pod_sets=(PodSet(name="main", count=1, requests={"cpu": 1000, GPU: count}),), **more)


def crowded(*, least_loss: bool) -> World:
    """Four devices: `old` has two of them for long, `young` the others since a moment, at a higher priority."""
    group = ResourceGroup(("cpu", GPU), (FlavorQuota("default", {"cpu": Limits(64_000), GPU: Limits(4)}),))
    world = World(queue("q", groups=(group,), within="LowerPriority", least_loss=least_loss))
    world.tell(gpus("old", 2))
    world.plan()
    world.now += 3600 * SECOND
    world.tell(gpus("young", 2, priority=1))
    world.plan()
    world.now += 60 * SECOND
    return world


@pytest.mark.parametrize(("least_loss", "leaves"), [(False, "old"), (True, "young")])
def test_the_queue_says_what_decides(least_loss: bool, leaves: str) -> None:
    world = crowded(least_loss=least_loss)
    world.tell(gpus("urgent", 2, priority=5))
    assert [one.gang for one in world.plan().evicted] == [f"Workload/default/{leaves}"]


def test_what_was_saved_is_not_lost() -> None:
    world = crowded(least_loss=True)
    old = world.gangs["old"]
    terms = msgspec.structs.replace(old.details["kueue"], saved_at=world.now - SECOND)
    world.tell(msgspec.structs.replace(old, details={"kueue": terms}))
    world.tell(gpus("urgent", 2, priority=5))
    assert [one.gang for one in world.plan().evicted] == ["Workload/default/old"]


def test_no_gang_is_evicted_that_the_rules_spare() -> None:
    world = crowded(least_loss=True)
    world.tell(gpus("equal", 2, priority=1))
    assert [one.gang for one in world.plan().evicted] == ["Workload/default/old"], "young has its priority"


def test_accelerators_count_before_cores() -> None:
    usage = {FlavorResource("f", "cpu"): 4000, FlavorResource("f", GPU): 2, FlavorResource("f", "memory"): 1 << 30}
    assert loss_of(usage, 10 * SECOND, 40 * SECOND) == Loss(60, 120)
    assert loss_of(usage, 0, 40 * SECOND) == Loss(0, 0), "it never started"
    assert Terms().saved_at == 0


def test_borrowers_of_the_cohort_leave_by_what_they_lose() -> None:
    group = ResourceGroup(("cpu",), (FlavorQuota("default", {"cpu": Limits(2000)}),))
    owner = queue("owner", groups=(group,), cohort="all", reclaim="Any", least_loss=True)
    world = World(owner, queue("other", 0, "all"))
    world.tell(gang("old", "other"))
    world.plan()
    world.now += 3600 * SECOND
    world.tell(gang("young", "other", priority=1))
    world.plan()
    world.now += 60 * SECOND
    world.tell(gang("urgent", "owner"))
    assert [one.gang for one in world.plan().evicted] == ["Workload/default/young"]
