"""A memory of a bounded size starts over when it is full."""

from __future__ import annotations

from shoal.remembered import Remembered


def test_a_full_memory_starts_over_with_what_comes() -> None:
    memory: Remembered[str, int] = Remembered(2)
    assert [memory.remember(name, at) for at, name in enumerate(("one", "two", "three"))] == [0, 1, 2]
    assert memory == {"three": 2}


def test_equal_values_are_held_once() -> None:
    memory: Remembered[tuple[int, ...], tuple[int, ...]] = Remembered(2)
    first, second = tuple(range(2)), tuple(range(2))
    assert memory.shared(first, first) is first
    assert memory.shared(second, second) is first
    assert len(memory) == 1
