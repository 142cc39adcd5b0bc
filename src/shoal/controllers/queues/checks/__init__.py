"""Admission checks: which apply to a Workload (`rules`), and those that we answer ourselves.

A check that needs no objects of its own is one file of this folder that names its `CHECKS`, or an entry point of
another package (group `shoal.admission_checks`): `base` says what it must answer, `answered` asks it. `provisioning`
has objects of its own (`requests`). Checks of other controllers write their own entry into the Workload and need
nothing here.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from importlib.metadata import entry_points

from shoal.controllers.queues.checks.base import AnsweredCheck, CheckAnswer, lacking
from shoal.controllers.queues.checks.rules import (
    all_ready,
    applying,
    are_ready,
    flavors_granted,
    flavors_of,
    flavors_used,
    in_state,
    listed,
    rules_of,
    sync,
)
from shoal.errors import BadInput

ENTRY_POINTS = "shoal.admission_checks"
_USERS = ("answered", "provisioning", "requests")
"""Modules that are no checks of this sort: `answered` asks those, the others have objects of their own."""


def _shipped() -> Iterator[AnsweredCheck]:
    for module in pkgutil.iter_modules(__path__):
        if module.name not in _USERS:
            yield from getattr(importlib.import_module(f"{__name__}.{module.name}"), "CHECKS", ())


def _installed() -> Iterator[AnsweredCheck]:
    """Checks that other packages bring. Raises BadInput for one that cannot be used."""
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            found = entry.load()
            check: AnsweredCheck = found() if isinstance(found, type) else found
        except (ImportError, AttributeError, TypeError) as error:
            raise BadInput(f"admission check {entry.value} cannot be loaded: {error}; uninstall it") from error
        if missing := lacking(check):
            raise BadInput(f"admission check {entry.value} lacks {', '.join(missing)}; see shoal.contracts")
        yield check


BY_CONTROLLER: dict[str, AnsweredCheck] = {one.controller_name: one for one in (*_shipped(), *_installed())}

__all__ = [
    "BY_CONTROLLER",
    "AnsweredCheck",
    "CheckAnswer",
    "all_ready",
    "applying",
    "are_ready",
    "flavors_granted",
    "flavors_of",
    "flavors_used",
    "in_state",
    "listed",
    "rules_of",
    "sync",
]
