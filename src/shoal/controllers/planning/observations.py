"""What reconcilers learn and no watch tells: given to the planning loop, which alone updates facts and decisions.

A reconciler notes observations while it looks at one workload; they are fed to the loop before the next look at it.
What is needed after a restart is not here: that is stored, or found again by the next look.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Observation(msgspec.Struct, frozen=True, tag=True):
    gang: str
    """Key of the gang in the engine."""
    uid: str


# --- what became of a decision


class WriteUnknown(Observation, frozen=True):
    """A write of a decision had no answer."""


class WriteStored(Observation, frozen=True):
    """A write got through."""


class NotStored(Observation, frozen=True):
    """What was decided cannot be stored, and certainly was not: it is void."""


class NotKept(Observation, frozen=True):
    """The server took what was decided and did not keep it: void, and not decided again before something changes."""


class ReservationRefused(Observation, frozen=True):
    """The server will not store the reservation: others go first until this moment."""

    until: int


class CalledOff(Observation, frozen=True):
    """It was to start and to stop again, and neither is stored: neither happens."""


class EvictionStored(Observation, frozen=True):
    """Gangs whose admission waited for this may be admitted now."""


class Outdated(Observation, frozen=True):
    """A wait has ended that was stored with the workload: it stands in the line again."""


# --- what a workload still has


class RoomNeeded(Observation, frozen=True):
    """Does it need what it was given? Not when none of its pods can ever come again."""

    needed: bool


class ObjectsGone(Observation, frozen=True):
    """It has ended, and nothing that was created for it is left."""


class ObjectsRemain(Observation, frozen=True):
    """Its objects were told to go and are still there."""


class ObjectsLeave(Observation, frozen=True):
    """It is deleted, and all that it had was told to go."""


class PodGone(Observation, frozen=True):
    """A pod that was wrapped as it is, and is gone for good: its item and its name."""

    item: int
    name: str


NONE_NOTED: tuple[Observation, ...] = ()


class Observations:
    """Those that were noted and not fed to the loop yet."""

    def __init__(self) -> None:
        self._noted: list[Observation] = []

    def note(self, observation: Observation) -> None:
        self._noted.append(observation)

    def take(self) -> Sequence[Observation]:
        if not self._noted:
            return NONE_NOTED
        taken, self._noted = self._noted, []
        return taken
