"""When a gang would start: by ends that are known, and unknown where one is not."""

from __future__ import annotations

from statistics import median

import pytest

from shoal.controllers.planning.history import lengths as runs
from shoal.controllers.planning.history.lengths import RunFacts, estimate, run_length
from shoal.engine.explain import forecast
from shoal.engine.explain.forecast import Forecast, RunLength
from shoal.engine.explain.rehearsal import come_to_rest
from tests.faults import proven

from .build import SECOND, engine, gang, node, pods
from .replayed_day import ReplayedDay
from .test_one_ledger import job, queues


def full(*more: object):
    """A node of 8 cpu that `first` and `second` fill, and `third` behind them."""
    judge = engine(node("node-1", cpu=8), gang("first", pods(1, cpu=5)), gang("second", pods(1, cpu=3), at=1), *more)
    come_to_rest(judge, 10 * SECOND)
    judge.update(gang("third", pods(1, cpu=6), at=20))
    return judge


def by_name(**seconds: float):
    return lambda one: RunLength(seconds[one.name], "declared") if one.name in seconds else None


def test_a_gang_starts_when_enough_of_those_before_it_have_ended():
    judge = full()
    began = judge.gang("AppWrapper/default/first").admitted_at
    found = judge.forecast("AppWrapper/default/third", 60 * SECOND, by_name(first=600, second=1200))
    assert (found.at, found.ends, found.bases) == (began + 1200 * SECOND, 2, ("declared",))
    sooner = judge.forecast(gang("small", pods(1, cpu=1), at=30), 60 * SECOND, by_name(first=600, second=1200))
    assert sooner.at < found.at
    assert judge.gang("AppWrapper/default/third").state == "waiting"  # nothing was decided


def test_without_a_known_end_it_is_unknown_and_the_gang_is_named():
    found = full().forecast("AppWrapper/default/third", 60 * SECOND, by_name(second=10))
    assert not found.at and found.endless == ("AppWrapper/default/first",)
    told = estimate(found, str)
    assert told.at is None and told.basis == "Unknown" and "AppWrapper/default/first has no time limit" in told.message
    assert "too large" in estimate(None, str).message
    alike = estimate(Forecast(endless=("AppWrapper/default/old", "Workload/default/old")), lambda one: one[-3:])
    assert alike.message.startswith("unknown because old has no time limit")
    many = estimate(Forecast(endless=tuple(f"Job/default/{each}" for each in range(9))), str)
    assert "Job/default/0, Job/default/1, Job/default/2 and 6 more have no time limit" in many.message
    assert "more than 4 gangs" in estimate(Forecast(ends=5, too_far=True), str).message


def _ends_of_others_always_help(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forecast, "_starts_without_others", lambda engine, key, now: True)


@proven(without=_ends_of_others_always_help)
def test_f830_what_no_end_of_others_would_start_is_not_laid_to_their_time_limits():
    """F830: a gang waits for what no other gang has (a resource in no flavor of its queue, a node that is not there),
    and others run without a time limit. Holds: `shoal why` does not say that its start is unknown because of them."""
    judge = full()
    judge.update(gang("never", pods(1, cpu=9), at=30))  # more than the node has
    found = judge.forecast("AppWrapper/default/never", 60 * SECOND, by_name())
    assert not found.at and not found.endless
    assert estimate(found, str).message == "unknown because the end of other gangs alone would not start it"


@proven(without=_ends_of_others_always_help)
def test_f830_a_resource_in_no_flavor_of_the_queue_is_not_laid_to_time_limits():
    """F830: a gang asks a queue for what none of its flavors has. Holds: no time limit of another is named for it."""
    judge = engine(node("node-1", cpu=8, gpu=8), *queues(cpu=8), job("runs", pods(1)))
    come_to_rest(judge, 10 * SECOND)
    judge.update(job("uncovered", pods(1, gpu=1), at=20))
    found = judge.forecast("Workload/default/uncovered", 60 * SECOND, by_name())
    assert "time limit" not in estimate(found, str).message


def test_a_gang_that_is_overdue_ends_soon():
    found = full().forecast("AppWrapper/default/third", 5000 * SECOND, by_name(first=60, second=60))
    assert 5000 * SECOND < found.at < 6000 * SECOND


@pytest.mark.parametrize(
    "earlier, limit, elapsed, expected",
    [
        ((), 0, 0, None),
        ((10.0, 20.0), 300, 0, RunLength(300.0, "declared")),  # too few to count
        ((10.0, 20.0, 90.0), 0, 0, RunLength(20.0, "history")),
        ((10.0, 20.0, 90.0), 60, 30, RunLength(60, "history")),  # no longer than it may
        ((10.0, 20.0, 90.0), 0, 200, RunLength(200, "history")),  # longer than ever
    ],
)
def test_a_run_is_as_long_as_those_before_it(earlier, limit, elapsed, expected):
    assert run_length(earlier, limit, elapsed) == expected


def ends_never_matter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forecast, "_end_of", lambda gang, length, now: now + SECOND)


@proven(without=ends_never_matter)
def test_f302_starts_are_foretold_to_the_second_where_every_run_is_known():
    """F302: a user plans by the start that `shoal why` foretells. Holds: where runs are as long as declared and none
    comes in between, a gang starts at that moment; order, room and gangs that overtake count as they will."""
    day = ReplayedDay(seed=1, jobs=60, exact=True).run()
    assert len(day.errors) > 20
    assert median(day.errors) <= 5, day.told()


def test_over_a_day_of_jobs_the_error_is_small_beside_the_wait(capsys: pytest.CaptureFixture[str]):
    day = ReplayedDay(seed=2).run()
    with capsys.disabled():
        print(f"\nestimates over a replayed day: {day.told()}")
    assert len(day.errors) > 40
    assert median(day.errors) < median(day.waits)


def test_what_is_not_recorded_has_no_length():
    known = runs.lengths({"uid-a": RunFacts("default", "ann", "", 60)}, {}, 0)
    assert known(gang("a")) == RunLength(60.0, "declared") and known(gang("b")) is None
