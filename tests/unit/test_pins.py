"""A pin names the extras that are asked of its package: else pip may take a newer package that has no pin."""

from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PINS = Path(__file__).parents[2] / "requirements.txt"
OURS = Requirement("shoal-ray[local,dev,bench,clients]")
"""What `make requirements` pins the packages of."""


def pins(text: str) -> list[Requirement]:
    return [Requirement(line.partition("\\")[0]) for line in text.splitlines() if line[:1].isalnum()]


def test_every_extra_that_is_asked_for_is_in_its_pin():
    pinned = pins(PINS.read_text())
    extras = {canonicalize_name(one.name): one.extras for one in pinned}
    asked = [each for one in (OURS, *pinned) for each in needed(one) if each.extras]
    missing = [str(each) for each in asked if each.extras - extras.get(canonicalize_name(each.name), set())]
    assert {"ray", "psycopg", "uvicorn"} <= {each.name for each in asked}
    assert not missing, f"make requirements; not in their pins: {missing}"


def needed(one: Requirement) -> list[Requirement]:
    """What this package needs here, with the extras that are asked of it; none of one for another platform."""
    try:
        every = [Requirement(each) for each in requires(one.name) or ()]
    except PackageNotFoundError:
        return []
    chosen = ("", *one.extras)
    return [each for each in every if each.marker is None or any(each.marker.evaluate({"extra": x}) for x in chosen)]
