"""From `apiVersion` and `kind` to the path where such objects live, for any kind a server offers.

Asked when a manifest names a kind that we do not know by heart. Answers are kept; a kind that was missing is asked
for again, so that a CRD installed later works without a restart.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from shoal.api.kind import Kind
from shoal.kube.client import Client
from shoal.kube.errors import NotFound


class Discovery:
    """The kinds of one API server."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._kinds: dict[tuple[str, str], Kind] = {}
        self._asking: dict[str, asyncio.Task[list[Kind]]] = {}

    async def kind_of(self, api_version: str, kind: str) -> Kind | None:
        """The served kind, or None when the server has no such version or kind."""
        known = self._kinds.get((api_version, kind))
        if known is not None:
            return known
        for found in await self.kinds_in(api_version):
            self._kinds[found.api_version, found.kind] = found
        return self._kinds.get((api_version, kind))

    async def kinds_in(self, api_version: str) -> list[Kind]:
        """All kinds of one group version, freshly asked; askers at the same time share one request."""
        task = self._asking.get(api_version)
        if task is None:
            task = asyncio.create_task(self._ask(api_version))
            self._asking[api_version] = task
            task.add_done_callback(lambda _: self._asking.pop(api_version, None))
        return await asyncio.shield(task)

    async def has_subresource(self, kind: Kind, name: str) -> bool:
        """Does the server offer this subresource of the kind, such as `status`? The server is asked each time."""
        return f"{kind.plural}/{name}" in {str(entry.get("name")) for entry in await self._listed(kind.api_version)}

    def forget(self, kind: Kind) -> None:
        """The server answered NotFound for its path: ask again next time."""
        self._kinds.pop((kind.api_version, kind.kind), None)

    async def _ask(self, api_version: str) -> list[Kind]:
        group, _, version = api_version.rpartition("/")
        return [
            Kind(group, version, str(entry["kind"]), str(entry["name"]), bool(entry.get("namespaced")))
            for entry in await self._listed(api_version)
            if "/" not in str(entry.get("name", "/"))
        ]

    async def _listed(self, api_version: str) -> list[dict[str, Any]]:
        group, _, version = api_version.rpartition("/")
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        try:
            answer = await self._client.request("GET", path)
        except NotFound:
            return []
        return msgspec.json.decode(answer.body, type=dict[str, Any]).get("resources") or []
