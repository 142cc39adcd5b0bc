"""A gang that waits learns what is short, who holds it, and what would help."""

from __future__ import annotations

import pytest

from shoal.engine.kueue import Flavor, FlavorQuota, ResourceGroup
from shoal.engine.model import Taint
from tests.unit.engine.kueue.world import CPU, World, cohort, gang, limits, queue


def key(name: str) -> str:
    return f"Workload/default/{name}"


def full_queue() -> World:
    """Ten cpus, nine in use."""
    world = World(queue("a", 10), gang("small", "a", cpu=2, at=1), gang("large", "a", cpu=7, at=2))
    world.plan()
    world.tell(gang("first", "a", cpu=3, at=3), gang("second", "a", cpu=8, at=4))
    world.plan()
    return world


def test_shortfall_holders_position_and_what_would_help():
    answer = full_queue().kueue.explain(key("first"))
    assert answer.message.endswith("insufficient unused quota for cpu in flavor default, 2 more needed")
    assert [(s.resource, s.missing, s.place) for s in answer.shortfalls] == [("cpu", 2 * CPU, "a/default")]
    assert (answer.position, answer.queue_length) == (1, 2)
    assert answer.holders == (key("large"), key("small"))
    assert (answer.least_increase.place, answer.least_increase.amounts) == ("a/default", {"cpu": 2 * CPU})
    assert answer.release == (key("small"),)  # the least that is enough


def test_the_second_in_line_needs_more():
    answer = full_queue().kueue.explain(key("second"))
    assert answer.position == 2
    assert answer.release == (key("large"),)
    assert answer.least_increase.amounts == {"cpu": 7 * CPU}


def test_two_must_end_when_one_is_not_enough():
    world = World(queue("a", 6), *(gang(f"g{n}", "a", cpu=2, at=n) for n in range(3)))
    world.plan()
    world.tell(gang("wide", "a", cpu=4))
    world.plan()
    assert len(world.kueue.explain(key("wide")).release) == 2


def test_what_would_help_is_true():
    """The named increase, and the named release, really admit it."""
    world = full_queue()
    more = world.kueue.explain(key("first")).least_increase.amounts["cpu"] // CPU
    world.tell(queue("a", 10 + more))
    world.plan()
    assert "first" in world.running()
    other = full_queue()
    other.finish(*(name.rpartition("/")[2] for name in other.kueue.explain(key("second")).release))
    other.kueue.remove(other.gangs["first"])
    other.plan()
    assert "second" in other.running()


def test_borrowing_in_a_cohort_names_holders_in_other_queues():
    world = World(cohort("team", cpu=4), queue("a", 0, "team"), queue("b", 0, "team"), gang("theirs", "b", cpu=4))
    world.plan()
    world.tell(gang("ours", "a", cpu=1))
    world.plan()
    answer = world.kueue.explain(key("ours"))
    assert answer.holders == (key("theirs"),) and answer.release == (key("theirs"),)


def test_a_strict_queue_says_which_gang_it_waits_behind():
    world = World(queue("a", 4, strategy="StrictFIFO"), gang("huge", "a", cpu=9, at=1), gang("tiny", "a", at=2))
    world.plan()
    assert world.kueue.explain(key("tiny")).message == f"quota is free; it waits behind {key('huge')}"


@pytest.mark.parametrize(
    "facts, message",
    [
        ([], "LocalQueue a doesn't exist"),
        ([queue("a", 4, stopped=True)], "ClusterQueue a is inactive: it is stopped"),
        ([queue("a", 4, stopped=True, deleted=True)], "ClusterQueue a is inactive: it is being deleted"),
        (
            [queue("a", groups=(ResourceGroup(("cpu",), (FlavorQuota("lost", {"cpu": limits(4)}),)),))],
            "ClusterQueue a is inactive: references missing ResourceFlavor(s): lost",
        ),
        ([queue("a", 4, namespace_selector=None)], "workload namespace doesn't match ClusterQueue selector"),
        (
            [queue("a", 4), Flavor(name="default", taints=(Taint("gpu", "yes"),))],
            "couldn't assign flavors to pod set main: untolerated taint {gpu yes NoSchedule <nil>} in flavor default",
        ),
    ],
)
def test_the_object_at_fault_is_named(facts, message):
    world = World(*facts, gang("lost", "a"))
    world.plan()
    assert world.kueue.explain(key("lost")).message == message


def test_explaining_changes_nothing():
    world, untouched = full_queue(), full_queue()
    for name in ("first", "second"):
        world.kueue.explain(key(name))
    for one in (world, untouched):
        one.finish("small")
    assert world.plan() == untouched.plan()
    node, other = world.kueue.state.records["a"].node, untouched.kueue.state.records["a"].node
    assert (node.usage, node.limits, node.subtree) == (other.usage, other.limits, other.subtree)


def test_nothing_to_explain_for_the_running_and_the_unknown():
    world = full_queue()
    assert world.kueue.explain(key("small")) is None
    assert world.kueue.explain(key("nobody")) is None
