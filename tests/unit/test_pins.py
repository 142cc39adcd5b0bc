"""A pin names the extras that are asked of its package: else pip may take a newer package that has no pin."""

from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PINS = Path(__file__).parents[2] / "requirements.txt"


def pinned_extras(text: str) -> dict[str, set[str]]:
    lines = (line.partition("\\")[0] for line in text.splitlines() if line[:1].isalnum())
    return {canonicalize_name(one.name): one.extras for one in map(Requirement, lines)}


def test_every_extra_that_is_asked_for_is_in_its_pin():
    pinned = pinned_extras(PINS.read_text())
    asked: dict[str, set[str]] = {}
    for name in pinned:
        for each in needed(name):
            asked.setdefault(canonicalize_name(each.name), set()).update(each.extras)
    missing = {name: extras - pinned[name] for name, extras in asked.items() if extras - pinned.get(name, extras)}
    assert {name: extras for name, extras in asked.items() if extras}, "no package asks for an extra"
    assert not missing, f"make requirements; not in their pins: {missing}"


def needed(name: str) -> list[Requirement]:
    """What this package needs here, without its own extras; none of one for another platform."""
    try:
        every = [Requirement(one) for one in requires(name) or ()]
    except PackageNotFoundError:
        return []
    return [one for one in every if one.marker is None or one.marker.evaluate({"extra": ""})]
