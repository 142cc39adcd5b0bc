"""Creates what an AppWrapper wraps, all of it, and takes it back, all of it.

Creation is idempotent: names follow from the AppWrapper, and an object that is already there is ours only if its
controller is this very AppWrapper. Removal checks the UID of each object before and while it deletes. An object
of another owner is never touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import msgspec

from shoal.api.appwrapper import AppWrapper
from shoal.api.kind import Kind
from shoal.api.kinds import POD
from shoal.api.meta import Json, Object
from shoal.controllers.appwrapper.status.admission import Name, read
from shoal.controllers.appwrapper.wrapped import templates_of, wrapped_names
from shoal.controllers.planning.creators import Creator, creator_of
from shoal.controllers.planning.rights import Rights, not_allowed, refused_kind
from shoal.controllers.planning.words import printable
from shoal.kube.discovery import Discovery
from shoal.kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Forbidden,
    Invalid,
    KubeError,
    LeaseLost,
    NotFound,
)
from shoal.kube.writes import Writer, Writes

OWNER = "appwrapper-objects"
MAY_PASS = ("exceeded quota", "is being terminated", "not yet ready to handle request", "unable to create new content")
"""Refusals by 403 that time may lift."""


class RefusedObject(msgspec.Struct, frozen=True):
    """An item that cannot be created. `permanent` means that trying again would change nothing."""

    name: str
    message: str
    permanent: bool


class Objects:
    """The wrapped objects of AppWrappers on the API server."""

    def __init__(
        self,
        writes: Writes,
        *,
        as_creator: bool = False,
        creator: Callable[[AppWrapper], Creator | None] = creator_of,
    ) -> None:
        """`creator` says who answers for an AppWrapper; where it knows none, a stamp still limits what is created."""
        self._believed = creator
        self._client = client = writes.client
        self._writes = writes
        self._writer = writes.writer(OWNER)
        self._as_creator = as_creator
        self.kinds = Discovery(client)
        self.rights = Rights(client)

    # --- before anything is stored

    async def forbidden(self, wrapper: AppWrapper) -> RefusedObject | None:
        """What the creator may not have created through us, asked again at each call; None when all is allowed."""
        creator = self._creator(wrapper)
        wanted: list[Kind] = []
        for obj in templates_of(wrapper):
            name = _full_name(wrapper, obj)
            group, kind_name = str(obj.get("apiVersion") or "").rpartition("/")[0], str(obj.get("kind") or "")
            refusal = "" if self._as_creator and creator is not None else refused_kind(group, kind_name)
            if "/" in group:
                refusal = f"apiVersion {printable(str(obj.get('apiVersion')))!r} is not a group and a version"
            if refusal:
                return RefusedObject(name, refusal, permanent=True)
            kind = await self.kinds.kind_of(str(obj.get("apiVersion") or ""), kind_name)
            if kind is not None and creator is not None:
                wanted.append(kind)
        if creator is None:
            return None  # an unstamped one comes this far only where the administrator trusts it
        missing = await self.rights.missing(creator, wanted, wrapper.metadata.namespace)
        if missing is None:
            return None
        message = not_allowed(creator, missing, wrapper.metadata.namespace)
        return RefusedObject(f"{wrapper.metadata.namespace}/{wrapper.metadata.name}", message, permanent=True)

    def _creator(self, wrapper: AppWrapper) -> Creator | None:
        return self._believed(wrapper) or creator_of(wrapper)

    # --- creating

    async def create(self, wrapper: AppWrapper, objects: Sequence[Json]) -> list[RefusedObject]:
        """Create every object, all at once; returns what was refused (empty: the gang exists whole)."""
        writer = self._writer_for(self._creator(wrapper))
        outcomes = await asyncio.gather(*(self._create(writer, wrapper, obj) for obj in objects))
        return [outcome for outcome in outcomes if outcome is not None]

    def _writer_for(self, creator: Creator | None) -> Writer:
        if not self._as_creator or creator is None:
            return self._writer
        acting = self._client.impersonating(creator.user, creator.groups, creator.uid)
        return self._writes.writer(OWNER, acting)

    async def _create(self, writer: Writer, wrapper: AppWrapper, obj: Json) -> RefusedObject | None:
        name = _full_name(wrapper, obj)
        try:
            kind = await self.kinds.kind_of(obj["apiVersion"], obj["kind"])
            if kind is None:
                return RefusedObject(name, not_served(obj["apiVersion"], obj["kind"]), permanent=True)
            if not kind.namespaced:
                return RefusedObject(name, too_wide(kind), permanent=True)
            try:
                await writer.create(kind, obj)
            except AlreadyExists:
                return await self._ours_already(kind, wrapper, obj, name)
        except LeaseLost:
            raise
        except KubeError as error:
            return RefusedObject(name, _told(obj, error), permanent=_is_permanent(error))
        return None

    async def _ours_already(self, kind: Kind, wrapper: AppWrapper, obj: Json, name: str) -> RefusedObject | None:
        """An object of that name is there: fine if we made it, a failure if it has another owner."""
        there: Object = await self._client.get(kind, obj["metadata"]["name"], wrapper.metadata.namespace, type=Object)
        if not is_ours(there, wrapper):
            return RefusedObject(
                name, f"{obj['kind']} {name} exists and belongs to another owner; rename one of them", True
            )
        if there.metadata.deletion_timestamp:
            return RefusedObject(
                name, f"{obj['kind']} {name} of an earlier start is still being deleted", permanent=False
            )
        return None

    async def find(self, wrapper: AppWrapper, kind: Kind, name: str) -> Json | None:
        """The live object of that name, if it is ours."""
        try:
            there = await self._client.get(kind, name, wrapper.metadata.namespace)
        except NotFound:
            return None
        references = there["metadata"].get("ownerReferences") or ()
        ours = any(one.get("controller") and one.get("uid") == wrapper.metadata.uid for one in references)
        return there if ours else None

    # --- taking back

    async def remove(self, wrapper: AppWrapper) -> bool:
        """Delete every wrapped object that is ours, as admitted and as now written; True once none is left."""
        gone = await asyncio.gather(*(self._remove(wrapper, name) for name in names_of(wrapper)))
        return all(gone)

    async def all_leaving(self, wrapper: AppWrapper) -> bool:
        """Is every wrapped object that is ours gone, or told to go?"""
        found = await asyncio.gather(*(self._ours(wrapper, name) for name in names_of(wrapper)))
        return all(there is None or there.metadata.deletion_timestamp for there in found)

    async def remove_these(self, wrapper: AppWrapper, found: Iterable[tuple[Kind, Object]]) -> None:
        """Delete these objects, which the cache says are ours."""
        for kind, obj in found:
            if is_ours(obj, wrapper) and not obj.metadata.deletion_timestamp:
                await self._delete(kind, obj)

    async def end_by_force(self, namespace: str, name: str, uid: str) -> None:
        """A pod that does not end: no more grace."""
        body = {"metadata": {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": ""}}
        await self._writer.delete(POD, body, propagation="Background", grace_seconds=0)

    async def _remove(self, wrapper: AppWrapper, name: Name) -> bool:
        kind = await self.kinds.kind_of(name[0], name[1])
        there = await self._ours(wrapper, name)
        if kind is None or there is None:
            return True
        if there.metadata.deletion_timestamp:
            return False
        return await self._delete(kind, there)

    async def _ours(self, wrapper: AppWrapper, name: Name) -> Object | None:
        """The wrapped object of that name, if it is there and ours."""
        kind = await self.kinds.kind_of(name[0], name[1])
        if kind is None or not kind.namespaced or not name[2]:
            return None
        try:
            there: Object = await self._client.get(kind, name[2], wrapper.metadata.namespace, type=Object)
        except NotFound:
            return None
        return there if is_ours(there, wrapper) else None

    async def _delete(self, kind: Kind, obj: Object) -> bool:
        """True when it is gone with that, or was before. What may have made others is looked at again first."""
        metadata = obj.metadata
        body = {
            "metadata": {
                "name": metadata.name,
                "namespace": metadata.namespace,
                "uid": metadata.uid,
                "resourceVersion": metadata.resource_version,
            }
        }
        answer = await self._writer.end(kind, body, propagation="Background")
        return answer is None or (kind == POD and _is_final(answer))


def _is_final(answer: Json) -> bool:
    """Did this answer to a delete end the pod? It is told as it was, with no grace left and no finalizer."""
    metadata = answer.get("metadata") or {}
    return metadata.get("deletionGracePeriodSeconds") == 0 and not metadata.get("finalizers")


def names_of(wrapper: AppWrapper) -> list[Name]:
    """Every object that this AppWrapper may have made: recorded at its admission, or in its spec."""
    written = wrapped_names(wrapper)
    return list(dict.fromkeys((*read(wrapper.status.admission).objects, *written)))


def not_served(api_version: str, kind: str) -> str:
    """Why there can be no object of this kind."""
    if kind.endswith("List"):
        return f"a {kind} is no object by itself; wrap each of its items"
    return f"the cluster serves no {kind} in {api_version}; install its CRD"


def too_wide(kind: Kind) -> str:
    return f"{kind.kind} is cluster-scoped; an AppWrapper wraps objects of its namespace"


def is_ours(obj: Object, wrapper: AppWrapper) -> bool:
    """True when this AppWrapper, by UID, controls the object."""
    return any(one.controller and one.uid == wrapper.metadata.uid for one in obj.metadata.owner_references or ())


def _full_name(wrapper: AppWrapper, obj: Json) -> str:
    return f"{wrapper.metadata.namespace}/{(obj.get('metadata') or {}).get('name') or ''}"


def _told(obj: Json, error: KubeError) -> str:
    """The server's words; of a Secret only the reason, because refusals quote the values they refuse."""
    if obj.get("kind") == "Secret":
        reason = error.reason if isinstance(error, ApiError) else type(error).__name__
        return f"the Secret was refused ({reason or 'no reason given'}); create it by hand to see why"
    return printable(str(error))


def _is_permanent(error: KubeError) -> bool:
    """What the object itself is refused for. A quota (403 that says so), a timeout or an overload may pass."""
    if isinstance(error, Forbidden):
        return not any(words in error.message for words in MAY_PASS)
    if isinstance(error, (Invalid, BadRequest, NotFound)):
        return True
    return isinstance(error, ApiError) and error.code in (405, 413, 415)
