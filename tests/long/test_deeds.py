"""Random worlds with deeds: what explanations say would help is done in 5,000 worlds, and less: some twenty minutes."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.unit.engine.deeds import judge

FIRST, WORLDS, AT_ONCE = 10_000, 5_000, 250


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(FIRST, FIRST + WORLDS, AT_ONCE))
def test_what_is_said_to_help_helps_and_less_does_not(first: int) -> None:
    seen: Counter[str] = Counter()
    lies = [lie for seed in range(first, first + AT_ONCE) for lie in judge(seed, seen, 2)]
    assert not lies, f"{len(lies)} of {sum(seen.values())}:\n" + "\n".join(lies)
    assert not seen["loops"], seen
    assert seen["ends yes"] and seen["quota yes"] and seen["nodes yes"], seen
