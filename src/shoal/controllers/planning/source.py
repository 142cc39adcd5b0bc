"""How another dialect joins the loop that owns the engine: one ledger of room, one plan for everybody.

The AppWrapper controller watches nodes and pods, keeps the engine and makes the plans; it is the host. A guest brings
gangs of its own: it tells them to the engine, says which pods are theirs, and carries out its part of every plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.controllers.planning.lacking import Lacking
from shoal.controllers.planning.questions.subject import Subject
from shoal.engine import Engine
from shoal.engine.kueue import Settings as QueueSettings
from shoal.engine.model import Gang, Plan
from shoal.kube.cache import Cache


class Asker(msgspec.Struct, frozen=True, kw_only=True):
    """A gang on whose behalf nodes may be asked for."""

    gang: str
    """Its key in the engine."""
    generation: int
    """Of its spec: a request that was made for another one is made anew."""
    owner: Json
    """Owner reference of what is created for it."""
    about: Any
    """The object that events are told about."""
    tell: Callable[[], None]
    """Tell the engine about it again."""


class Host(Protocol):
    """What a guest is given."""

    @property
    def engine(self) -> Engine: ...

    @property
    def turn(self) -> int:
        """Counts what the engine was told."""

    def replan(self) -> None:
        """The engine was told something: ask for a plan; requests that come together become one."""

    def plan_again(self) -> None:
        """Ask for a plan though nothing was told."""

    def pods_left(self, gang: str) -> int:
        """How many pods of the gang with this UID have not ended."""

    def lacking(self, gang: str, wanted: int) -> Lacking | None:
        """Of the gang with this UID, which should have so many pods: those without a node."""

    def look_for_pods(self, owner: str) -> None:
        """Ask again whose the pods below this object (a UID) are."""

    def asked(self, gang: Gang) -> Gang:
        """The gang with what is under way for it: nodes that were asked for and may still come."""

    def look_at_asker(self, uid: str, generation: int) -> None:
        """A gang for which nodes may have been asked for is not what it was."""

    def look_at_booking(self, request: Json) -> None:
        """Ask again who keeps the room that this ProvisioningRequest has booked."""


class Guest(Protocol):
    """What the host asks of a guest. Nothing here may wait, except `run` and `synced`."""

    @property
    def queue_settings(self) -> QueueSettings: ...

    def join(self, host: Host) -> None: ...

    async def run(self) -> None:
        """Watch, and carry out what was planned, until cancelled."""

    async def synced(self) -> None:
        """Until all was read that a decision depends on."""

    def subscribe(self) -> None:
        """Tell the engine what there is, from now on. Called before pods are told."""

    def gang_of(self, namespace: str, owners: Iterable[str]) -> str:
        """UID of the guest's gang that a pod with these owners (UIDs, nearest first) belongs to, or an empty text."""

    def known_as(self, key: str) -> str:
        """What people call the gang with this key; the key itself for one that is not the guest's."""

    def pods_changed(self, gang: str) -> None: ...

    def keeps(self, request: Json) -> bool:
        """Does the engine itself keep the room that this request booked, because its gang is about to take it?"""

    def asker(self, uid: str) -> Asker | None:
        """The guest's gang with this UID, as one that may ask for nodes."""

    def planned(self, plan: Plan) -> None: ...

    def subject(self, group: str, kind: str, key: Key) -> Subject | None:
        """What is known of an object that was asked about; None when it is not the guest's."""

    def caches(self) -> list[Cache[Any]]:
        """What its decisions depend on."""
