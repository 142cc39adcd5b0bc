"""Times: whole seconds and MicroTimes, as Kubernetes writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.api.times import micro_text, parse_time, seconds_text
from shoal.errors import BadInput


@pytest.mark.parametrize(
    "text, moment",
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2023-08-29T02:50:18Z", 1_693_277_418_000_000),
        ("2023-08-29T02:50:18.829462Z", 1_693_277_418_829_462),
        ("2023-08-29T02:50:18.829462999Z", 1_693_277_418_829_462),  # digits past the sixth are dropped
        ("2023-08-29T04:50:18.5+02:00", 1_693_277_418_500_000),
        ("1969-12-31T23:59:59.999999Z", -1),
    ],
)
def test_rfc_3339_text_becomes_microseconds(text: str, moment: int) -> None:
    assert parse_time(text) == moment


@given(st.integers(min_value=-62_135_596_800_000_000, max_value=253_402_300_799_999_999))
def test_a_micro_time_always_has_six_digits_and_reads_back(moment: int) -> None:
    text = micro_text(moment)
    assert len(text) == len("2023-08-29T02:50:18.829462Z") and text.endswith("Z")
    assert parse_time(text) == moment
    assert parse_time(seconds_text(moment)) == moment // 1_000_000 * 1_000_000


@pytest.mark.parametrize("text", ["", "yesterday", "2023-08-29", "2023-13-01T00:00:00Z", "2023-08-29T25:00:00Z", "١"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match="is not an RFC 3339 time such as"):
        parse_time(text)
