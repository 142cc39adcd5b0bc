"""Which member gets a gang, policy by policy."""

from __future__ import annotations

import itertools

import pytest

from shoal.controllers.multicluster.choice import Candidate, Policy, chosen

DEMAND = {"cpu": 4000, "pods": 4}
WEST = Candidate(name="west", at=0, free={"cpu": 8000, "pods": 100}, price=3.0, weight=1.0, gangs=1)
EAST = Candidate(name="east", at=1, free={"cpu": 32000, "pods": 100}, price=2.0, weight=1.0, gangs=3)
NORTH = Candidate(name="north", at=2, free={"cpu": 5000, "pods": 100}, price=1.0, weight=10.0, gangs=9)
HIDDEN = Candidate(name="hidden", at=0, is_known=False)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("first", "west"), ("most-free", "east"), ("tightest", "north"), ("cheapest", "north"), ("spread", "north")],
)
def test_a_policy_chooses_among_those_that_would_start_it(policy: Policy, expected: str) -> None:
    for order in itertools.permutations((WEST, EAST, NORTH, HIDDEN)):  # equal input, equal choice
        assert chosen(order, policy, DEMAND) == expected


@pytest.mark.parametrize("policy", ["first", "most-free", "tightest", "cheapest", "spread"])
def test_a_member_that_hides_its_room_comes_last(policy: Policy) -> None:
    assert chosen([HIDDEN, EAST], policy, DEMAND) == "east"
    assert chosen([HIDDEN], policy, DEMAND) == "hidden"
    assert chosen([], policy, DEMAND) == ""


def test_equals_go_by_the_order_of_the_configuration() -> None:
    twins = [Candidate(name=name, at=at, free={"cpu": 8000}) for at, name in enumerate(("b", "a", "c"))]
    for policy in ("first", "most-free", "tightest", "cheapest", "spread"):
        assert chosen(twins[::-1], policy, DEMAND) == "b"  # type: ignore[arg-type]
