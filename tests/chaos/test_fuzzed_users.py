"""Requests of any shape as five kinds of user, from seeds; a million of them on demand (`make test-long`)."""

from __future__ import annotations

import pytest

from tests.attacks import fuzz
from tests.faults import proven


def _any_type(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("shoal.local.apiserver.auth.gate._check_subresource", lambda call: None)
    for module in ("auth.tokens", "verbs.subresources"):
        patch.setattr(f"shoal.local.apiserver.{module}.request_spec", lambda wanted: wanted.get("spec") or {})


@proven(without=_any_type)
@pytest.mark.parametrize("seed", range(4))
async def test_f196_no_request_is_answered_with_a_500_or_reaches_past_its_rights(seed: int) -> None:
    """F196: administrators, readers, holders of subresources and those who act for others send what no client would.
    Holds: every request gets an answer that says what is wrong, and nothing is written where its sender may not."""
    counts = await fuzz.run(seed, 5_000)
    assert sum(counts.values()) == 5_000
    assert counts[200] > 50 and counts[201] > 10 and counts[422] > 50 and counts[403] > 500  # it gets that far
