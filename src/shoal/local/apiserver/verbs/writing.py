"""Create, update and patch: from a body to a durable object.

The order is that of Kubernetes: decode, fill in, built-in admission, mutating webhooks, schema and field validation,
validating webhooks, ownership of fields, store. Nothing is awaited between looking at the stored object and writing the
new one unless webhooks are asked; if something changed meanwhile the write starts over, so no update is ever lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from shoal.api.meta import Json
from shoal.kube.clock import Clock
from shoal.kube.transport import Response
from shoal.local.apiserver.admission.plugins import AdmissionPlugins
from shoal.local.apiserver.auth import gate
from shoal.local.apiserver.crd.conversion import Converter
from shoal.local.apiserver.kinds import objects, strategy
from shoal.local.apiserver.patch.errors import PatchError, patch_refused, patch_unfit
from shoal.local.apiserver.patch.json_patch import json_patch, merge_patch
from shoal.local.apiserver.patch.strategic_merge import strategic_merge
from shoal.local.apiserver.primitives.status import (
    MODIFIED,
    Refused,
    already_exists,
    bad_request,
    cause,
    conflict,
    forbidden,
    invalid,
    no_unique_name,
    not_found,
    unsupported_media,
)
from shoal.local.apiserver.requests.body import decode, decode_object, encode, media_of
from shoal.local.apiserver.requests.call import Answer, Call, decoded, json_answer, object_answer
from shoal.local.apiserver.storage.collection import StoredObject
from shoal.local.apiserver.storage.store import Storage
from shoal.local.apiserver.validation.checks import Checks

PATCHES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)
APPLY = ("application/apply-patch+yaml", "application/apply-patch+cbor")
MOST_TRIES = 5
MOST_OBJECT_BYTES = 1536 << 10  # as etcd's limit on one request

_NEEDS_REVISION = frozenset(
    (
        "leases.coordination.k8s.io",
        "customresourcedefinitions.apiextensions.k8s.io",
        "apiservices.apiregistration.k8s.io",
        "poddisruptionbudgets.policy",
        "runtimeclasses.node.k8s.io",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "validatingwebhookconfigurations.admissionregistration.k8s.io",
    )
)
_CREATED_BY_PUT = frozenset(
    (
        "leases.coordination.k8s.io",
        "events",
        "events.events.k8s.io",
        "endpoints",
        "limitranges",
        "roles.rbac.authorization.k8s.io",
        "rolebindings.rbac.authorization.k8s.io",
        "clusterroles.rbac.authorization.k8s.io",
        "clusterrolebindings.rbac.authorization.k8s.io",
    )
)

Produce = Callable[[Json | None], Json]


class WriteVerbs:
    """The writing verbs over one storage."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        chance: random.Random,
        admission: AdmissionPlugins,
        checks: Checks,
        converter: Converter,
    ) -> None:
        self.storage = storage
        self.clock = clock
        self.chance = chance
        self.admission = admission
        self.checks = checks
        self.converter = converter

    # --- create

    async def create(self, call: Call) -> Answer:
        self.checks.check_options(call)
        obj = decode_object(call.request.body, call.request.headers.get("content-type", ""))
        self.checks.look_for_repeats(call)
        objects.check_identity(obj, call.version)
        return await self.create_object(call, obj)

    async def create_object(self, call: Call, obj: Json, *, apply: bool = False) -> Answer:
        """Create from a decoded object. `apply` when server-side apply creates it and has recorded its fields."""
        resource = call.resource
        assert not call.route.subresource, "an object is created at its own address only"
        metadata = objects.check_metadata(obj, resource.kind)
        objects.place(obj, resource, call.namespace)
        if "create" not in resource.verbs:
            words = "create not allowed while custom resource definition is terminating"
            raise forbidden(resource.group, resource.plural, metadata.get("name", ""), words)
        base = "" if metadata.get("name") else metadata.get("generateName", "")
        if not metadata.get("name") and not base:
            raise objects.missing_name(resource)
        dry_run = call.dry_run
        for attempt in range(MOST_TRIES + 3):
            fresh = obj if not base or attempt == 0 else msgspec.json.decode(msgspec.json.encode(obj))
            if base:
                fresh["metadata"]["name"] = objects.generated_name(base, self.chance)
            try:
                return await self._create_once(call, fresh, apply, dry_run)
            except Refused as refusal:
                if refusal.reason != "AlreadyExists" or not base:
                    raise
                if attempt == MOST_TRIES + 2:
                    raise no_unique_name(resource.group, resource.plural, fresh["metadata"]["name"]) from None
        raise AssertionError("unreachable")

    async def _create_once(self, call: Call, obj: Json, apply: bool, dry_run: bool) -> Answer:
        resource, version = call.resource, call.version
        objects.begin(obj, resource, self.clock.now(), self.chance)
        name = obj["metadata"]["name"]
        self.checks.shape(call, obj)
        strategy.fold(resource, obj)
        self.checks.default(call, obj)
        if not apply:
            self.checks.own(call, None, obj)
        strategy.prepare_create(resource, version, obj)
        obj = await self.admission.mutate(call, obj, None)
        self.checks.validate(call, obj, None)
        await self.admission.validate(call, obj, None)
        stored = obj if call.is_stored_version else await self.converter.to_storage(call, obj)
        if resource.collection.head(call.namespace, name) is not None:
            raise already_exists(resource.group, resource.plural, name)
        if dry_run:
            return object_answer(obj, 201)
        record = await self._put(call, name, stored)
        if call.is_stored_version:
            return json_answer(record.raw, 201)
        return object_answer(await self.converter.from_storage(call, decoded(record)), 201)

    # --- update

    async def update(self, call: Call) -> Answer:
        self.checks.check_options(call)
        body = decode_object(call.request.body, call.request.headers.get("content-type", ""))
        self.checks.look_for_repeats(call)
        objects.check_identity(body, call.version)
        metadata = objects.check_metadata(body, call.resource.kind)
        given = metadata.get("name")
        if given is None or given != call.route.name:
            raise bad_request(
                f"the name of the object ({given or ''}) does not match the name on the URL ({call.route.name})"
            )
        objects.place(body, call.resource, call.namespace)
        needs = call.resource.custom or call.resource.name in _NEEDS_REVISION
        exists = call.resource.collection.head(call.namespace, given) is not None
        if needs and not metadata.get("resourceVersion") and exists:
            raise invalid(
                call.resource.group,
                call.resource.plural,
                given,
                [
                    cause(
                        "FieldValueInvalid",
                        "Invalid value: 0: must be specified for an update",
                        "metadata.resourceVersion",
                    )
                ],
            )
        encoded = encode(body)

        def produce(old: Json | None) -> Json:
            found: Json = msgspec.json.decode(encoded)
            return found

        return await self.change(call, produce, create=call.resource.name in _CREATED_BY_PUT)

    async def change(self, call: Call, produce: Produce, *, create: bool = False, apply: bool = False) -> Answer:
        """Replace the stored object by what `produce` makes of it."""
        for _ in range(MOST_TRIES):
            record = call.resource.collection.head(call.namespace, call.route.name)
            if record is None:
                return await self._absent(call, produce, create, apply)
            answer = await self._change_once(call, record, produce, apply)
            if answer is not None:
                return answer
        raise conflict(call.resource.group, call.resource.plural, call.route.name, MODIFIED)

    async def _absent(self, call: Call, produce: Produce, create: bool, apply: bool) -> Answer:
        if not create or call.route.subresource:
            raise not_found(call.resource.group, call.resource.plural, call.route.name)
        gate.require_create(self.admission.authorizer, call)
        obj = produce(None)
        metadata = objects.check_metadata(obj, call.resource.kind)
        uid = metadata.get("uid")
        if uid:
            raise conflict(
                call.resource.group,
                call.resource.plural,
                call.route.name,
                f"Precondition failed: UID in precondition: {uid}, UID in object meta: ",
            )
        metadata["name"] = call.route.name
        metadata.pop("resourceVersion", None)
        return await self.create_object(call, obj, apply=apply)

    async def _change_once(self, call: Call, record: StoredObject, produce: Produce, apply: bool) -> Answer | None:
        """One try; None when the object changed while a webhook was asked."""
        resource, version, subresource = call.resource, call.version, call.route.subresource
        old = decoded(record)
        if not call.is_stored_version:
            old = await self.converter.from_storage(call, old)
        new = produce(
            decoded(record) if call.is_stored_version else await self.converter.from_storage(call, decoded(record))
        )
        self._check_shape(call, new)
        objects.check_revision(new, old, resource)
        objects.carry_over(new, old, resource, call.route.verb == "patch")
        managed = new["metadata"].get("managedFields")
        new = strategy.prepare_update(resource, version, new, old, subresource)
        self.checks.default(call, new)
        if not apply and subresource != "binding":
            self.checks.own(call, old, new)
            managed = new["metadata"].get("managedFields")
        if resource.kind == "Service" and not resource.group and subresource != "status":
            strategy.allocate_addresses(new, resource.collection, self.chance, old=old)
        new = await self.admission.mutate(call, new, old)
        if subresource not in ("status", "binding"):
            objects.bump_generation(new, old, resource, version)
        self.checks.validate(call, new, old)
        await self.admission.validate(call, new, old)
        if managed:
            new["metadata"]["managedFields"] = managed
        else:
            new["metadata"].pop("managedFields", None)
        if call.resource.collection.head(call.namespace, call.route.name) is not record:
            return None
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if objects.same_but_times(new, old):
            await self.storage.settled()
            return json_answer(record.raw) if call.is_stored_version else object_answer(old)
        if call.dry_run:
            return object_answer(new)
        if objects.is_finished(new, resource.kind if not resource.group else ""):
            return await self._remove(call, record, new)
        stored = new if call.is_stored_version else await self.converter.to_storage(call, new)
        if call.resource.collection.head(call.namespace, call.route.name) is not record:
            return None
        written = await self._put(call, record.name, stored)
        if call.is_stored_version:
            return json_answer(written.raw)
        return object_answer(await self.converter.from_storage(call, decoded(written)))

    def _check_shape(self, call: Call, new: Json) -> None:
        try:
            objects.check_metadata(new, call.resource.kind)
            self.checks.shape(call, new)
        except Refused as refusal:
            if call.route.verb == "patch" and refusal.code == 400:
                raise patch_unfit(refusal.message) from None  # the patch was good JSON; what it makes is no such object
            raise

    # --- patch

    async def patch(self, call: Call) -> Answer:
        self.checks.check_options(call)
        media = media_of(call.request.headers.get("content-type", ""))
        if media in APPLY:
            return await self._apply(call)
        if media not in PATCHES:
            raise unsupported_media(media, PATCHES)
        if media == "application/strategic-merge-patch+json" and call.resource.custom:
            raise unsupported_media(media, [one for one in PATCHES if "strategic" not in one])
        patch = decode(call.request.body, "application/json")
        if call.request.query.get("force"):
            raise invalid(
                "meta.k8s.io",
                "PatchOptions",
                "",
                [cause("FieldValueForbidden", "Forbidden: may not be specified for non-apply patch", "force")],
            )
        if media != PATCHES[0]:
            self.checks.look_for_repeats(call)
        kind = call.version.kind

        def produce(old: Json | None) -> Json:
            try:
                if media == PATCHES[0]:
                    found = json_patch(old, patch)
                elif media == PATCHES[1]:
                    found = merge_patch(old, patch)
                else:
                    found = strategic_merge(kind, old, patch)
            except PatchError as error:
                raise patch_refused(error) from None
            if media != PATCHES[0] and type(found) is dict and not call.resource.custom:
                for name, value in (("apiVersion", kind.api_version), ("kind", kind.kind)):
                    if media == PATCHES[2] or found.get(name) is None:  # as Kubernetes: what it is needs no saying
                        found[name] = value
            return self._patched(call, found)

        return await self.change(call, produce)

    def _patched(self, call: Call, found: Any) -> Json:
        """A patch may not turn an object into another one."""
        if type(found) is not dict:
            raise bad_request("the patch does not leave an object")
        if found.get("apiVersion") != call.version.kind.api_version or found.get("kind") != call.version.kind.kind:
            raise patch_unfit("a patch may not change apiVersion or kind")
        metadata = found.get("metadata")
        if type(metadata) is not dict or not metadata.get("name"):
            raise bad_request(
                f"the name of the object ({call.route.name} based on URL) was undeterminable: name must be provided"
            )
        if metadata.get("name") != call.route.name:
            raise bad_request(
                f"the name of the object ({metadata.get('name')}) does not match the name on the URL "
                f"({call.route.name})"
            )
        objects.place(found, call.resource, call.namespace)
        return found

    async def _apply(self, call: Call) -> Answer:
        """Server-side apply."""
        if not call.request.query.get("fieldManager"):
            raise invalid(
                "meta.k8s.io",
                "PatchOptions",
                "",
                [cause("FieldValueRequired", "Required value: is required for apply patch", "fieldManager")],
            )
        body = decode_object(call.request.body, "application/apply-patch+yaml")
        self.checks.check_applied_repeats(call)
        for name in ("kind", "apiVersion"):
            if not body.get(name):
                raise bad_request(
                    f"invalid object type: {name} is missing; an applied configuration names its kind and apiVersion"
                )
        objects.check_identity(body, call.version)
        metadata = objects.check_metadata(body, call.resource.kind)
        if metadata.get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        metadata.setdefault("name", call.route.name)
        if metadata["name"] != call.route.name:
            raise bad_request(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({call.route.name})"
            )
        objects.place(body, call.resource, call.namespace)
        encoded = encode(body)

        def produce(old: Json | None) -> Json:
            config: Json = msgspec.json.decode(encoded)
            try:
                return self.checks.applied(call, old, config)
            except PatchError as error:
                raise patch_refused(error) from None

        return await self.change(call, produce, create=True, apply=True)

    # --- the end of every write

    async def _put(self, call: Call, name: str, obj: Json) -> StoredObject:
        storage = self.storage
        revision = storage.next_revision()
        obj["metadata"]["resourceVersion"] = str(revision)
        # What it is comes first: lists leave it out of their items by cutting it off.
        raw = encode({"kind": obj["kind"], "apiVersion": obj["apiVersion"], "metadata": obj["metadata"], **obj})
        if len(raw) > MOST_OBJECT_BYTES:
            raise Refused(
                413,
                "RequestEntityTooLarge",
                f"{call.resource.kind} {name!r} would take {len(raw)} bytes; the limit "
                f"for one object is {MOST_OBJECT_BYTES}",
            )
        return await storage.put(call.resource.collection, call.namespace, name, revision, raw)

    async def _remove(self, call: Call, record: StoredObject, obj: Json) -> Response:
        """The last finalizer went: so does the object."""
        revision = self.storage.next_revision()
        obj["metadata"]["resourceVersion"] = str(revision)
        stored = obj if call.is_stored_version else await self.converter.to_storage(call, obj)
        await self.storage.remove(call.resource.collection, record, revision, encode(stored))
        return object_answer(obj)
