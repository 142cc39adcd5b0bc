"""Other clusters, as a source of workloads sees them: where a gang could go, and what became of what was sent there.

The hub of several clusters offers this to the AppWrapper controller, which decides, stores and then asks for it, and to
the queue controller, which stores with a reservation where the gang goes. They are put together at the entry point and
know nothing else of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import msgspec

from shoal.api.appwrapper import AppWrapper, ClusterScheduling
from shoal.api.kind import Kind
from shoal.engine.model import Gang


class MemberChoice(msgspec.Struct, frozen=True):
    cluster: str = ""
    """Empty: none has room now."""
    at_home: bool = False
    """None has room, and it may run in this cluster."""
    reasons: dict[str, str] = {}
    """Why not, by name of a cluster that was asked."""


class Sent(msgspec.Struct, frozen=True):
    """`later`: it cannot be known yet. A refusal is the cluster's, or the creator's rights'."""

    outcome: Literal["done", "later", "refused"]
    why: str = ""


class SentCopy(msgspec.Struct, frozen=True):
    where: Literal["there", "gone", "unknown"]
    found: AppWrapper | None = None
    why: str = ""
    """Of an unknown one: why its cluster cannot say."""


class OtherClusters(Protocol):
    """A round is one admission of a gang, by its number; what was sent in another round is never taken for it."""

    def choose(
        self, gang: Gang, wanted: ClusterScheduling | None, annotations: Mapping[str, str] | None = None
    ) -> MemberChoice:
        """Where it would start now. `annotations`: the AppWrapper's. Changes nothing."""

    def keep(self, gang: Gang, cluster: str, epoch: int) -> None:
        """Room in this cluster is this gang's from now on. Round 0: it is not stored yet."""

    def forget(self, uid: str) -> None:
        """It holds no room anywhere."""

    def refuse(self, uid: str, cluster: str, why: str) -> None:
        """This cluster is not chosen again for this gang for a while."""

    async def send(self, kind: Kind, wrapper: AppWrapper, cluster: str, epoch: int) -> Sent:
        """Make the copy; again is harmless."""

    async def look(self, kind: Kind, wrapper: AppWrapper, cluster: str, epoch: int) -> SentCopy:
        """The copy as it is there."""

    def is_leaving(self, cluster: str) -> bool:
        """Is this cluster being taken away?"""

    async def remove(self, kind: Kind, wrapper: AppWrapper, cluster: str, epoch: int) -> bool:
        """True once nothing of it is there, or its removal is stored for when the cluster answers."""

    @property
    def admit_seconds(self) -> float:
        """How long a cluster may let a gang wait before it goes to another."""

    def subscribe(self, room: Callable[[], None], changed: Callable[[str], None]) -> None:
        """`room` when a cluster may have other room than before, `changed` with the UID whose copy changed."""


class NominatedClusters(msgspec.Struct, frozen=True):
    clusters: tuple[str, ...] = ()
    """Those that are asked; none: none would start it now."""
    reasons: dict[str, str] = {}
    """Why not, by name of a cluster."""


class QueueClusters(Protocol):
    """What a queue whose admission check gives its gangs away asks before it reserves quota for one."""

    def nominate(self, gang: Gang, check: str, annotations: Mapping[str, str] | None) -> NominatedClusters:
        """Where it would start now. `annotations`: its job's. Changes nothing."""

    def keep(self, gang: Gang, clusters: tuple[str, ...]) -> None:
        """Room in these clusters is this gang's from now on."""

    def forget(self, uid: str) -> None:
        """It holds no room anywhere."""

    def subscribe(self, room: Callable[[], None]) -> None:
        """`room` when a cluster may have other room than before."""
