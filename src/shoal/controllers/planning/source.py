"""How a controller joins the planning loop: one ledger of room, one plan for all workloads.

A source watches workloads of its own, tells the loop what is stored of them as gangs, says which pods are theirs, and
carries out its part of every plan. AppWrappers, queues and Ray gangs are sources; another kind would be one more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.controllers.planning.observations import Observation
from shoal.controllers.planning.questions.subject import QuestionSubject
from shoal.engine.model import Gang, Plan
from shoal.kube.cache import Cache


class NodeRequester(msgspec.Struct, frozen=True, kw_only=True):
    """A gang for which nodes may be requested."""

    gang: str
    """Its key in the engine."""
    generation: int
    """Of its spec: a request that was made for another one is replaced."""
    owner: Json
    """Owner reference of what is created for it."""
    about: Any
    """The object that events are about."""
    update: Callable[[], None]
    """Update the engine with what is stored of it."""


class WorkloadSource(Protocol):
    """What the planning loop asks of a source. Nothing here may wait, except `run` and `synced`."""

    async def run(self) -> None:
        """Watch, and carry out what was planned, until cancelled."""

    async def synced(self) -> None:
        """Until all was read that a decision depends on."""

    def subscribe(self) -> None:
        """Update the loop with what there is, from now on. Called before nodes and pods are told."""

    def gang_of(self, namespace: str, mark: str, owners: Sequence[str]) -> str:
        """UID of the gang that a pod with these owners (UIDs, nearest first) belongs to, or an empty text. `mark` is
        the UID that the pod's annotation claims, where its chain of owners goes on above what is watched: true only
        where such a gang is in the pod's own namespace."""

    def known_as(self, key: str) -> str:
        """What people call the gang with this key; the key itself for one that is not the source's."""

    def pods_changed(self, gang: str, after: float) -> None:
        """Pods of the gang with this UID, or what made them, changed; `after` so many seconds it is early enough to
        look. Gangs of other sources are ignored."""

    def observed(self, observation: Observation) -> None:
        """A reconciler has learnt this of a gang; decisions have followed. Gangs of other sources are ignored."""

    def planned(self, plan: Plan, touched: Sequence[str]) -> None:
        """A plan was made; it says something about the gangs with these keys, of this source and of others."""

    def keeps(self, request: Json) -> bool:
        """Does the engine itself keep the room that this request booked, because its gang is about to take it?"""

    def requester(self, uid: str) -> NodeRequester | None:
        """The source's gang with this UID, as one for which nodes may be requested."""

    def consumers(self, group: str, kind: str, key: Key) -> Mapping[str, Sequence[str]] | None:
        """By node of this quota: keys of the gangs that are charged there, largest first. None for what is no quota of
        this source."""

    def subject(self, group: str, kind: str, key: Key) -> QuestionSubject | None:
        """What is known of an object that was asked about; None when it is not the source's."""

    def draft(self, manifest: Json, now: int) -> Gang | None:
        """The gang that this object would be, were it stored as it is; None when that would not be the source's. Raises
        BadInput where it could not be read."""

    def collect(self) -> Iterable[Any]:
        """Its metrics, as prometheus_client takes them."""

    def watched(self) -> list[Cache[Any]]:
        """What its decisions depend on, beside the shared caches."""
