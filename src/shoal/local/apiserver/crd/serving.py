"""Custom kinds: a CRD becomes a served resource the moment it is stored, and its objects go before it does.

A CRD's status is settled in the write that changes it: the names are checked, `Established` is set, and the registry
follows from the stored object, so a client may use the kind as soon as its create has returned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.kube.clock import Clock
from shoal.local.apiserver.kinds.resources import PrinterColumn, Registry, Resource, ServedVersion, version_rank
from shoal.local.apiserver.requests.call import decoded
from shoal.local.apiserver.storage.collection import StoredEvent
from shoal.local.apiserver.storage.store import Storage

log = logging.getLogger(__name__)

CLEANUP = "customresourcecleanup.apiextensions.k8s.io"

Empty = Callable[[Resource], Awaitable[None]]


class CustomKinds:
    """Keeps the registry in step with the stored CRDs. `empty` deletes every object of a resource."""

    def __init__(self, storage: Storage, registry: Registry, clock: Clock) -> None:
        self.storage = storage
        self.registry = registry
        self.clock = clock
        self.empty: Empty | None = None
        self.finish: Callable[[str], Awaitable[None]] | None = None
        self._cleaning: dict[str, asyncio.Task[None]] = {}
        definitions = registry.find("apiextensions.k8s.io", "customresourcedefinitions")
        assert definitions is not None
        self.definitions = definitions

    def load(self) -> None:
        """Serve what is stored, and follow changes from now on."""
        for record in self.definitions.collection.records():
            try:
                self._serve(decoded(record), record.revision)
            except (KeyError, TypeError, AttributeError, msgspec.MsgspecError):
                log.exception("the stored definition %s cannot be served; correct or delete it", record.name)
        self.definitions.collection.listeners.append(self._changed)

    def _changed(self, event: StoredEvent) -> None:
        crd = decoded(event.record)
        if event.type == "DELETED":
            spec = crd["spec"]
            if self._built_in(spec) is None:
                self.registry.drop(spec["group"], spec["names"]["plural"])
        else:
            self._serve(crd, event.record.revision)

    def _built_in(self, spec: Json) -> Resource | None:
        """The kind of the server's own that a definition would replace: its objects are not the definition's."""
        found = self.registry.find(str(spec.get("group")), str(spec["names"].get("plural")))
        return found if found is not None and not found.custom else None

    def _serve(self, crd: Json, revision: int) -> None:
        if self._built_in(crd["spec"]) is not None:
            self._let_go(crd, None)
            return
        resource = as_resource(crd, self.storage)
        before = self.registry.find(resource.group, resource.plural)
        known = before is not None and before.stored_schema == resource.stored_schema
        resource.since = before.since if before is not None and known else revision
        if any(record.revision < resource.since for record in resource.collection.records()):
            resource.mixed = True
        self.registry.add(resource)
        self._let_go(crd, resource)

    def _let_go(self, crd: Json, resource: Resource | None) -> None:
        name = crd["metadata"]["name"]
        if crd["metadata"].get("deletionTimestamp") and name not in self._cleaning and self.empty is not None:
            task = asyncio.ensure_future(self._clean(resource, name))
            self._cleaning[name] = task
            task.add_done_callback(lambda _: self._cleaning.pop(name, None))

    async def _clean(self, resource: Resource | None, name: str) -> None:
        """Delete all objects of a kind that is going, wait for their finalizers, then let the CRD go.

        One that was never served (`resource` None) has no objects.
        """
        assert self.empty is not None and self.finish is not None
        while resource is not None and len(resource.collection):
            waiting = resource.collection.changed()
            await self.empty(resource)
            if len(resource.collection):
                await waiting
        await self.finish(name)

    async def settled(self) -> None:
        """Until definitions that were going are gone, as far as their objects let them."""
        await asyncio.gather(*self._cleaning.values(), return_exceptions=True)

    async def stop(self) -> None:
        for task in list(self._cleaning.values()):
            task.cancel()
        await asyncio.gather(*self._cleaning.values(), return_exceptions=True)

    def settle(self, crd: Json, old: Json | None) -> None:
        """The status that this specification deserves, written together with it."""
        spec = crd.get("spec")
        if type(spec) is not dict or type(spec.get("names")) is not dict:
            return
        names = spec["names"]
        kind = str(names.get("kind", ""))
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", kind + "List")
        spec.setdefault("conversion", {"strategy": "None"})
        if old is None:
            finalizers = crd["metadata"].setdefault("finalizers", [])
            if CLEANUP not in finalizers:
                finalizers.append(CLEANUP)
        before = (old or {}).get("status") or {}
        moment = seconds_text(self.clock.now())
        taken = self._taken(spec)
        stored = list(before.get("storedVersions") or ())
        for version in spec.get("versions") or ():
            if type(version) is dict and version.get("storage") and version.get("name") not in stored:
                stored.append(version.get("name"))
        accepted = [
            condition(
                "NamesAccepted",
                not taken,
                "NoConflicts" if not taken else "NamesConflict",
                taken or "no conflicts found",
            ),
            condition(
                "Established",
                not taken,
                "InitialNamesAccepted" if not taken else "NotAccepted",
                "the initial names have been accepted" if not taken else "not all names are accepted",
            ),
        ]
        if crd["metadata"].get("deletionTimestamp"):
            accepted.append(
                condition("Terminating", True, "InstanceDeletionInProgress", "CustomResource deletion is in progress")
            )
        kept = {one.get("type"): one for one in before.get("conditions") or ()}
        for one in accepted:
            known = kept.get(one["type"])
            same = known is not None and known.get("status") == one["status"]
            one["lastTransitionTime"] = known["lastTransitionTime"] if same and known else moment
        crd["status"] = {
            "acceptedNames": dict(names) if not taken else before.get("acceptedNames", {"kind": "", "plural": ""}),
            "conditions": accepted,
            "storedVersions": stored,
        }

    def _taken(self, spec: Json) -> str:
        """Why the names cannot be used, or nothing."""
        names = spec["names"]
        group, plural = spec.get("group"), names.get("plural")
        if self._built_in(spec) is not None:
            return f'"{plural}" is already in use'
        for other in self.registry.all():
            if other.group != group or other.plural == plural:
                continue
            for word, theirs in (("singular", other.singular), ("kind", other.kind), ("listKind", other.list_kind)):
                if names.get(word) == theirs:
                    return f'"{theirs}" is already in use'
            for short in names.get("shortNames") or ():
                if short in other.short_names or short in (other.plural, other.singular):
                    return f'"{short}" is already in use'
        return ""


def condition(kind: str, holds: bool, reason: str, message: str) -> Json:
    return {"type": kind, "status": "True" if holds else "False", "reason": reason, "message": message}


def as_resource(crd: Json, storage: Storage) -> Resource:
    """The resource that a stored CRD describes."""
    spec = crd["spec"]
    names = spec["names"]
    group, plural = spec["group"], names["plural"]
    namespaced = spec.get("scope") == "Namespaced"
    established = any(
        one.get("type") == "Established" and one.get("status") == "True"
        for one in (crd.get("status") or {}).get("conditions") or ()
    )
    versions, stored = {}, ""
    for version in spec["versions"]:
        kind = Kind(group, version["name"], names["kind"], plural, namespaced)
        subresources = version.get("subresources") or {}
        columns = tuple(
            PrinterColumn(
                one["name"],
                one["type"],
                one["jsonPath"],
                one.get("description") or f"Custom resource definition column (in JSONPath format): {one['jsonPath']}",
                one.get("format", ""),
                one.get("priority", 0),
            )
            for one in version.get("additionalPrinterColumns") or ()
        )
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        warning = ""
        if version.get("deprecated"):
            good = [one["name"] for one in spec["versions"] if one.get("served") and not one.get("deprecated")]
            instead = f"; use {kind.group}/{min(good, key=version_rank)} {kind.kind}" if good else ""
            warning = version.get("deprecationWarning") or f"{kind.api_version} {kind.kind} is deprecated{instead}"
        versions[version["name"]] = ServedVersion(
            kind,
            served=bool(version.get("served")) and established,
            raw_schema=schema if schema is not None else {},
            columns=columns,
            scale=subresources.get("scale"),
            status="status" in subresources,
            selectable=tuple(one["jsonPath"].lstrip(".") for one in version.get("selectableFields") or ()),
            warning=warning,
        )
        if version.get("storage"):
            stored = version["name"]
    verbs = (
        ("delete", "deletecollection", "get", "list", "watch", "patch", "update")
        if crd["metadata"].get("deletionTimestamp")
        else ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
    )
    return Resource(
        versions,
        stored,
        storage.collection(f"{plural}.{group}"),
        singular=names.get("singular") or names["kind"].lower(),
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        verbs=verbs,
        custom=True,
        list_kind=names.get("listKind") or "",
        conversion=spec.get("conversion"),
        mixed=any(one != stored for one in (crd.get("status") or {}).get("storedVersions") or ()),
    )
