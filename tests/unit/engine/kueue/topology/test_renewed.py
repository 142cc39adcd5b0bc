"""A tree in which nodes came, changed and went is the same as one that is built of what there is now."""

from __future__ import annotations

import random

import msgspec
import pytest

from shoal.api.labels import HOSTNAME
from shoal.engine.kueue.topology import Placer, PodsToPlace, TopologyTree, TopologyWish
from shoal.engine.kueue.topology import room as rooms
from shoal.engine.kueue.topology.assignment import Values
from shoal.engine.kueue.topology.ledger import TopologyLedger
from shoal.engine.kueue.topology.room import PlaceRoom, kind_of, room_of
from shoal.engine.kueue.topology.totals import EVERYWHERE
from shoal.engine.kueue.topology.tree import Domain, Leaf
from shoal.engine.model import Amounts, NodeFact
from tests.unit.engine.kueue.rack_history import RackHistory
from tests.unit.engine.kueue.topology.build import BLOCK, RACK
from tests.unit.engine.kueue.topology.test_room import LEVELS, TAINT, some_pods

STEPS = 60


class Racks:
    """Nodes that come, change and go, and the tree that is kept of them."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.levels = self.dice.choice(LEVELS)
        self.nodes: dict[str, NodeFact] = {}
        self.used: dict[Values, Amounts] = {}
        self.taken: dict[str, Amounts] = {}
        for _ in range(self.dice.randint(0, 8)):
            self._new()
        self.tree = self.built()
        self.pods = [some_pods(self.dice, self.levels, f"p{number}", "") for number in range(5)]

    def built(self) -> TopologyTree:
        return TopologyTree("racks", self.levels, self.nodes.values(), self.used, self.taken)

    def _new(self) -> NodeFact:
        dice = self.dice
        name = f"n{dice.randint(0, 9)}"
        host = f"n{dice.randint(0, 9)}" if dice.random() < 0.05 else name
        offered = {"cpu": dice.randint(0, 8), "memory": dice.randint(0, 12), "gpu": dice.choice((0, 0, 2))}
        self.nodes[name] = NodeFact(
            name=name,
            labels={HOSTNAME: host, BLOCK: dice.choice("ab"), RACK: dice.choice("xyz"), "disk": dice.choice("hs")},
            allocatable=offered | ({"pods": dice.randint(1, 5)} if dice.random() < 0.5 else {}),
            taints=(TAINT,) if dice.random() < 0.2 else (),
        )
        return self.nodes[name]

    def step(self) -> None:
        dice = self.dice
        deed = dice.choice(("new", "new", "gone", "size", "label", "taint", "use", "take"))
        if deed in ("use", "take"):
            self._fill(deed)
            return
        node = self._new() if deed == "new" or not self.nodes else dice.choice(sorted(self.nodes.values(), key=_name))
        match deed:
            case "gone":
                del self.nodes[node.name]
            case "size":
                self.nodes[node.name] = msgspec.structs.replace(node, allocatable={"cpu": dice.randint(0, 8)})
            case "label":
                labels = {**node.labels, dice.choice((BLOCK, RACK, "disk")): dice.choice("asx")}
                self.nodes[node.name] = msgspec.structs.replace(node, labels=labels)
            case "taint":
                self.nodes[node.name] = msgspec.structs.replace(node, taints=() if node.taints else (TAINT,))
        if not self.tree.renew(node.name, self.nodes.get(node.name)):
            self.tree = self.built()

    def _fill(self, deed: str) -> None:
        dice = self.dice
        if deed == "take":
            self.tree.take(f"n{dice.randint(0, 9)}", {"cpu": dice.randint(1, 3)}, dice.choice((1, 1, -1)))
            return
        pods = dice.choice(self.pods)
        placement = Placer(self.tree).place([pods])[pods.name].placement
        if placement is not None:
            self.tree.use(placement, pods.requests)


def _name(node: NodeFact) -> str:
    return node.name


def domains_of(tree: TopologyTree) -> list[dict[Values, tuple[Values, ...]]]:
    """By level: every domain with those below it."""
    for level in tree.by_level:
        for values, domain in level.items():
            assert domain.parent is None or domain in domain.parent.children
            assert values == domain.values
    return [{values: tuple(sorted(_below(domain))) for values, domain in level.items()} for level in tree.by_level]


def _below(domain: Domain) -> list[Values]:
    return [child.values for child in domain.children]


def leaves_of(tree: TopologyTree) -> dict[Values, tuple[object, ...]]:
    return {key: _told(leaf) for key, leaf in tree.leaves.items() if leaf.domain.leaf is leaf}


def _told(leaf: Leaf) -> tuple[object, ...]:
    taken = {name: _some(amounts) for name, amounts in leaf.taken.items()}
    return leaf.key, leaf.domain.values, leaf.node, leaf.nodes, _some(leaf.capacity), taken, _some(leaf.used)


def _some(amounts: Amounts) -> Amounts:
    """Nothing of something is nothing."""
    return {name: amount for name, amount in amounts.items() if amount}


def numbers_of(tree: TopologyTree, pods: PodsToPlace) -> list[object]:
    """How many such pods every domain has room for, and what is said where there is too little."""
    room = room_of(tree)
    kind = kind_of(pods, ())
    row = room.row(kind, pods, ())
    found: list[object] = []
    for empty in (False, True):
        levels = room.levels(row, empty=empty)
        for level, numbers in enumerate(levels):
            here = [(room.domains[level][index].values, int(numbers[index])) for index in room.indexes(level)]
            found.append(here)
            assert sum(numbers) == sum(count for _, count in here), "what is gone has no room"
        found.append(room.excluded(kind, levels[-1], {}, empty=empty).text())
    return [*found, *[room.most(row, level) for level in range(len(tree.levels))], room.most(row, EVERYWHERE)]


def assert_same(kept: TopologyTree, built: TopologyTree, pods: list[PodsToPlace]) -> None:
    assert domains_of(kept) == domains_of(built)
    assert leaves_of(kept) == leaves_of(built)
    assert kept.leaves.keys() == built.leaves.keys()
    for each in pods:
        assert numbers_of(kept, each) == numbers_of(built, each), each
        for empty in (False, True):
            assert Placer(kept, empty=empty).place([each]) == Placer(built, empty=empty).place([each]), each


@pytest.mark.parametrize("block", range(6))
def test_a_tree_that_is_kept_is_the_same_as_one_built_anew(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        racks = Racks(seed)
        for _ in range(STEPS):
            racks.step()
            if racks.dice.random() < 0.4:  # else several changes come at once
                assert_same(racks.tree, racks.built(), racks.pods)


def test_it_is_the_same_where_much_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "_FEW_NEW", 1)
    monkeypatch.setattr(rooms, "_FEW", 0)
    for seed in range(20):
        racks = Racks(seed)
        for _ in range(STEPS):
            racks.step()
            if racks.dice.random() < 0.3:
                assert_same(racks.tree, racks.built(), racks.pods)


@pytest.mark.parametrize("untold", ["came", "left", "renewed", "_judge"])
def test_a_node_of_which_the_room_is_not_told_is_found(untold: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlaceRoom, untold, lambda self, *about: None)
    with pytest.raises((AssertionError, IndexError)):
        test_a_tree_that_is_kept_is_the_same_as_one_built_anew(0)


def test_the_trees_of_a_ledger_are_the_same_over_whole_histories() -> None:
    """While queues decide, gangs take places and give them back, and other pods come and go."""
    looked_at = 0
    for seed in range(60):
        history = RackHistory(seed)
        for _ in range(60):
            history.step()
            ledger = history.kueue.state.topologies
            for flavor in sorted(ledger.with_topology):
                kept = ledger.tree(flavor)
                fresh = TopologyLedger(history.kueue.state.flavors)
                fresh.topologies, fresh._used = ledger.topologies, ledger._used
                fresh.adopt(ledger)
                built = fresh.tree(flavor)
                assert kept is not None
                assert built is not None
                asked = [PodsToPlace(name="a", count=2, requests={"cpu": 1000}, wish=TopologyWish(required=RACK))]
                assert_same(kept, built, asked)
                looked_at += 1
    assert looked_at > 3_000


def test_a_node_that_changes_keeps_what_is_known_of_all_others() -> None:
    """Neither the tree nor its room is built again."""
    racks = Racks(3)
    while not racks.nodes:
        racks = Racks(racks.dice.randint(4, 99))
    room = room_of(racks.tree)
    node = next(iter(racks.nodes.values()))
    for fact in (msgspec.structs.replace(node, allocatable={"cpu": 1}), None, node):
        assert racks.tree.renew(node.name, fact)
        assert room_of(racks.tree) is room
