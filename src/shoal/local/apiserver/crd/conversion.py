"""One object, several versions: between what is stored and what a client asked for.

Custom kinds with strategy None only change their apiVersion; with a webhook they are sent there. Kueue's kinds differ
between versions and are converted right here, so that one machine needs no webhook for them. Events are the one
built-in kind served under two groups.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.api import kueue_convert
from shoal.api.meta import Json
from shoal.local.apiserver.kinds.resources import ServedVersion
from shoal.local.apiserver.primitives.status import internal
from shoal.local.apiserver.requests.call import Call
from shoal.local.apiserver.requests.hooks import HookCaller, HookUnreachable

CONVERSION_SECONDS = 30.0

_EVENT_PAIRS = (("involvedObject", "regarding"), ("message", "note"), ("reportingComponent", "reportingController"))
_DEPRECATED = (
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
)


def event_to_core(event: Json) -> Json:
    """From events.k8s.io to the stored shape."""
    return {**_renamed(event, [(new, old) for old, new in (*_EVENT_PAIRS, *_DEPRECATED)]), "apiVersion": "v1"}


def event_from_core(event: Json) -> Json:
    shown = {**_renamed(event, [*_EVENT_PAIRS, *_DEPRECATED]), "apiVersion": "events.k8s.io/v1"}
    for name in ("reportingController", "reportingInstance"):
        if shown.get(name) == "":
            del shown[name]
    return shown


def _renamed(event: Json, pairs: list[tuple[str, str]]) -> Json:
    names: dict[str, Any] = dict(pairs)
    return {names.get(name, name): value for name, value in event.items()}


class Converter:
    """Between the stored version of a resource and the one a call speaks."""

    def __init__(self, caller: HookCaller) -> None:
        self.caller = caller

    async def from_storage(self, call: Call, obj: Json) -> Json:
        return (await self._shown(call, [obj]))[0]

    async def to_storage(self, call: Call, obj: Json) -> Json:
        if call.resource.group == "events.k8s.io":
            return event_to_core(obj)
        stored = call.resource.versions[call.resource.storage_version]
        found = await self._many(call, [obj], stored.kind.api_version)
        return _settled(stored, found)[0]  # what the stored version does not know cannot be kept

    async def encoded(self, call: Call, bodies: list[bytes]) -> list[bytes]:
        """Stored bytes as bytes of the call's version."""
        found = await self._shown(call, [msgspec.json.decode(body) for body in bodies])
        return [msgspec.json.encode(obj) for obj in found]

    async def _shown(self, call: Call, found: list[Json]) -> list[Json]:
        """Stored objects as the schema of the call's version has them today, whatever it was when they were written."""
        return _settled(call.version, await self._many(call, found, call.version.kind.api_version))

    async def _many(self, call: Call, found: list[Json], api_version: str) -> list[Json]:
        if call.resource.group == "events.k8s.io":
            return [event_from_core(obj) for obj in found]
        others = [obj for obj in found if obj.get("apiVersion") != api_version]
        if call.resource.group == kueue_convert.GROUP and call.resource.conversion.get("strategy") != "Webhook":
            return [kueue_convert.convert(obj, api_version) for obj in found]
        if call.resource.conversion.get("strategy") != "Webhook" or not others:
            return [{**obj, "apiVersion": api_version} for obj in found]
        converted = iter(await self._ask(call, others, api_version))
        return [obj if obj.get("apiVersion") == api_version else next(converted) for obj in found]

    async def _ask(self, call: Call, found: list[Json], api_version: str) -> list[Json]:
        """Send objects to the kind's conversion webhook. Names and uids must come back as they went."""
        webhook = call.resource.conversion.get("webhook") or {}
        uid = self.caller.question()
        review = {
            "kind": "ConversionReview",
            "apiVersion": "apiextensions.k8s.io/v1",
            "request": {"uid": uid, "desiredAPIVersion": api_version, "objects": found},
        }
        words = f"conversion webhook for {found[0].get('apiVersion')}, Kind={call.resource.kind} failed"
        try:
            answer = await self.caller.post(webhook.get("clientConfig") or {}, review, CONVERSION_SECONDS)
        except HookUnreachable as error:
            raise internal(f"{words}: {error}") from None
        response = answer.get("response")
        objects = response.get("convertedObjects") if type(response) is dict else None
        if (
            type(response) is not dict
            or response.get("uid") != uid
            or (response.get("result") or {}).get("status") != "Success"
        ):
            why = ((response or {}).get("result") or {}).get("message") if type(response) is dict else ""
            raise internal(f"{words}: {why or 'its answer is no success'}")
        if type(objects) is not list or len(objects) != len(found):
            raise internal(f"{words}: it returned another number of objects than it was given")
        for before, after in zip(found, objects, strict=True):
            if (
                type(after) is not dict
                or after.get("apiVersion") != api_version
                or type(after.get("metadata")) is not dict
            ):
                raise internal(f"{words}: it returned an object of another version")
            kept = {name: value for name, value in before["metadata"].items() if name not in ("labels", "annotations")}
            changed = {
                name: after["metadata"][name] for name in ("labels", "annotations") if after["metadata"].get(name)
            }
            after["metadata"] = {**kept, **changed}
        return objects


def _settled(version: ServedVersion, found: list[Json]) -> list[Json]:
    if version.kind.group != kueue_convert.GROUP and version.schema is not None:
        for obj in found:
            version.schema.prune(obj)
            version.schema.default(obj)
    return found
