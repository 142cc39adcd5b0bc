"""How soon as much quota comes back by itself as a gang needs."""

from __future__ import annotations

from math import inf

import pytest

from shoal.engine.kueue.cycle.returns import ENOUGH, LATELY, SECOND, QuotaReturns
from shoal.engine.kueue.facts import FlavorResource, Usage

TREE = (False, "all")
CPU, GPU = FlavorResource("default", "cpu"), FlavorResource("default", "nvidia.com/gpu")


def steady(every: int, usage: Usage, times: int = 200) -> tuple[QuotaReturns, int]:
    """One end after the other; returns when the last was."""
    returns, now = QuotaReturns(), 0
    for _ in range(times):
        now += every
        returns.came_back(TREE, usage, now)
    return returns, now


def test_what_comes_back_all_the_time_comes_back_at_that_rate() -> None:
    returns, now = steady(SECOND // 2, {CPU: 1_000})
    assert returns.within(TREE, {CPU: 4_000}, now) == pytest.approx(2 * SECOND, rel=0.1)


def test_the_scarcest_of_what_is_needed_counts() -> None:
    returns, now = steady(SECOND // 2, {CPU: 8_000, GPU: 1_000})
    assert returns.within(TREE, {CPU: 8_000, GPU: 4_000}, now) == pytest.approx(2 * SECOND, rel=0.1)
    assert returns.within(TREE, {FlavorResource("other", "cpu"): 1}, now) == inf


def test_after_a_while_without_an_end_nothing_is_expected() -> None:
    returns, now = steady(SECOND // 2, {CPU: 1_000})
    assert returns.within(TREE, {CPU: 1_000}, now + LATELY // 2) > 0.5 * SECOND
    assert returns.within(TREE, {CPU: 1_000}, now + 2 * LATELY) == inf


def test_a_few_ends_are_no_stream_and_other_trees_none_of_ours() -> None:
    returns, now = steady(SECOND // 2, {CPU: 1_000}, times=ENOUGH)
    assert returns.within(TREE, {CPU: 1}, now) == inf
    assert returns.within((False, "another"), {CPU: 1}, now) == inf


def test_one_that_needs_nothing_has_it() -> None:
    returns, now = steady(SECOND // 2, {CPU: 1_000})
    assert returns.within(TREE, {CPU: 0}, now) == 0.0
