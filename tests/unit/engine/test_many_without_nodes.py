"""Hundreds of admitted gangs whose pods are not bound, as a new leader finds them: planned nodes are not stored."""

from __future__ import annotations

import pytest

from shoal.engine.nodes import ledger
from shoal.engine.nodes.ledger import Ledger
from tests.faults import proven

from .build import admitted, engine, gang, node, pod, pods


def every_start_moves_all(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Ledger.settle
    monkeypatch.setattr(Ledger, "settle", lambda self, started=False: settle(self))
    monkeypatch.setattr(
        Ledger,
        "_alike",
        lambda self, wanted: [
            [(uid, index, count)] for uid, counts in wanted.items() for index, count in counts.items()
        ],
    )


@proven(without=every_start_moves_all)
def test_f570_what_a_new_leader_finds_admitted_is_placed_once_and_not_again_for_every_start(monkeypatch):
    """F570: a new leader finds hundreds of gangs admitted and not bound, and as many that wait. Holds: its first plan
    looks for their room once for each shape of pods, so that it ends while the lease lasts; no room is given twice."""
    calls = 0
    place = ledger.place

    def counted(*arguments):
        nonlocal calls
        calls += 1
        return place(*arguments)

    monkeypatch.setattr(ledger, "place", counted)
    judge = engine(*(node(f"n{number}", cpu=30) for number in range(10)))
    for number in range(60):
        of_both = pods(2, cpu=1), pods(1, cpu=2, name="head")
        judge.update(gang(f"there-{number}", *of_both, at=number, state="admitted"))
    for number in range(40):
        judge.update(gang(f"new-{number}", pods(2, cpu=1), at=100 + number))
    started = admitted(judge.plan(200))
    assert started == [f"new-{number}" for number in range(30)], "240 of 300 cpu are for those that were admitted"
    assert calls == 2, "one for each shape"


@pytest.mark.parametrize("bound", [0, 1, 2])
def test_pods_that_come_take_the_room_that_was_counted_for_them(bound):
    judge = engine(node("a", cpu=4), node("b", cpu=4))
    for number in range(3):
        judge.update(gang(f"there-{number}", pods(2), at=number, state="admitted"))
    for number in range(bound):
        judge.update(pod(f"p{number}", on="b", of="there-0"))
    judge.update(gang("wide", pods(3), at=5))
    assert admitted(judge.plan(6)) == []
    judge.update(gang("fits", pods(2), at=7))
    assert admitted(judge.plan(8)) == ["fits"]


def test_what_lost_its_place_and_what_never_had_one_are_counted_beside_each_other():
    judge = engine(node("a", cpu=4), gang("planned", pods(2), at=1))
    assert admitted(judge.plan(2)) == ["planned"]
    judge.update(gang("there", pods(2), at=1, state="admitted"))
    judge.update(gang("next", at=3))
    assert admitted(judge.plan(4)) == []
    judge.update(node("b", cpu=1))
    assert admitted(judge.plan(5)) == ["next"]
    judge.remove("Node/a")
    judge.update(node("c", cpu=4))
    judge.update(gang("last", at=6))
    assert admitted(judge.plan(7)) == [], "both wait for node c, which they fill"
