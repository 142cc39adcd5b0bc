"""Small worlds in which something that helped a gang was once overlooked: it is looked at in time."""

from __future__ import annotations

from shoal.engine.kueue import Flavor, FlavorQuota, Fungibility, ResourceGroup
from shoal.engine.kueue.index.heads import IndexedHeads
from shoal.engine.model import Namespace, PodSet
from tests.unit.engine.kueue.world import CPU, World, cohort, gang, limits, queue


def test_a_queue_that_uses_what_it_lends_makes_its_cohort_borrow():
    """`own` stays within its quota, but `left`, which had lent that, borrows now as a whole: others may reclaim."""
    world = World(
        cohort("root"),
        cohort("left", "root"),
        queue("taker", 2, "left"),
        queue("own", limits(10, None, 4), "left"),
        queue("right", 7, "root", reclaim="LowerPriority"),
        queue("guest", 0, "root"),
        gang("taken", "taker", 6),
        gang("fixed", "guest", 1, priority=9),
    )
    world.settle()
    world.tell(gang("wanting", "right", 7, priority=5))
    world.settle()
    assert world.running() == {"taken", "fixed"}, "left does not borrow: no gang there has to give way"
    world.tell(gang("late", "own", 7, priority=9))
    world.settle()
    assert world.evictions == [("wanting", "taken")]


def test_a_new_head_of_a_strict_queue_lets_others_have_what_the_former_one_kept():
    """What the head of a strict queue waits for is kept from others only as long as it is the head."""
    world = World(
        cohort("team", cpu=4),
        queue("strict", 4, "team", strategy="StrictFIFO"),
        queue("easy", 0, "team"),
        gang("old", "strict", 6),
    )
    world.settle()
    world.tell(gang("large", "strict", 4, at=1), gang("small", "easy", 2, at=2))
    world.settle()
    assert world.running() == {"old"}, "the rest is kept for the head of the strict queue"
    world.tell(gang("empty", "strict", 1, count=0, priority=1, at=3))
    world.settle()
    assert world.running() == {"old", "empty", "small"}


def test_flavors_looked_through_before_do_not_keep_a_gang_from_starting_smaller():
    """After a first look that another gang spoiled, every flavor counts again for a smaller start."""
    sizes = {"gold": 7, "spot": 5, "default": 0}
    flavors = tuple(FlavorQuota(name, {"cpu": limits(size)}) for name, size in sizes.items())
    groups = (ResourceGroup(("cpu",), flavors),)
    world = World(
        Flavor(name="gold"),
        Flavor(name="spot"),
        cohort("team"),
        queue("other", 0, "team", groups=(ResourceGroup(("cpu",), (FlavorQuota("gold", {"cpu": limits(5)}),)),)),
        queue("main", cohort="team", groups=groups, fungibility=Fungibility(next_when_borrowing=True)),
    )
    pod_sets = (
        PodSet(name="workers", count=3, min_count=1, requests={"cpu": 4 * CPU}),
        PodSet(name="head", count=3, requests={"cpu": CPU}),
    )
    world.tell(gang("first", "other", 4, priority=9), gang("second", "main", pod_sets=pod_sets))
    world.settle()
    assert world.running() == {"first", "second"}
    assert [entry.count for entry in world.gangs["second"].assignment] == [2, 3]


def test_a_plan_gives_no_quota_only_to_take_it_back():
    """Of cycles merged into one plan only the outcome is told: the owner has its quota, the borrower waits on."""
    world = World(
        cohort("team"),
        queue("a", 2, "team", reclaim="Any"),
        queue("b", 0, "team"),
        gang("a1", "a", at=1),
        gang("a2", "a", at=2),
        gang("b1", "b", at=3),
    )
    decisions = world.plan()
    assert [entry.gang for entry in decisions.reserved] == ["Workload/default/a1", "Workload/default/a2"]
    assert not decisions.evicted
    assert [(entry.gang, entry.reason) for entry in decisions.waiting] == [("Workload/default/b1", "WaitingForQuota")]
    assert world.used("a") == 2 and world.used("b") == 0
    world.finish("a1")
    world.settle()
    assert world.running() == {"a2", "b1"}


def test_a_preemptor_that_is_overtaken_waits_for_its_turn_again():
    """Its victim has left, and one of higher priority takes the place at once: the first is next, when it is done."""
    world = World(queue("q", 4, within="LowerPriority"), gang("a", "q", 2, priority=1), gang("b", "q", 2, at=1))
    world.settle()
    world.tell(gang("x", "q", 2, priority=1, at=2))
    world.plan()
    world.tell(gang("y", "q", 2, priority=3, at=3))
    world.plan()
    assert world.evictions == [("x", "b")]
    world.let_go()
    decisions = world.plan()
    assert [entry.gang for entry in decisions.reserved] == ["Workload/default/y"]
    assert world.evictions == [("x", "b")]
    world.finish("a", "y")
    world.settle()
    assert world.running() == {"x", "b"}


def test_a_gang_is_tried_again_once_its_namespace_has_the_labels_that_its_queue_asks_for():
    world = World(queue("main", 4, namespace_selector={"matchLabels": {"team": "red"}}), gang("one", "main", 1))
    world.settle()
    assert world.running() == set()
    world.tell(Namespace(name="default", labels={"team": "red"}))
    world.settle()
    assert world.running() == {"one"}


def test_many_namespaces_that_come_together_wake_the_queues_once(monkeypatch):
    world = World(*(queue(f"q{number}", 1) for number in range(20)), *(gang(f"g{n}", f"q{n}", 2) for n in range(20)))
    world.settle()
    woken = []
    monkeypatch.setattr(IndexedHeads, "changed", lambda heads: woken.append(heads))
    world.tell(*(Namespace(name=f"n{number}", labels={"a": "b"}) for number in range(50)))
    world.plan()
    assert len(woken) == 1
