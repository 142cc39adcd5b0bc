"""Where a component's pod templates are: `template.spec.workerGroupSpecs[0].template`.

Grammar: `template`, then any number of `.key` and `[n]`. Used by validation and by code that reads or injects pod sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from shoal.api.meta import Json
from shoal.errors import BadInput

_PATH = re.compile(r"template((?:\.[^.\[\]]+|\[[0-9]{1,9}\])*)", re.ASCII)
_STEP = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]", re.ASCII)


def steps(path: str) -> list[str | int]:
    """Keys and indexes below the template. Raises BadInput for anything outside the grammar."""
    match = _PATH.fullmatch(path)
    if match is None:
        raise BadInput(f"{path[:80]!r} is not a path such as template.spec.workerGroupSpecs[0].template")
    return [key if key else int(index) for key, index in _STEP.findall(match.group(1))]


def written(path: Iterable[str | int]) -> str:
    """The text of these steps below the template; `steps` reads it back."""
    return "template" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def resolve(template: Json, path: str) -> Any:
    """What the path points at inside a wrapped object. Raises BadInput where it leads nowhere."""
    found: Any = template
    for step in steps(path):
        if isinstance(step, int):
            if not isinstance(found, list) or step >= len(found):
                raise BadInput(f"{path[:80]!r}: there is no element [{step}]")
            found = found[step]
        else:
            if not isinstance(found, dict) or step not in found:
                raise BadInput(f"{path[:80]!r}: there is no field {step!r}")
            found = found[step]
    return found
