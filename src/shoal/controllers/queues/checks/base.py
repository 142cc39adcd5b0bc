"""What an admission check must answer so that a queue can wait for it. Pure: it reads stored objects, and never writes.

One small class per check. It is asked while a Workload has quota, whenever that Workload changes, and again after as
many seconds as it says.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from shoal.api.meta import Json

State = Literal["Pending", "Ready", "Retry", "Rejected"]
STATES: tuple[State, ...] = ("Pending", "Ready", "Retry", "Rejected")


class CheckAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Kueue's states: `Ready` lets it start, `Retry` sends it back to the queue, `Rejected` switches it off."""

    state: State
    message: str = ""
    look_again: float | None = None
    """Seconds after which the check wants to be asked again; None: when the Workload changes."""


class AnsweredCheck(Protocol):
    """One sort of check; `check` is an AdmissionCheck object that names its controller."""

    controller_name: str
    """What AdmissionChecks name in `spec.controllerName`: a domain, a slash, a name."""

    def problem(self, check: Json) -> str:
        """Why this AdmissionCheck cannot be answered, such as a parameter that is missing; empty when it is active."""

    def answer(self, workload: Json, check: Json, now: int) -> CheckAnswer:
        """What the check says about this Workload. `now` in microseconds since the epoch."""


MEMBERS = ("controller_name", "problem", "answer")


def lacking(check: object) -> list[str]:
    """Members of the protocol that this object does not have."""
    return [name for name in MEMBERS if not hasattr(check, name)]
