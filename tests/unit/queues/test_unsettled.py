"""A look now and then is at what is not over, and one in ten at everything."""

from __future__ import annotations

from shoal.api.kind import Key
from shoal.controllers.queues.unsettled import ALL_EVERY, Unsettled


def test_finished_workloads_are_looked_at_once_in_ten_looks() -> None:
    unsettled = Unsettled()
    done, running, gone = (Key("default", name) for name in ("done", "running", "gone"))
    for key in (done, running, gone):
        unsettled.update(key, is_settled=False)
    unsettled.update(done, is_settled=True)
    unsettled.forget(gone)
    looks = [unsettled.next_look([done, running]) for _ in range(ALL_EVERY)]
    assert looks == [[running]] * (ALL_EVERY - 1) + [[done, running]]


def test_a_workload_that_runs_again_is_looked_at_again() -> None:
    unsettled = Unsettled()
    key = Key("default", "train")
    unsettled.update(key, is_settled=True)
    assert unsettled.next_look([key]) == []
    unsettled.update(key, is_settled=False)
    assert unsettled.next_look([key]) == [key]
