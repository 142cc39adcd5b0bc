"""What is kept of a topology's room gives the same places, and the same words, as counting it from the beginning."""

from __future__ import annotations

import random

import pytest

from shoal.api.labels import HOSTNAME
from shoal.engine.kueue.topology import Placer, PodsToPlace, TopologyTree, TopologyWish
from shoal.engine.kueue.topology.place import PlaceOutcome
from shoal.engine.kueue.topology.request import SliceLayer
from shoal.engine.kueue.topology.room import PlaceRoom, room_of
from shoal.engine.model import NodeFact, Taint, Toleration
from tests.unit.engine.kueue.topology.build import BLOCK, RACK

LEVELS = ((BLOCK, RACK, HOSTNAME), (RACK, HOSTNAME), (BLOCK, RACK), (HOSTNAME,))
TAINT = Taint(key="night", value="", effect="NoSchedule")


class Counted(Placer):
    """Counts every domain each time."""

    def _is_plain(self, grain: object) -> bool:
        return False


def nodes(dice: random.Random) -> list[NodeFact]:
    found = []
    for index in range(dice.randint(1, 14)):
        name = f"n{index:02}"
        offered = {"cpu": dice.randint(0, 8), "memory": dice.randint(0, 12), "gpu": dice.choice((0, 0, 2))}
        found.append(
            NodeFact(
                name=name,
                labels={HOSTNAME: name, BLOCK: dice.choice("ab"), RACK: dice.choice("xyz"), "disk": dice.choice("hs")},
                allocatable=offered | ({"pods": dice.randint(1, 5)} if dice.random() < 0.5 else {}),
                taints=(TAINT,) if dice.random() < 0.2 else (),
            )
        )
    return found


def some_pods(dice: random.Random, levels: tuple[str, ...], name: str, group: str) -> PodsToPlace:
    layers = (SliceLayer(dice.choice(levels), dice.randint(1, 3)),) if dice.random() < 0.3 else ()
    level = dice.choice(levels)
    wish = dice.choice(
        (
            TopologyWish(required=level, layers=layers),
            TopologyWish(preferred=level, layers=layers),
            TopologyWish(unconstrained=True),
            TopologyWish(layers=layers),
        )
    )
    asked = {"cpu": dice.randint(0, 3)} | ({"memory": dice.randint(0, 4)} if dice.random() < 0.6 else {})
    return PodsToPlace(
        name=name,
        count=dice.randint(1, 6),
        requests=asked | ({"gpu": 1} if dice.random() < 0.2 else {}),
        wish=wish,
        implied=dice.random() < 0.3,
        group=group,
        node_selector={"disk": "s"} if dice.random() < 0.2 else {},
        tolerations=(Toleration(key="night", operator="Exists"),) if dice.random() < 0.3 else (),
    )


def history(seed: int, steps: int = 40) -> list[tuple[dict[str, PlaceOutcome], dict[str, PlaceOutcome]]]:
    """What is found by what is kept, and by counting, while gangs and other pods come and go."""
    dice = random.Random(seed)
    levels = dice.choice(LEVELS)
    tree = TopologyTree("racks", levels, nodes(dice))
    sets = [("head", "work")[: 1 + number % 2] for number in range(6)]
    kinds = [[some_pods(dice, levels, name, "ray" if dice.random() < 0.4 else "") for name in names] for names in sets]
    there, beside, found = [], [], []
    for _ in range(steps):
        asked, empty = dice.choice(kinds), dice.random() < 0.2
        outcomes = [way(tree, empty=empty).place(asked) for way in (Placer, Counted)]
        found.append((outcomes[0], outcomes[1]))
        placed = [(outcomes[0][one.name].placement, one.requests) for one in asked if one.name in outcomes[0]]
        if not empty and all(placement is not None for placement, _ in placed) and dice.random() < 0.7:
            there.append(placed)
            for placement, each in placed:
                tree.use(placement, each)
        if there and dice.random() < 0.4:
            for placement, each in there.pop(dice.randrange(len(there))):
                tree.use(placement, each, -1)
        if dice.random() < 0.3:
            beside.append((f"n{dice.randint(0, 13):02}", {"cpu": dice.randint(1, 9)}))
            tree.take(*beside[-1])
        elif beside and dice.random() < 0.3:
            tree.take(*beside.pop(), -1)
    return found


@pytest.mark.parametrize("block", range(8))
def test_what_is_kept_gives_the_same_as_counting(block: int) -> None:
    for seed in range(block * 40, block * 40 + 40):
        for step, (kept, counted) in enumerate(history(seed)):
            assert kept == counted, (seed, step)


def test_a_change_that_is_not_told_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlaceRoom, "touch", lambda self, key, *, idle=False: None)
    assert any(kept != counted for seed in range(40) for kept, counted in history(seed))


def test_kinds_beyond_what_is_kept_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.engine.kueue.topology.room.MOST_CELLS", 20)
    for seed in range(40):
        assert all(kept == counted for kept, counted in history(seed)), seed


def test_what_is_too_large_for_an_array_is_bounded() -> None:
    node = NodeFact(name="n", labels={HOSTNAME: "n"}, allocatable={"cpu": 2**80, "pods": 2})
    tree = TopologyTree("hosts", (HOSTNAME,), [node])
    pods = PodsToPlace(name="a", count=2, requests={"cpu": 2**61}, wish=TopologyWish(required=HOSTNAME))
    assert Placer(tree).place([pods])["a"].placement is not None
    assert room_of(tree).most(0, 0) == 2
