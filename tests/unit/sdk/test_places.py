"""Quotas as rows: what is guaranteed, used, borrowed and lent."""

from __future__ import annotations

from typing import Any

from shoal.sdk.places import with_lent


def row(queue: str, guaranteed: str, used: str, borrowed: str = "0", cohort: str = "all") -> dict[str, Any]:
    place = {"clusterQueue": queue, "cohort": cohort, "flavor": "plain", "resource": "cpu"}
    return {**place, "guaranteed": guaranteed, "used": used, "borrowed": borrowed}


def test_what_a_queue_lends_is_what_others_borrow_and_it_does_not_use() -> None:
    rows = [row("a", "4", "1"), row("b", "2", "4500m", "2500m"), row("alone", "4", "0", cohort="")]
    assert [one["lent"] for one in with_lent(rows)] == ["2500m", "0", "0"]
    assert with_lent([row("a", "4", "3"), row("b", "2", "4", "2")])[0]["lent"] == "1"
