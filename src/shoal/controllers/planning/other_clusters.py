"""Other clusters, as a source of workloads sees them: where a gang could go, and what became of what was sent there.

The hub of several clusters offers this to the AppWrapper controller, which decides, stores and then asks for it, and to
the queue controller, which stores with a reservation where the gang goes. They are put together at the entry point and
know nothing else of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from shoal.api.appwrapper import AppWrapper, ClusterScheduling
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.planning.pods import GangPod
from shoal.engine.model import Amounts, Gang

ObjectName = tuple[str, str, str]
"""apiVersion, kind and name of a wrapped object."""


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
    where: Literal["there", "gated", "stopped", "gone", "unknown"]
    """`gated`: there, and not released yet. `stopped`: there, and stopped because this cluster was not heard."""
    found: AppWrapper | None = None
    why: str = ""
    """Of an unknown one: why its cluster cannot say."""
    objects: tuple[Json | None, ...] = ()
    """Of a bare one, of which the wrapped objects themselves were sent: these, by the order of their names."""
    pods: tuple[GangPod, ...] = ()
    """Of a bare one."""


class StoredRound(msgspec.Struct, frozen=True):
    """What is stored of an AppWrapper's rounds. `unsure`: not everything was read yet."""

    state: Literal["waits", "given", "unsure"]
    epoch: int = 0
    """Of its last round."""
    cluster: str = ""


class OtherClusters(Protocol):
    """A round is one admission of a gang, by its number; what was sent in another round is never taken for it."""

    def choose(
        self,
        gang: Gang,
        wanted: ClusterScheduling | None,
        annotations: Mapping[str, str] | None = None,
        unstoppable: str = "",
        among: frozenset[str] | None = None,
    ) -> MemberChoice:
        """Where it would start now. `annotations`: the AppWrapper's. `unstoppable`: why what it wraps cannot be created
        stopped; then only a cluster that runs AppWrappers takes it. `among`: only these are asked. Changes nothing."""

    def is_special(self, uid: str) -> bool:
        """May what is said of this gang not hold for another like it?"""

    def room(self, cluster: str) -> Amounts | None:
        """Sums that no AppWrapper that starts there exceeds; None: they are not known."""

    def is_bare(self, cluster: str) -> bool:
        """Does it run no AppWrappers, so that it gets the wrapped objects themselves?"""

    def keep(self, gang: Gang, cluster: str, epoch: int, moving_to: str = "") -> None:
        """Room in this cluster is this gang's from now on, and in the one that it moves to. Round 0: it is not stored
        yet."""

    def fence(self, wrapper: AppWrapper) -> int:
        """Seconds after the last word of this cluster after which nothing of it runs in the other; 0: it runs on."""

    def until_lost(self, wrapper: AppWrapper, cluster: str, fence: int) -> float | None:
        """Seconds until this AppWrapper may start elsewhere although its cluster does not answer; zero or less: now.
        None: it answers, or that is waited for. `fence`: what was stored with its admission."""

    def silent_since(self, cluster: str) -> str:
        """Since when it does not answer; empty while it does."""

    def moves_away(self, cluster: str) -> bool:
        """Do its gangs go to other clusters, one after the other?"""

    def may_move(self, uid: str, cluster: str) -> bool:
        """Is it this gang's turn to leave this cluster?"""

    def forget(self, uid: str) -> None:
        """It holds no room anywhere."""

    def refuse(self, uid: str, cluster: str, why: str) -> None:
        """This cluster is not chosen again for this gang for a while."""

    async def send(
        self,
        kind: Kind,
        wrapper: AppWrapper,
        cluster: str,
        epoch: int,
        objects: Sequence[Json] = (),
        fence: int = 0,
    ) -> Sent:
        """Make the copy, gated; again is harmless. `objects`: of a bare one, what it wraps, to be made instead. With a
        `fence` it stops there once this cluster is not heard."""

    async def release(
        self, kind: Kind, wrapper: AppWrapper, cluster: str, epoch: int, names: Sequence[ObjectName] = ()
    ) -> bool:
        """Let the copy be started, as it was sent; again is harmless. False: it cannot be known yet whether it is."""

    async def look(
        self, kind: Kind, wrapper: AppWrapper, cluster: str, epoch: int, names: Sequence[ObjectName] = ()
    ) -> SentCopy:
        """The copy as it is there. `names`: of a bare one."""

    def is_leaving(self, cluster: str) -> bool:
        """Is this cluster being taken away?"""

    async def remove(
        self,
        kind: Kind,
        wrapper: AppWrapper,
        cluster: str,
        epoch: int,
        names: Sequence[ObjectName] = (),
        lost: bool = False,
        fence: int = 0,
    ) -> bool:
        """True once nothing of it is there, or its removal is stored for when the cluster answers. `lost`: it was
        called off because the cluster is lost."""

    @property
    def admit_seconds(self) -> float:
        """How long a cluster may let a gang wait before it goes to another."""

    def subscribe(
        self,
        room: Callable[[str], None],
        changed: Callable[[str], None],
        stored: Callable[[str], StoredRound | None],
    ) -> None:
        """`room` with the name of a cluster that may have other room than before, an empty one for any, `changed` with
        the UID whose copy changed. `stored` tells of an AppWrapper by UID; None: there is none."""

    def everything_is_read(self) -> None:
        """From now on `stored` is sure: copies that were seen before are looked at again."""


class NominatedClusters(msgspec.Struct, frozen=True):
    clusters: tuple[str, ...] = ()
    """Those that are asked; none: none would start it now."""
    reasons: dict[str, str] = {}
    """Why not, by name of a cluster."""


class QueueClusters(Protocol):
    """What a queue whose admission check gives its gangs away asks before it reserves quota for one."""

    def nominate(
        self,
        gang: Gang,
        check: str,
        annotations: Mapping[str, str] | None,
        among: frozenset[str] | None = None,
    ) -> NominatedClusters:
        """Where it would start now. `annotations`: its job's. `among`: only these are asked. Changes nothing."""

    def is_special(self, uid: str) -> bool:
        """May what is said of this gang not hold for another like it?"""

    def room(self, cluster: str) -> Amounts | None:
        """Sums that no gang that starts there exceeds; None: they are not known."""

    def keep(self, gang: Gang, clusters: tuple[str, ...]) -> None:
        """Room in these clusters is this gang's from now on."""

    def forget(self, uid: str) -> None:
        """It holds no room anywhere."""

    def subscribe(self, room: Callable[[str], None]) -> None:
        """`room` with the name of a cluster that may have other room than before; an empty one: any."""
