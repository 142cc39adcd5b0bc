"""Faults of topologies, and what holds here."""

from __future__ import annotations

import msgspec
import pytest

from shoal.api.labels import HOSTNAME
from shoal.engine.kueue import Flavor, FlavorQuota, LocalQueue, ResourceGroup, Terms, TopologyFact
from shoal.engine.kueue.cycle.lacking import LackingPlaces, PlaceNeed
from shoal.engine.kueue.cycle.placing import PlacingStep, Wanted
from shoal.engine.kueue.cycle.register import Register
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.topology import PlaceOutcome, TopologyTree
from shoal.engine.kueue.topology.hopes import Hopes
from shoal.engine.kueue.topology.ledger import TopologyLedger
from shoal.engine.model import DomainShare, Gang, PodSet, PodSetAssignment, TopologyPlacement
from tests.faults import proven
from tests.unit.engine.kueue.rack_history import RackHistory
from tests.unit.engine.kueue.topology.build import CPU, RACK, node
from tests.unit.engine.kueue.world import World, gang, limits, queue

ON_RACKS = (ResourceGroup(("cpu",), (FlavorQuota("racked", {"cpu": limits(100)}),)),)


def racked(name: str, to: str, count: int, **more: object) -> Gang:
    """A gang whose pods need one rack."""
    pods = PodSet(name="main", count=count, requests={"cpu": CPU}, topology_request={"required": RACK})
    return gang(name, to, pod_sets=(pods,), **more)


def world(*queues: str, nodes: dict[str, str]) -> World:
    """Queues that share racks: node name to its rack, two cpus each."""
    made = World(*[queue(name, groups=ON_RACKS) for name in queues])
    made.tell(Flavor(name="racked", topology="racks"))
    made.tell(TopologyFact(name="racks", levels=(RACK, HOSTNAME)))
    for name, rack in nodes.items():
        made.tell(node(name, 2, {RACK: rack}))
    for name in queues:
        made.tell(LocalQueue(namespace="default", name=name, cluster_queue=name))
    return made


def placed_on(decisions: object) -> dict[str, dict[str, int]]:
    reserved = [*decisions.reserved, *decisions.placed]  # type: ignore[attr-defined]
    return {
        entry.gang.rpartition("/")[2]: {
            domain.values[-1]: domain.count for part in entry.assignment for domain in part.topology.domains
        }
        for entry in reserved
    }


def without_second_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TopologyLedger, "fits", lambda self, uses: True)


@proven(without=without_second_look)
def test_f260_two_queues_do_not_place_gangs_into_the_same_room():
    """F260: heads of two queues choose the same rack in one cycle. Holds: the second is placed once more, elsewhere or
    not at all; no node takes more than it has."""
    both = world("a", "b", nodes={"x1": "x", "y1": "y"})
    both.tell(racked("one", "a", 2))
    both.tell(racked("two", "b", 2))
    assert sorted(map(tuple, placed_on(both.plan()).values())) == [("x1",), ("y1",)]
    tight = world("a", "b", nodes={"x1": "x"})
    tight.tell(racked("one", "a", 2))
    tight.tell(racked("two", "b", 2))
    assert len(placed_on(tight.plan())) == 1


def without_second_pass(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueMember, "needs_places", property(lambda self: False))


@proven(without=without_second_pass)
def test_f261_pods_of_a_failed_node_are_placed_once_more_and_the_others_stay():
    """F261: a node fails under a gang that needs one rack. Holds: its pods get another node of that rack, the others
    keep theirs; without one the gang leaves instead of waiting in halves."""
    lost = TopologyPlacement((HOSTNAME,), (DomainShare(("x1",), 2), DomainShare(("x2",), 2)))
    given = PodSetAssignment(name="main", count=4, flavors={"cpu": "racked"}, usage={"cpu": 4 * CPU}, topology=lost)
    terms = Terms(cluster_queue="a", unhealthy_nodes=("x1",))
    runs = racked("train", "a", 4, state="admitted", assignment=(given,), details={"kueue": terms})
    roomy = world("a", nodes={"x2": "x", "x3": "x", "y1": "y"})
    roomy.tell(runs)
    assert placed_on(roomy.plan()) == {"train": {"x2": 2, "x3": 2}}
    tight = world("a", nodes={"x2": "x", "y1": "y"})
    tight.tell(runs)
    (displaced,) = tight.plan().displaced
    assert displaced.message == "Workload was evicted as there was no replacement for unhealthy node(s): x1"


