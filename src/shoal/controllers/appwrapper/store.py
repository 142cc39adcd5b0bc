"""Writes of AppWrappers: the status on the very revision that was read, and never a guess about what happened.

A write whose fate is unknown is looked up before it is repeated; where the server did not answer, the AppWrapper is
remembered as unsure and read from the server before anything else is decided about it.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from shoal.api.appwrapper import AppWrapper, AppWrapperStatus
from shoal.api.codec import merge_patch, plain
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.controllers.appwrapper.caches import WrapperCaches
from shoal.kube.client import Client
from shoal.kube.discovery import Discovery
from shoal.kube.errors import Conflict, LeaseLost, NotFound, ServerError, Unknown
from shoal.kube.revisions import newer
from shoal.kube.writes import Writer, would_change


class Store:
    def __init__(self, client: Client, caches: WrapperCaches, writer: Writer) -> None:
        self._client = client
        self._caches = caches
        self._writer = writer
        self._kinds = Discovery(client)
        self._asking = asyncio.Lock()
        self._unsure: set[str] = set()
        self._has_status: dict[Kind, bool] = {}
        """False for kinds whose definition has no status subresource, as in old releases of the legacy group."""

    async def has_status(self, kind: Kind) -> bool:
        """Are statuses written apart? Where not, every write of one makes a new generation of the object."""
        if kind not in self._has_status:
            async with self._asking:  # many ask at once when a controller begins
                if kind not in self._has_status:
                    self._has_status[kind] = await self._kinds.has_subresource(kind, "status")
        return self._has_status[kind]

    async def settled(self, kind: Kind, key: Key) -> AppWrapper | None:
        """The AppWrapper as it is stored: from the cache, or from the server where an earlier write left doubt."""
        wrapper = self._caches.wrapper(kind, key)
        if wrapper is None or wrapper.metadata.uid not in self._unsure:
            return wrapper
        fresh = await self.refreshed(kind, wrapper)
        self._unsure.discard(wrapper.metadata.uid)
        return fresh

    async def refreshed(self, kind: Kind, wrapper: AppWrapper) -> AppWrapper | None:
        """Read from the server, not from the cache; None when this very object is gone."""
        cache = self._caches.wrappers[kind]
        try:
            found: AppWrapper = await self._client.get(
                kind, wrapper.metadata.name, wrapper.metadata.namespace, type=AppWrapper
            )
        except NotFound:
            cache.note_delete(wrapper)
            return None
        cache.note_write(found)
        return found if found.metadata.uid == wrapper.metadata.uid else None

    async def status(self, kind: Kind, wrapper: AppWrapper, status: AppWrapperStatus) -> AppWrapper:
        """Store the status if it differs. Raises Conflict when the object changed since it was read."""
        change = merge_patch(wrapper.status, status)
        return await self._patch(kind, wrapper, {"status": change}, "status") if change else wrapper

    async def labels(self, kind: Kind, wrapper: AppWrapper, labels: dict[str, str]) -> AppWrapper:
        return await self._patch(kind, wrapper, {"metadata": {"labels": labels}}, None)

    async def finalizers(self, kind: Kind, wrapper: AppWrapper, finalizers: list[str]) -> AppWrapper:
        return await self._patch(kind, wrapper, {"metadata": {"finalizers": finalizers or None}}, None)

    async def _patch(
        self, kind: Kind, wrapper: AppWrapper, change: Json, subresource: Literal["status"] | None
    ) -> AppWrapper:
        metadata = wrapper.metadata
        guarded = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
        body = {**change, "metadata": {**change.get("metadata", {}), **guarded}}

        async def write(server: Client) -> AppWrapper:
            endpoint = subresource if subresource is None or await self.has_status(kind) else None
            try:
                return await _sent(server, kind, wrapper, body, endpoint)
            except NotFound:  # of the object, or of the endpoint: only the server's own list of resources tells
                self._has_status.pop(kind, None)
                if endpoint is None or await self.has_status(kind):
                    raise
            return await _sent(server, kind, wrapper, body, None)

        async def look() -> AppWrapper | None:
            found: AppWrapper = await self._client.get(kind, metadata.name, metadata.namespace, type=AppWrapper)
            if found.metadata.uid != metadata.uid:
                raise Conflict(409, "Conflict", f"AppWrapper {metadata.name} was deleted and made again")
            if not newer(found.metadata.resource_version, metadata.resource_version):
                return None
            if would_change(plain(found), change):
                raise Conflict(409, "Conflict", f"AppWrapper {metadata.name} was changed by another client meanwhile")
            return found

        try:
            stored = await self._writer.send(write, look)
        except LeaseLost:
            raise
        except (Unknown, ServerError):
            self._unsure.add(metadata.uid)
            raise
        self._caches.wrappers[kind].note_write(stored)
        # Answers of a list's items carry no kind; what is cached does.
        return self._caches.wrapper(kind, Key(metadata.namespace, metadata.name)) or stored


async def _sent(
    server: Client, kind: Kind, wrapper: AppWrapper, body: Json, subresource: Literal["status"] | None
) -> AppWrapper:
    stored: AppWrapper = await server.patch(
        kind, wrapper.metadata.name, wrapper.metadata.namespace, body, subresource=subresource, type=AppWrapper
    )
    return stored
