"""Which member gets a gang, policy by policy."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from shoal.controllers.multicluster import ClusterSettings
from shoal.controllers.multicluster.choice import Candidate, chosen, parse_policy
from shoal.errors import BadInput

DEMAND = {"cpu": 4000, "pods": 4}
WEST = Candidate(name="west", at=0, free={"cpu": 8000, "pods": 100}, price=3.0, weight=1.0, gangs=1)
EAST = Candidate(name="east", at=1, free={"cpu": 32000, "pods": 100}, price=2.0, weight=1.0, gangs=3)
NORTH = Candidate(name="north", at=2, free={"cpu": 5000, "pods": 100}, price=1.0, weight=10.0, gangs=9)
FREE = {"small": 8000, "large": 16000}
HIDDEN = Candidate(name="hidden", at=0, tier=2)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("first", "west"), ("most-free", "east"), ("tightest", "north"), ("cheapest", "north"), ("spread", "north")],
)
def test_a_policy_chooses_among_those_that_would_start_it(policy: str, expected: str) -> None:
    for order in itertools.permutations((WEST, EAST, NORTH, HIDDEN)):  # equal input, equal choice
        assert chosen(order, parse_policy(policy), DEMAND) == (expected,)


@pytest.mark.parametrize("policy", ["first", "most-free", "tightest", "cheapest", "spread"])
def test_a_member_that_hides_its_room_comes_last(policy: str) -> None:
    assert chosen([HIDDEN, EAST], parse_policy(policy), DEMAND) == ("east",)
    assert chosen([HIDDEN], parse_policy(policy), DEMAND) == ("hidden",)
    assert chosen([], parse_policy(policy), DEMAND) == ()


def test_equals_go_by_the_order_of_the_configuration() -> None:
    twins = [Candidate(name=name, at=at, free={"cpu": 8000}) for at, name in enumerate(("b", "a", "c"))]
    for policy in ("first", "most-free", "tightest", "cheapest", "spread"):
        assert chosen(twins[::-1], parse_policy(policy), DEMAND) == ("b",)


def test_policies_decide_one_after_the_other() -> None:
    cheap = [Candidate(name=name, at=at, free={"cpu": cpu}, price=1.0) for at, (name, cpu) in enumerate(FREE.items())]
    assert chosen([WEST, *cheap], parse_policy("cheapest,most-free"), DEMAND) == ("large",)
    assert chosen([WEST, *cheap], parse_policy("cheapest"), DEMAND) == ("small",)


def test_a_gang_prefers_labels_before_anything_else() -> None:
    near = Candidate(name="near", at=9, free={"cpu": 5000}, preferred=True)
    assert chosen([WEST, EAST, near], parse_policy("affinity,first"), DEMAND) == ("near",)


def test_a_race_asks_the_best_few_of_one_tier() -> None:
    assert chosen([WEST, EAST, NORTH, HIDDEN], parse_policy("race=2,cheapest"), DEMAND) == ("north", "east")
    assert chosen([WEST, HIDDEN], parse_policy("race=3"), DEMAND) == ("west",)


@pytest.mark.parametrize(
    ("text", "fault"),
    [("best", "'best' is none of first"), ("race=0", "a number from 1"), ("race=x", "a number from 1")],
)
def test_a_policy_that_there_is_not_is_refused_in_words(text: str, fault: str) -> None:
    with pytest.raises(BadInput, match=fault):
        parse_policy(text)
    with pytest.raises(msgspec.ValidationError, match=fault):
        msgspec.convert({"policy": text}, ClusterSettings)
