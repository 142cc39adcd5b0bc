"""Plans follow changes at once, and become fewer where thousands of gangs wait and changes do not stop coming."""

from __future__ import annotations

from shoal.controllers.planning.pace import (
    ALWAYS,
    AT_ONCE,
    BACKLOG_LONGEST,
    BACKLOG_PAUSE,
    GREAT_CROWD,
    LEAST,
    LENGTHY,
    LONGEST,
    STEADY,
    PlanPace,
)


def plans_in(
    seconds: float, crowd: int, each: float = 0.001, between: float = 0.0, starts: int = 0, waiting: int = 1
) -> int:
    """How many are made where a change comes `between` seconds after each, and each starts so many gangs."""
    pace, now, count = PlanPace(), 0.0, 0
    while now < seconds:
        now += between
        now += pace.left(now, crowd, waiting)
        pace.planned(now, now + each, crowd, starts)
        now, count = now + each, count + 1
    return count


def test_few_gangs_never_wait_for_a_pause() -> None:
    assert plans_in(1.0, crowd=10) == 1000


def test_plans_for_a_crowd_take_a_seventh_of_the_time_at_most() -> None:
    assert 130 < plans_in(1.0, crowd=500) < 150


def test_short_plans_for_a_crowd_are_five_milliseconds_apart() -> None:
    assert 180 < plans_in(1.0, crowd=500, each=0.0001) < 200 + AT_ONCE


def test_where_very_many_wait_and_changes_do_not_stop_plans_are_thirty_milliseconds_apart() -> None:
    assert 310 < plans_in(10.0, crowd=GREAT_CROWD + 1) < 350


def test_where_very_many_wait_changes_need_not_come_during_the_short_pause_to_be_gathered() -> None:
    assert 310 < plans_in(10.0, crowd=GREAT_CROWD + 1, each=0.0001, between=0.01) < 350


def test_where_very_many_wait_and_changes_come_seldom_each_has_its_plan() -> None:
    assert 240 < plans_in(10.0, crowd=GREAT_CROWD + 1, between=0.04) < 250


def test_where_very_many_run_and_none_waits_plans_are_a_quarter_of_a_second_apart() -> None:
    assert 35 < plans_in(10.0, crowd=GREAT_CROWD + 1, waiting=0) - STEADY < 45
    assert plans_in(1.0, crowd=10, waiting=0) == 1000


def test_where_very_many_wait_a_plan_takes_a_ninth_of_the_time_at_most() -> None:
    assert 125 < plans_in(10.0, crowd=GREAT_CROWD + 1, each=0.008) < 160


def test_where_a_plan_of_very_many_takes_long_it_takes_a_fortieth_of_the_time_at_most() -> None:
    assert 10 < plans_in(10.0, crowd=GREAT_CROWD + 1, each=0.015) - STEADY < 25


def test_a_plan_that_takes_long_because_it_starts_many_is_followed_by_a_short_pause() -> None:
    """Else as many end meanwhile, the next plan takes as long again, and what is free lies idle half of the time."""
    assert 25 < plans_in(10.0, crowd=GREAT_CROWD + 1, each=0.03, starts=200) - STEADY < 35
    assert 3 < plans_in(10.0, crowd=GREAT_CROWD + 1, each=0.03, starts=20) - STEADY < 10


def test_a_change_after_a_rest_is_planned_for_at_once_however_many_wait() -> None:
    pace = PlanPace()
    for at in range(100):
        assert pace.left(at, 100_000) == 0.0
        pace.planned(at, at + 0.001, 100_000, starts=0)
        for soon in range(1, AT_ONCE):  # nor are the next few, which may be what came of the same
            assert pace.left(at + 0.002 * soon, 100_000) == 0.0
            pace.planned(at + 0.002 * soon, at + 0.002 * soon + 0.001, 100_000, starts=0)
        later = at + 0.002 * AT_ONCE
        assert pace.left(later, 100_000) == 0.0
        pace.planned(later, later + 0.001, 100_000, starts=0)
        assert 0 < pace.left(later + 0.002, 100_000) < 0.03  # one after those is not held back for long
        pace.planned(later + 0.03, later + 0.031, 100_000, starts=0)


def test_plans_after_a_rest_that_take_long_have_their_pause() -> None:
    pace = PlanPace()
    assert pace.left(10.0, 500) == 0.0
    pace.planned(10.0, 10.0 + 2 * LENGTHY, 500, starts=0)
    assert 11 * LENGTHY < pace.left(10.0 + 2 * LENGTHY, 500) < 13 * LENGTHY


def test_a_plan_that_takes_long_is_followed_by_a_longer_pause() -> None:
    pace = PlanPace()
    pace.planned(0.0, 0.03, 500, starts=0)
    assert 0.17 < pace.left(0.03, 500) < 0.19
    pace.planned(1.0, 3.0, 500, starts=0)
    assert pace.left(3.0, 500) == LONGEST


def test_while_decisions_are_yet_to_be_stored_others_are_not_made_in_a_hurry() -> None:
    pace = PlanPace()
    pace.planned(0.0, 0.001, 500, starts=0)
    assert pace.left_with_stock(0.001, 500) == BACKLOG_PAUSE
    assert pace.left_with_stock(0.001 + BACKLOG_PAUSE, 500) == 0.0
    assert pace.left_with_stock(0.001, 50) == 0.0
    pace.planned(1.0, 1.1, 500, starts=0)
    assert 3.9 < pace.left_with_stock(1.1, 500) < 4.1
    pace.planned(4.0, 6.0, 500, starts=0)
    assert pace.left_with_stock(6.0, 500) == BACKLOG_LONGEST


def test_a_plan_of_very_many_starts_twice_as_many_as_were_stored_since_the_last_one() -> None:
    pace, crowd = PlanPace(), GREAT_CROWD + 1
    assert pace.most(crowd, unstored=0, stored=0) == LEAST
    assert pace.most(crowd, unstored=40, stored=1_000) == 2_000 - 40
    assert pace.most(crowd, unstored=LEAST + 1, stored=1_001) == 0
    assert pace.most(crowd, unstored=10, stored=1_002) == LEAST - 10


def test_gangs_whose_start_cannot_be_stored_do_not_hold_up_all_others() -> None:
    pace, crowd = PlanPace(), GREAT_CROWD + 1
    started, stuck = 0, 5 * LEAST
    for _ in range(10):
        started += pace.most(crowd, unstored=stuck, stored=started) or 0
    assert started >= 5 * ALWAYS


def test_a_plan_of_fewer_starts_all_that_it_can() -> None:
    assert PlanPace().most(GREAT_CROWD, unstored=5_000, stored=0) is None
