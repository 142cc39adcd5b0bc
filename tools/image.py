"""Writes requirements-image.txt: the part of requirements.txt that the image needs, with the same pins and hashes.

`make requirements` calls it last. The closure is taken from the packages that are installed, so it needs no network;
Ray and what only one machine or the developers need stay out.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "requirements-image.txt"
EXTRA = "controller"
IMAGE = {
    "extra": "",
    "python_version": "3.12",
    "python_full_version": "3.12.0",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_python_implementation": "CPython",
    "implementation_name": "cpython",
}
"""What the Dockerfile's base is, whatever runs this."""
HEAD = "# Made by `make requirements` from requirements.txt: what the image of the controller has; do not edit.\n"


def text() -> str:
    """The file as it should be."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = closure([*project["dependencies"], *project["optional-dependencies"][EXTRA]])
    blocks = re.split(r"\n(?=[a-zA-Z0-9])", (ROOT / "requirements.txt").read_text())
    pinned = {
        canonicalize_name(re.split(r"[\[=]", block, maxsplit=1)[0]): block
        for block in blocks
        if "==" in block.split("\n")[0]
    }
    missing = sorted(wanted - set(pinned))
    if missing:
        raise SystemExit(f"error: requirements.txt does not pin {', '.join(missing)}; run make requirements")
    return HEAD + "".join(f"{_without_comments(pinned[name])}\n" for name in sorted(wanted))


def closure(listed: list[str]) -> set[str]:
    """Names of these packages and of all that they need here."""
    found: set[str] = set()
    waiting = [Requirement(one) for one in listed]
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        if name in found or (one.marker is not None and not one.marker.evaluate(IMAGE)):
            continue
        found.add(name)
        waiting += [Requirement(each) for each in requires(name) or ()]
        for extra in one.extras:
            waiting += [
                Requirement(each.partition(";")[0])
                for each in requires(name) or ()
                if (marker := Requirement(each).marker) is not None and marker.evaluate({**IMAGE, "extra": extra})
            ]
    return found


def _without_comments(block: str) -> str:
    return "\n".join(line for line in block.splitlines() if line.strip() and not line.strip().startswith("#"))


if __name__ == "__main__":
    TARGET.write_text(text())
    sys.stdout.write(f"{TARGET} written\n")
