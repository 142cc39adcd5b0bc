"""How much of a guarantee others use: exact with one lender, an interval with several."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.api.meta import Json
from shoal.web.lending import lent, root_of


def queue(name: str, guaranteed: int, used: int, cohort: str = "all", **limits: Any) -> Json:
    quota = {"name": "cpu", "nominalQuota": str(guaranteed), **limits}
    total = {"name": "cpu", "total": str(used), "borrowed": str(max(0, used - guaranteed))}
    return {
        "metadata": {"name": name},
        "spec": {"cohortName": cohort, "resourceGroups": [{"flavors": [{"name": "f", "resources": [quota]}]}]},
        "status": {"flavorsReservation": [{"name": "f", "resources": [total]}]},
    }


def cohort(parent: str = "", quota: int = 0) -> Json:
    resources = [{"name": "cpu", "nominalQuota": str(quota)}]
    groups = [{"flavors": [{"name": "f", "resources": resources}]}] if quota else []
    return {"spec": {"parentName": parent, "resourceGroups": groups}}


LIMITED = [queue("a", 4, 1, lendingLimit="1"), queue("b", 4, 6), queue("c", 4, 3)]
APART = [queue("a", 4, 1, "left"), queue("b", 4, 6, "right")]
CASES = [
    ("nothing is borrowed", [queue("a", 4, 2), queue("b", 4, 4)], {}, {}),
    ("one lender: exact", [queue("a", 4, 1), queue("b", 4, 6)], {}, {"a": (2, 2)}),
    ("two lenders: between", [queue("a", 4, 1), queue("b", 4, 6), queue("c", 4, 3)], {}, {"a": (1, 2), "c": (0, 1)}),
    ("a limit of lending", LIMITED, {}, {"a": (1, 1), "c": (1, 1)}),
    ("across the tree", APART, {"left": cohort("top"), "right": cohort("top")}, {"a": (2, 2)}),
    ("another tree", APART, {}, {}),
    ("quota of the cohort's own", [queue("a", 4, 1), queue("b", 4, 6)], {"all": cohort(quota=2)}, {"a": (0, 2)}),
]  # fmt: skip


@pytest.mark.parametrize("queues, cohorts, expected", [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_lent(queues: list[Json], cohorts: dict[str, Json], expected: dict[str, tuple[int, int]]) -> None:
    found = lent(queues, cohorts)
    assert {
        name: (low // 1000, high // 1000) for name, places in found.items() for low, high in places.values()
    } == expected


def test_a_ring_of_cohorts_ends() -> None:
    assert root_of("a", {"a": cohort("b"), "b": cohort("a")}) in ("a", "b")
