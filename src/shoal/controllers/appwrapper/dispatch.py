"""Creates what an AppWrapper wraps, all of it, and takes it back, all of it.

Creation is idempotent: names follow from the AppWrapper, and an object that is already there is ours only if its
controller is this very AppWrapper. Removal checks the UID of each object before and while it deletes. Nobody else's
object is touched.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from shoal.api.appwrapper import AppWrapper, wrapped_items
from shoal.api.codec import opened
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.appwrapper.wrapped import wrapped_objects
from shoal.errors import BadInput
from shoal.kube.client import Client
from shoal.kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    TooManyRequests,
)


class Kinds(Protocol):
    """Finds the served kind of any object."""

    async def kind_of(self, api_version: str, kind: str) -> Kind | None: ...


class Refused(msgspec.Struct, frozen=True):
    """An item that cannot be created. `permanent` means that trying again would change nothing."""

    name: str
    message: str
    permanent: bool


async def create_all(client: Client, kinds: Kinds, wrapper: AppWrapper) -> list[Refused]:
    """Create every wrapped object, all at once; returns what was refused (empty: the gang exists whole)."""
    try:
        objects = wrapped_objects(wrapper)
    except BadInput as error:
        return [Refused(wrapper.metadata.name, str(error), permanent=True)]
    outcomes = await asyncio.gather(*(_create(client, kinds, wrapper, obj) for obj in objects))
    return [outcome for outcome in outcomes if outcome is not None]


async def remove_all(client: Client, kinds: Kinds, wrapper: AppWrapper) -> bool:
    """Delete every wrapped object that is ours; True once none of them is left."""
    gone = await asyncio.gather(
        *(_remove(client, kinds, wrapper, opened(item.generic_template)) for item in wrapped_items(wrapper))
    )
    return all(gone)


async def _create(client: Client, kinds: Kinds, wrapper: AppWrapper, obj: Json) -> Refused | None:
    name = f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
    try:
        kind = await kinds.kind_of(obj["apiVersion"], obj["kind"])
        if kind is None:
            return Refused(name, f"the cluster serves no {obj['kind']} in {obj['apiVersion']}; install its CRD", True)
        if not kind.namespaced:
            return Refused(name, f"{obj['kind']} is cluster-scoped; an AppWrapper wraps objects of its namespace", True)
        try:
            await client.create(kind, obj, obj["metadata"]["namespace"])
        except AlreadyExists:
            return await _adopt(client, kind, wrapper, obj, name)
    except KubeError as error:
        return Refused(name, str(error), permanent=_is_permanent(error))
    return None


async def _adopt(client: Client, kind: Kind, wrapper: AppWrapper, obj: Json, name: str) -> Refused | None:
    """An object of that name is there: fine if we made it, a failure if it is someone else's."""
    there = await client.get(kind, obj["metadata"]["name"], obj["metadata"]["namespace"])
    if not is_ours(there, wrapper):
        return Refused(name, f"{obj['kind']} {name} exists and belongs to someone else; rename one of them", True)
    if there["metadata"].get("deletionTimestamp"):
        return Refused(name, f"{obj['kind']} {name} of an earlier start is still being deleted", permanent=False)
    return None


async def _remove(client: Client, kinds: Kinds, wrapper: AppWrapper, template: Json) -> bool:
    name = str((template.get("metadata") or {}).get("name") or "")
    kind = await kinds.kind_of(str(template.get("apiVersion") or ""), str(template.get("kind") or ""))
    if kind is None or not name:
        return True
    try:
        there = await client.get(kind, name, wrapper.metadata.namespace)
        if not is_ours(there, wrapper):
            return True
        if not there["metadata"].get("deletionTimestamp"):
            await client.delete(
                kind, name, wrapper.metadata.namespace, uid=there["metadata"]["uid"], propagation="Background"
            )
    except (NotFound, Conflict):
        return True  # gone, or replaced by an object that is not ours
    return False


def is_ours(obj: Json, wrapper: AppWrapper) -> bool:
    """True when this AppWrapper, by UID, controls the object."""
    return any(
        reference.get("controller") and reference.get("uid") == wrapper.metadata.uid
        for reference in obj["metadata"].get("ownerReferences") or ()
    )


def _is_permanent(error: KubeError) -> bool:
    """What the object itself is refused for. A quota (403 that says so), a timeout or an overload may pass."""
    if isinstance(error, Forbidden):
        return "exceeded quota" not in error.message
    return isinstance(error, (Invalid, BadRequest, NotFound)) or (
        isinstance(error, ApiError) and error.code in (405, 413, 415) and not isinstance(error, TooManyRequests)
    )
