"""When queues publish their numbers: at once where few change, whatever was there before."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.controllers.queues.counts import Address
from shoal.controllers.queues.pacing import FEW, STATUS_PAUSE, StatusPace
from tests.faults import proven


class Watch:
    """A clock that shows what the test says."""

    def __init__(self) -> None:
        self.shows = 100.0

    def monotonic(self) -> float:
        return self.shows


def counts_those_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = StatusPace.__init__
    monkeypatch.setattr(StatusPace, "__init__", lambda self, clock, is_there: whole(self, clock))


@proven(without=counts_those_that_are_gone)
def test_f837_queues_that_were_deleted_keep_no_other_from_telling_its_numbers() -> None:
    """F837: many queues come and go within half a minute, as in a program that tests with them, and a few are left.
    Holds: those tell their numbers at once, in their status and their metrics; before, they waited for ten seconds."""
    watch, there = Watch(), set[Address]()
    pace = StatusPace(watch, there.__contains__)  # type: ignore[arg-type]
    for number in range(2 * FEW):
        address = (kinds.CLUSTER_QUEUE, Key("", f"queue-{number}"))
        there.add(address)
        pace.published(address)
    last = (kinds.CLUSTER_QUEUE, Key("", "queue-0"))
    watch.shows += 2
    assert pace.pause(last, False) > 1, "all of them change"
    there.intersection_update({last})
    watch.shows += 2
    assert pace.pause(last, False) == STATUS_PAUSE
