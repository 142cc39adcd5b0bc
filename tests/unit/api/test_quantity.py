"""Quantities: read, rounded and printed as Kubernetes does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.api import core, pods, quantity
from shoal.api.quantity import MAX_UNITS, NANO, Quantity, amount, amounts, parse, show
from shoal.errors import BadInput
from tests.faults import proven


@pytest.mark.parametrize(
    "text, milli, units, printed",
    [
        ("0", 0, 0, "0"),
        ("100m", 100, 1, "100m"),
        ("0.1", 100, 1, "100m"),  # prints in the smallest whole unit
        ("1.5", 1500, 2, "1500m"),
        ("2", 2000, 2, "2"),
        ("1000m", 1000, 1, "1"),
        ("1k", 1_000_000, 1000, "1k"),
        ("12000", 12_000_000, 12000, "12k"),
        ("2G", 2_000_000_000_000, 2_000_000_000, "2G"),
        ("1Ki", 1_024_000, 1024, "1Ki"),
        ("1.5Gi", 1_610_612_736_000, 1_610_612_736, "1536Mi"),
        ("0.5Ki", 512_000, 512, "512"),  # below 1024 the binary style has no suffix
        ("0.1Gi", 107_374_182_400, 107_374_183, "107374183"),
        ("1e3", 1_000_000, 1000, "1e3"),
        ("1E3", 1_000_000, 1000, "1e3"),
        ("1E", 10**21, 10**18, "1E"),  # exa, not an exponent
        ("12e6", 12 * 10**9, 12 * 10**6, "12e6"),
        ("100e-3", 100, 1, "100e-3"),
        ("1u", 1, 1, "1u"),
        ("0.1n", 1, 1, "1n"),  # something stays something
        (".5", 500, 1, "500m"),
        ("5.", 5000, 5, "5"),
        ("+3", 3000, 3, "3"),
        ("-1500m", -1500, -2, "-1500m"),
        ("007", 7000, 7, "7"),
        (3, 3000, 3, "3"),
        (0.5, 500, 1, "500m"),
    ],
)
def test_a_quantity_is_read_rounded_and_printed(text: Any, milli: int, units: int, printed: str) -> None:
    found = parse(text)
    assert (found.milli, found.units, str(found)) == (milli, units, printed)


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1 ", "1K", "1kib", "1e", "1e1.5", "--1", ".", "1,5", "0x10", "1_000", "NaN", "inf", True, None, []],
)
def test_what_kubernetes_refuses_is_refused_with_its_text(text: Any) -> None:
    with pytest.raises(BadInput, match="is not a quantity"):
        parse(text)


def test_a_number_too_long_to_print_is_refused_too() -> None:
    with pytest.raises(BadInput, match="a number of that size is not a quantity"):
        parse(10**5000)


@pytest.mark.parametrize("text", ["9223372036854775808", "100E", "1e19", "1e100", "16Ei", "9" * 100])
def test_more_than_64_bits_is_capped(text: str) -> None:
    assert parse(text).units == MAX_UNITS


@given(st.integers(min_value=-(10**27), max_value=10**27), st.sampled_from(["decimal", "exponent"]))
def test_any_amount_prints_and_reads_back(nano: int, style: quantity.Format) -> None:
    written = Quantity(nano, style)
    assert parse(str(written)).nano == nano
    assert str(parse(str(written))) == str(written)


@given(st.integers(min_value=0, max_value=MAX_UNITS))
def test_whole_bytes_print_and_read_back_in_binary(units: int) -> None:
    assert parse(str(Quantity(units * NANO, "binary"))).nano == units * NANO


@given(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "hugepages-2Mi"]), st.integers(min_value=0, max_value=10**15)
)
def test_the_engines_integers_survive_the_round_trip(resource: str, value: int) -> None:
    assert amount(resource, show(resource, value)) == value


@given(st.text(max_size=20))
def test_any_text_is_a_quantity_or_a_clear_refusal(text: str) -> None:
    try:
        found = parse(text)
    except BadInput:
        return
    assert parse(str(found)).units == found.units


def _with_32_bits(patch: pytest.MonkeyPatch) -> None:
    def narrow(self: Quantity) -> int:
        value = int(self.nano / NANO) & 0xFFFFFFFF
        return value - 2**32 if value >= 2**31 else value

    patch.setattr(Quantity, "units", property(narrow))


@proven(without=_with_32_bits)
def test_f029_amounts_are_exact_past_32_and_64_bits() -> None:
    """F29: huge and fractional amounts, and sums of them past 64 bits. Holds: every amount is an exact integer."""
    assert amounts({"memory": "16Ti", "cpu": "0.0005", "nvidia.com/gpu": 3}) == {
        "memory": 16 * 2**40,
        "cpu": 1,
        "nvidia.com/gpu": 3,
    }
    container = core.Container(name="big", resources=core.ResourceRequirements(requests={"memory": "8Ei"}))
    asked = pods.requests(core.PodSpec(containers=(container,) * 3))
    assert asked["memory"] == 3 * MAX_UNITS


def _accept_negatives(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pods, "_nano", lambda text, where: parse(text).nano)


@proven(without=_accept_negatives)
def test_f029_negative_amounts_are_refused_where_they_stand() -> None:
    """F29: a negative request. Holds: it is refused by name, and never credits room to anyone."""
    container = core.Container(name="trick", resources=core.ResourceRequirements(requests={"cpu": "-1"}))
    with pytest.raises(BadInput, match="request of cpu on container 'trick': -1 is negative"):
        pods.requests(core.PodSpec(containers=(container,)))