def only_its_own_tree(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Register, "_places_moved", lambda self, news: None)


@proven(without=only_its_own_tree)
def test_f263_places_that_become_free_are_heard_of_in_every_queue_that_shares_the_nodes():
    """F263: a gang leaves its rack, and one of another queue without a common cohort waits for just that rack. Holds:
    it is looked at again and starts."""
    both = world("a", "b", nodes={"x1": "x"})
    both.tell(racked("one", "a", 2))
    assert placed_on(both.plan()) == {"one": {"x1": 2}}
    both.tell(racked("two", "b", 2))
    assert placed_on(both.plan()) == {}
    why = both.kueue.explain("Workload/default/two")
    assert why is not None and 'topology "racks" doesn\'t allow to fit any of 2 pod(s)' in why.message
    both.finish("one")
    assert placed_on(both.plan()) == {"two": {"x1": 2}}


def calls_everyone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LackingPlaces, "take_hopeful", lambda self: [f"q{index}" for index in range(20)])


@proven(without=calls_everyone)
def test_f755_a_node_that_changes_calls_only_queues_in_which_a_gang_was_looked_at_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F755: pods come and go on nodes of a topology that very many queues share. Holds: what that costs does not grow
    with queues in which no gang lacks a place; one that does is tried again."""
    names = [f"q{index}" for index in range(20)]
    told = world(*names, nodes={"x1": "x"})
    told.tell(racked("large", "q0", 4), *(racked(f"broke-{name}", name, 200) for name in names[1:]))
    assert placed_on(told.plan()) == {}
    called: list[str] = []
    heads = told.kueue.register.heads
    call = heads.called
    monkeypatch.setattr(heads, "called", lambda record: (called.append(record.name), call(record)))
    told.tell(node("x2", 2, {RACK: "x"}))
    assert placed_on(told.plan()) == {"large": {"x1": 2, "x2": 2}}
    assert set(called) == {"q0"}


def forgets_who_evicted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Register, "_places_moved", Register.places_changed)


@proven(without=forgets_who_evicted)
def test_f758_gangs_with_places_do_not_evict_each_other_without_end() -> None:
    """F758: a gang gets quota and places in a plan and has to yield to another in the same plan. Holds: that it gave
    its places up is no outside change, so that no gang evicts one that evicted it; the plan comes to its end."""
    for seed in (11, 307):
        history = RackHistory(seed)
        for _ in range(40):
            history.step()
        assert history.calm(), seed


def remembers_places_whatever_changed(patch: pytest.MonkeyPatch) -> None:
    asked = PlacingStep._asked
    patch.setattr(PlacingStep, "_asked", lambda self, wanted, empty: (asked(self, wanted, empty)[:2], str(wanted)))


@proven(without=remembers_places_whatever_changed)
def test_f763_places_that_are_remembered_are_those_that_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """F763: places were found for gangs of a shape; then nodes, other pods or placed gangs come and go. Holds: gangs of
    that shape are given what a new search finds, never what was free before."""
    places, answers = PlacingStep.places, []

    def compared(step: PlacingStep, wanted: Wanted, *, empty: bool = False) -> dict[str, PlaceOutcome]:
        found = places(step, wanted, empty=empty)
        answers.append(found == step._sought(wanted, empty))
        return found

    monkeypatch.setattr(PlacingStep, "places", compared)
    for seed in range(60):
        history = RackHistory(seed)
        for _ in range(40):
            history.step()
    assert all(answers)
    assert len(answers) > 400


def counts_room_without_quota(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PlaceNeed, "within", lambda self, free: self)


@proven(without=counts_room_without_quota)
def test_f765_room_on_a_flavor_without_quota_calls_no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """F765: gangs have quota on a flavor that has no nodes, and room moves on another of which their queues have none
    left. Holds: these queues are not called for that, however many they are; once one has its quota back its gang
    starts there."""
    pools = ("spot", "on-demand")
    groups = (ResourceGroup(("cpu",), tuple(FlavorQuota(pool, {"cpu": limits(2)}) for pool in pools)),)
    told = World(queue("a", groups=groups), queue("b", groups=groups))
    told.tell(TopologyFact(name="racks", levels=(RACK, HOSTNAME)))
    told.tell(*(Flavor(name=pool, labels={"pool": pool}, topology="racks") for pool in pools))
    told.tell(*(node(f"{rack}1", 2, {RACK: rack, "pool": "spot"}) for rack in "xy"))
    told.tell(*(LocalQueue(namespace="default", name=name, cluster_queue=name) for name in "ab"))
    told.tell(racked("busy", "b", 2), racked("first", "a", 2))
    assert placed_on(told.plan()) == {"busy": {"x1": 2}, "first": {"y1": 2}}
    told.tell(racked("second", "a", 2))
    assert placed_on(told.plan()) == {}
    called: list[str] = []
    heads = told.kueue.register.heads
    call = heads.called
    monkeypatch.setattr(heads, "called", lambda record: (called.append(record.name), call(record)))
    told.finish("busy")
    assert placed_on(told.plan()) == {}
    assert "a" not in called
    told.finish("first")
    assert placed_on(told.plan()) == {"second": {"x1": 2}}


def counts_quota_for_each_pod_set_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("shoal.engine.kueue.cycle.lacking.MOST_TOGETHER", 1)


@proven(without=counts_quota_for_each_pod_set_alone)
def test_f800_a_gang_that_lacks_quota_for_its_pod_sets_together_takes_no_turn():
    """F800: each pod set of a gang has quota and a rack on one flavor, both together lack quota there, and the other
    flavor has no nodes. Holds: the gang behind it has the turn of the queue, before a younger one of another queue."""
    quota = (FlavorQuota("near", {"cpu": limits(3)}), FlavorQuota("far", {"cpu": limits(9)}))
    told = World(*(queue(name, groups=(ResourceGroup(("cpu",), quota),)) for name in "ab"))
    told.tell(TopologyFact(name="racks", levels=(RACK, HOSTNAME)))
    told.tell(*(Flavor(name=name, labels={"pool": name}, topology="racks") for name in ("near", "far")))
    told.tell(node("x1", 2, {RACK: "x", "pool": "near"}))
    pods = PodSet(name="head", count=2, requests={"cpu": CPU}, topology_request={"required": RACK})
    both = (pods, msgspec.structs.replace(pods, name="worker"))
    told.tell(gang("both", "a", pod_sets=both, at=1), racked("behind", "a", 2, at=2), racked("younger", "b", 2, at=3))
    assert placed_on(told.plan()) == {"behind": {"x1": 2}}


def takes_host_names_for_nodes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TopologyTree, "_is_alone", lambda self, node: True)


@proven(without=takes_host_names_for_nodes)
def test_f801_a_node_that_goes_leaves_the_one_with_its_host_name():
    """F801: two nodes have one host name, in different racks, and the first goes. Holds: the other is found where its
    labels say."""
    told = world("a", nodes={})
    shared = {HOSTNAME: "x1"}
    told.tell(node("x1", 2, {RACK: "x"}), node("x2", 2, {RACK: "y"} | shared))
    told.tell(racked("first", "a", 4))
    assert placed_on(told.plan()) == {"first": {"x1": 4}}
    told.finish("first")
    told.kueue.remove(node("x1", 2, {RACK: "x"}))
    told.tell(
        gang("in-y", "a", pod_sets=(PodSet(name="main", count=2, requests={"cpu": CPU},
             node_selector={RACK: "y"}, topology_request={"required": RACK}),)),
    )  # fmt: skip
    assert placed_on(told.plan()) == {"in-y": {"x1": 2}}


def looks_at_none_that_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Hopes, "met", lambda self, totals: [])


@proven(without=looks_at_none_that_wait)
def test_f802_a_gang_that_waits_for_room_is_called_once_there_is():
    """F802: a gang lacks room in every rack, and is not looked at while less comes free than it lacks. Holds: it starts
    as soon as one rack has enough, by a node that comes, grows or is opened, or by gangs that end."""
    for what in ("comes", "grows", "opens", "ends"):
        told = world("a", "b", nodes={"x1": "x", "y1": "y"})
        if what == "opens":
            told.tell(msgspec.structs.replace(node("x2", 2, {RACK: "x"}), unschedulable=True))
        told.tell(racked("one", "b", 1), racked("two", "b", 1), racked("three", "b", 1))
        assert len(placed_on(told.plan())) == 3
        told.tell(racked("wide", "a", 2))
        assert placed_on(told.plan()) == {}
        told.tell(racked("small", "b", 1))
        assert len(placed_on(told.plan())) == 1
        told.finish("small")
        assert placed_on(told.plan()) == {}
        match what:
            case "comes" | "opens":
                told.tell(node("x2", 2, {RACK: "x"}))
            case "grows":
                told.tell(node("x1", 4, {RACK: "x"}))
            case "ends":
                told.finish("one", "two")
        assert placed_on(told.plan()).keys() == {"wide"}, what
