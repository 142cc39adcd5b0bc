"""One object, several versions: between what is stored and what a client asked for.

Custom kinds with strategy None only change their apiVersion; with a webhook they are sent there (webhooks.py). Events are
the one built-in kind served under two groups.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.api.meta import Json
from shoal.local.apiserver.call import Call

_EVENT_PAIRS = (("involvedObject", "regarding"), ("message", "note"), ("reportingComponent", "reportingController"))
_DEPRECATED = (("source", "deprecatedSource"), ("firstTimestamp", "deprecatedFirstTimestamp"),
               ("lastTimestamp", "deprecatedLastTimestamp"), ("count", "deprecatedCount"))


def event_to_core(event: Json) -> Json:
    """From events.k8s.io to the stored shape."""
    return {**_renamed(event, [(new, old) for old, new in (*_EVENT_PAIRS, *_DEPRECATED)]), "apiVersion": "v1"}


def event_from_core(event: Json) -> Json:
    return {**_renamed(event, [*_EVENT_PAIRS, *_DEPRECATED]), "apiVersion": "events.k8s.io/v1"}


def _renamed(event: Json, pairs: list[tuple[str, str]]) -> Json:
    names: dict[str, Any] = dict(pairs)
    return {names.get(name, name): value for name, value in event.items()}


class Converter:
    """Between the stored version of a resource and the one a call speaks."""

    async def from_storage(self, call: Call, obj: Json) -> Json:
        return (await self.many(call, [obj], call.version.kind.api_version))[0]

    async def to_storage(self, call: Call, obj: Json) -> Json:
        if call.resource.group == "events.k8s.io":
            return event_to_core(obj)
        return (await self.many(call, [obj], call.resource.versions[call.resource.storage_version].kind.api_version))[0]

    async def many(self, call: Call, found: list[Json], api_version: str) -> list[Json]:
        if call.resource.group == "events.k8s.io":
            return [event_from_core(obj) for obj in found]
        return [{**obj, "apiVersion": api_version} for obj in found]

    async def encoded(self, call: Call, bodies: list[bytes]) -> list[bytes]:
        """Stored bytes as bytes of the call's version."""
        found = await self.many(call, [msgspec.json.decode(body) for body in bodies], call.version.kind.api_version)
        return [msgspec.json.encode(obj) for obj in found]
