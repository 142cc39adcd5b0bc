"""The index of heads and the plain way are equal, over random histories.

Where the index has come to rest the plain way has no gang to try. Where no gang may be evicted every decision is the
same; else the order of turns may differ, because the index tries gangs that the plain way knows to have no chance.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from shoal.engine.kueue.cycle.lacking import PlaceNeed
from shoal.engine.kueue.index.heads import IndexedHeads
from shoal.engine.kueue.index.plain import PlainHeads
from shoal.engine.kueue.quota.tree import QuotaTreeNode
from tests.unit.engine.kueue.history import History
from tests.unit.engine.kueue.rack_history import RackHistory

STEPS = 80
NOTIFICATIONS = ("arrived", "freed", "held", "changed")


def missed(seed: int, kind: type[History] = History, **how: Any) -> list[str]:
    """Gangs that the plain way would serve when a plan has come to its end."""
    history = kind(seed, **how)
    found: list[str] = []
    for _ in range(STEPS):
        if history.step() == "plan":
            found += history.next_by_plain()
    assert history.calm(), f"{seed} does not come to rest"
    return found + history.next_by_plain()


@pytest.mark.parametrize("block", range(8))
def test_where_the_index_rests_the_plain_way_has_no_gang_to_try(block: int) -> None:
    for seed in range(block * 40, block * 40 + 40):
        assert missed(seed) == [], seed


@pytest.mark.parametrize("dropped", NOTIFICATIONS)
def test_a_wake_up_that_is_dropped_from_the_index_is_found(dropped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IndexedHeads, dropped, lambda self, *about: None)
    assert any(missed(seed) for seed in range(320))


def test_one_wake_up_in_ten_that_is_dropped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    freed, number = IndexedHeads.freed, count(1)

    def drops_some(self: IndexedHeads, node: QuotaTreeNode) -> None:
        if next(number) % 10:
            freed(self, node)

    monkeypatch.setattr(IndexedHeads, "freed", drops_some)
    assert any(missed(seed) for seed in range(320))


def assert_decides_alike(kind: type[History], block: int) -> None:
    """Both ways end with the same gangs in the same places, in each of a dozen histories."""
    for seed in range(block * 12, block * 12 + 12):
        ends = []
        for heads in (IndexedHeads, PlainHeads):
            history = kind(seed, peaceful=True, heads=heads)
            for _ in range(STEPS):
                history.step()
            assert history.calm()
            ends.append(history.gangs)
        assert ends[0] == ends[1], seed


@pytest.mark.parametrize("block", range(4))
def test_where_no_gang_may_be_evicted_every_decision_is_the_same(block: int) -> None:
    assert_decides_alike(History, block)


@pytest.mark.parametrize("block", range(2))
def test_the_plain_way_decides_by_itself(block: int) -> None:
    for seed in range(block * 12, block * 12 + 12):
        assert missed(seed, heads=PlainHeads) == [], seed


@pytest.mark.parametrize("block", range(8))
def test_with_racks_the_plain_way_has_no_gang_to_try_either(block: int) -> None:
    for seed in range(block * 40, block * 40 + 40):
        assert missed(seed, RackHistory, peaceful=seed % 2 == 0) == [], seed


@pytest.mark.parametrize("block", range(4))
def test_with_racks_every_decision_is_the_same_where_no_gang_may_be_evicted(block: int) -> None:
    assert_decides_alike(RackHistory, block)


def test_a_queue_that_is_not_called_for_places_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IndexedHeads, "called", lambda self, record: None)
    assert any(missed(seed, RackHistory, peaceful=True) for seed in range(0, 320, 2))


def test_a_flavor_that_is_wrongly_taken_for_one_without_quota_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlaceNeed, "within", lambda self, free: PlaceNeed(tuple(each[1:] for each in self.choices)))
    assert any(missed(seed, RackHistory, peaceful=True) for seed in range(0, 320, 2))
