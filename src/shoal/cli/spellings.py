"""Flags of `ray job submit` and `kubectl ray job submit` that `shoal submit` has no flag of its own for.

A script that has them goes on as it is where they would change nothing here; what cannot be done is refused, with what
to do instead: a flag that is silently ignored would mislead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from shoal.errors import BadInput

F = TypeVar("F", bound=Callable[..., Any])
UNNEEDED = ("log_style", "log_color", "verbose")
"""How Ray's own command prints: the log comes here as the driver wrote it."""
REFUSED = {
    "address": "is for a Ray cluster that runs already: shoal session NAME -- ray job submit … reaches it",
    "headers": "goes to a dashboard that you reach yourself; here a pod inside the cluster submits the job",
    "verify": "goes to a dashboard that you reach yourself; here a pod inside the cluster submits the job",
    "entrypoint_memory": "has no place in a RayJob; ask for it in the script, as in @ray.remote(memory=…)",
    "entrypoint_label_selector": "has no place in a RayJob; choose nodes with --head-node-selectors",
}


def spelling_options(command: F) -> F:
    """Accepted, and not shown in the help."""
    command = click.option("--log-style", type=click.Choice(["auto", "record", "pretty"]), hidden=True)(command)
    command = click.option("--log-color", type=click.Choice(["auto", "false", "true"]), hidden=True)(command)
    command = click.option("-v", "--verbose", is_flag=True, hidden=True)(command)
    for name in REFUSED:
        command = click.option(f"--{name.replace('_', '-')}", name, hidden=True)(command)
    return command


def refuse(options: dict[str, Any]) -> None:
    """Raises BadInput for a flag that cannot be done here."""
    for name, instead in REFUSED.items():
        if options[name] is not None:
            raise BadInput(f"--{name.replace('_', '-')} {instead}")
