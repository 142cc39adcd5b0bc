"""Delete and deletecollection: at once, gracefully, or after finalizers.

The server only marks and removes; dependants are the garbage collector's. An object leaves when its finalizers are gone
and its grace period is over, whichever write was the last.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.api.meta import Json
from shoal.api.times import parse_time, seconds_text
from shoal.kube.clock import Clock
from shoal.kube.transport import Response
from shoal.local.apiserver.admission.plugins import IMMORTAL_NAMESPACES, AdmissionPlugins
from shoal.local.apiserver.crd.conversion import Converter
from shoal.local.apiserver.kinds.resources import Resource
from shoal.local.apiserver.primitives.status import (
    MODIFIED,
    bad_request,
    cause,
    conflict,
    forbidden,
    invalid,
    not_found,
)
from shoal.local.apiserver.requests.body import decode_object, encode
from shoal.local.apiserver.requests.call import Answer, Call, decoded, json_answer, object_answer
from shoal.local.apiserver.requests.selectors import selection
from shoal.local.apiserver.storage.collection import StoredObject
from shoal.local.apiserver.storage.store import Storage
from shoal.local.apiserver.verbs.reading import chosen_of, list_answer

ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
DEFAULT_POD_GRACE = 30
_ORPHANS_BY_DEFAULT = frozenset(("jobs.batch", "replicationcontrollers"))  # as Kubernetes, for old clients' sake


_ORPHANED = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or "
    "set propagationPolicy=Orphan to suppress this warning"
)


class Preconditions(msgspec.Struct, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class Options(msgspec.Struct, rename="camel"):
    """metav1.DeleteOptions."""

    grace_period_seconds: int | None = None
    preconditions: Preconditions | None = None
    orphan_dependents: bool | None = None
    propagation_policy: str | None = None
    dry_run: list[str] | None = None


class DeleteVerbs:
    def __init__(self, storage: Storage, clock: Clock, admission: AdmissionPlugins, converter: Converter) -> None:
        self.storage = storage
        self.clock = clock
        self.admission = admission
        self.converter = converter

    async def delete(self, call: Call) -> Answer:
        options = read_options(call)
        record = call.resource.collection.head(call.namespace, call.route.name)
        if record is None:
            raise not_found(call.resource.group, call.resource.plural, call.route.name)
        removed, obj = await self.delete_record(call, record, options)
        if call.resource.name == "jobs.batch" and options.propagation_policy is None and not options.orphan_dependents:
            call.warnings.append(_ORPHANED)
        status = 202 if not removed and options.orphan_dependents is False else 200
        if removed and not call.resource.returns_deleted:
            return object_answer(success(call, obj))
        return await self._answer(call, obj, status)

    async def delete_collection(self, call: Call) -> Answer:
        options = read_options(call)
        query = call.request.query
        chosen = selection(call.resource, call.version, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        found: list[bytes] = []
        revision = self.storage.committed
        there = list(call.resource.collection.records(call.namespace or None))
        for record in await chosen_of(call, chosen, there, self.converter.encoded):
            current = call.resource.collection.head(record.namespace, record.name)
            if current is None:
                continue
            one = Call(
                call.request,
                call.user,
                msgspec.structs.replace(call.route, name=record.name, namespace=record.namespace),
                call.resource,
                call.version,
            )
            await self.delete_record(one, current, options)
            found.append(record.raw)
        if not call.is_stored_version:
            found = await self.converter.encoded(call, found)
        return list_answer(call, {"resourceVersion": str(revision)}, found)

    async def delete_record(self, call: Call, record: StoredObject, options: Options) -> tuple[bool, Json]:
        """Delete or mark one object. Returns whether it is gone, and its last state."""
        resource = call.resource
        for _ in range(5):
            obj = decoded(record)
            self._check(call, obj, options)
            if not call.asked and (self.admission.webhooks.validating or self.admission.webhooks.mutating):
                await self.admission.webhooks.validate(call, None, obj)
                current = resource.collection.head(record.namespace, record.name)
                if current is None:
                    raise not_found(resource.group, resource.plural, record.name)
                if current is not record:
                    record = current
                    continue
            before = obj["metadata"].get("deletionTimestamp"), obj["metadata"].get("deletionGracePeriodSeconds")
            marked = self._mark(call, obj, options)
            if options.dry_run or (call.dry_run and not call.request.body):  # with a body the query does not count
                return marked is False, obj
            if marked is None:  # already on its way, nothing to change
                return False, obj
            revision = self.storage.next_revision()
            obj["metadata"]["resourceVersion"] = str(revision)
            if marked:
                await self.storage.put(resource.collection, record.namespace, record.name, revision, encode(obj))
            else:
                # As Kubernetes, watchers see a pod marked first and then gone.
                after = obj["metadata"].get("deletionTimestamp"), obj["metadata"].get("deletionGracePeriodSeconds")
                last = encode(obj) if resource.name == "pods" and after != before else None
                if last is not None:
                    revision = self.storage.next_revision()
                    obj["metadata"]["resourceVersion"] = str(revision)
                await self.storage.remove(resource.collection, record, revision, encode(obj), marked=last)
            return not marked, obj
        raise conflict(resource.group, resource.plural, record.name, MODIFIED)

    def _check(self, call: Call, obj: Json, options: Options) -> None:
        resource, metadata = call.resource, obj["metadata"]
        wanted = options.preconditions
        if wanted is not None:
            if wanted.uid and wanted.uid != metadata["uid"]:
                raise conflict(
                    resource.group,
                    resource.kind,
                    metadata["name"],
                    f"the UID in the precondition ({wanted.uid}) does not match the UID in record "
                    f"({metadata['uid']}). The object might have been deleted and then recreated",
                )
            if wanted.resource_version and wanted.resource_version != metadata["resourceVersion"]:
                raise conflict(
                    resource.group,
                    resource.kind,
                    metadata["name"],
                    f"the ResourceVersion in the precondition ({wanted.resource_version}) does not match the "
                    f"ResourceVersion in record ({metadata['resourceVersion']}). The object might have been modified",
                )
        if resource.kind == "Namespace" and not resource.group and metadata["name"] in IMMORTAL_NAMESPACES:
            raise forbidden("", "namespaces", metadata["name"], "this namespace may not be deleted")

    def _mark(self, call: Call, obj: Json, options: Options) -> bool | None:
        """Change the object as its deletion asks. True: it stays for now; False: it goes; None: nothing changes."""
        resource, metadata = call.resource, obj["metadata"]
        finalizers = _finalizers(resource, metadata, options)
        is_pod = resource.kind == "Pod" and not resource.group
        grace = pod_grace(obj, options.grace_period_seconds) if is_pod else 0
        waits = bool(finalizers) or grace > 0
        is_namespace = resource.kind == "Namespace" and not resource.group
        if is_namespace and (obj.get("spec") or {}).get("finalizers"):
            waits = True
            obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
        before = (
            metadata.get("deletionTimestamp"),
            metadata.get("deletionGracePeriodSeconds"),
            metadata.get("finalizers") or [],
        )
        if finalizers:
            metadata["finalizers"] = finalizers
        else:
            metadata.pop("finalizers", None)
        if before[0] is None:
            if waits or is_pod:  # of a pod, watchers see even in its last state that it was deleted
                metadata["deletionTimestamp"] = seconds_text(self.clock.now() + grace * 1_000_000)
                if not is_namespace:
                    metadata["deletionGracePeriodSeconds"] = grace
                if metadata.get("generation"):
                    metadata["generation"] += 1
            return waits
        # A second delete may only shorten the wait.
        if is_pod and options.grace_period_seconds is not None and grace < int(before[1] or 0):
            shortened = int(before[1] or 0) - grace
            metadata["deletionTimestamp"] = seconds_text(parse_time(before[0]) - shortened * 1_000_000)
            metadata["deletionGracePeriodSeconds"] = grace
            return bool(grace or finalizers)
        if not waits and not before[1]:
            return False
        return True if finalizers != before[2] else None

    async def _answer(self, call: Call, obj: Json, status: int) -> Response:
        if call.is_stored_version:
            return object_answer(obj, status)
        return json_answer((await self.converter.encoded(call, [encode(obj)]))[0], status)


def success(call: Call, obj: Json) -> Json:
    details: Json = {"name": obj["metadata"]["name"]}
    if call.resource.group:
        details["group"] = call.resource.group
    details["kind"] = call.resource.plural
    details["uid"] = obj["metadata"]["uid"]
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def pod_grace(pod: Json, asked: int | None) -> int:
    """Seconds that a pod gets to end: none if it never ran or has ended."""
    spec = pod.get("spec") or {}
    if not spec.get("nodeName") or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    grace = asked if asked is not None else spec.get("terminationGracePeriodSeconds", DEFAULT_POD_GRACE)
    return 1 if grace < 0 else int(grace)


def _finalizers(resource: Resource, metadata: Json, options: Options) -> list[str]:
    """The object's finalizers, with those of the garbage collector as the propagation policy asks."""
    found = list(metadata.get("finalizers") or ())
    if resource.kind == "Event" and resource.group in ("", "events.k8s.io"):
        return found  # nothing depends on events
    policy = options.propagation_policy
    if options.orphan_dependents is not None:
        policy = "Orphan" if options.orphan_dependents else "Background"
    if policy is None:
        if resource.name not in _ORPHANS_BY_DEFAULT or set(found) & {ORPHAN, FOREGROUND}:
            return found
        policy = "Orphan"
    found = [one for one in found if one not in (ORPHAN, FOREGROUND)]
    if policy == "Orphan":
        found.append(ORPHAN)
    elif policy == "Foreground":
        found.append(FOREGROUND)
    return found


def read_options(call: Call) -> Options:
    """From the body, or else from the query."""
    if call.request.body:
        body: Any = decode_object(call.request.body, call.request.headers.get("content-type", ""))
        if body.get("kind") not in (None, "", "DeleteOptions"):
            kind, version = str(body["kind"])[:80], str(body.get("apiVersion", ""))[:80]
            raise bad_request(f'no kind "{kind}" is registered for version "{version}"; a deletion takes DeleteOptions')
    else:
        query = call.request.query
        body = {name: query[name] for name in ("propagationPolicy",) if query.get(name)}
        if query.get("gracePeriodSeconds"):
            body["gracePeriodSeconds"] = call.number("gracePeriodSeconds", least=-1)
        if query.get("orphanDependents"):
            body["orphanDependents"] = query["orphanDependents"].lower() == "true"
    try:
        options = msgspec.convert(body, Options)
    except msgspec.ValidationError as error:
        raise bad_request(f"DeleteOptions cannot be decoded: {error}") from None
    if options.propagation_policy not in (None, "Orphan", "Background", "Foreground"):
        raise invalid(
            "meta.k8s.io",
            "DeleteOptions",
            "",
            [
                cause(
                    "FieldValueNotSupported",
                    "Unsupported value: "
                    f'"{options.propagation_policy[:80]}": supported values: "Foreground", "Background", '
                    '"Orphan", "nil"',
                    "propagationPolicy",
                )
            ],
        )
    if options.propagation_policy is not None and options.orphan_dependents is not None:
        raise invalid(
            "meta.k8s.io",
            "DeleteOptions",
            "",
            [
                cause(
                    "FieldValueInvalid",
                    'Invalid value: "": orphanDependents and deletionPropagation cannot be both set',
                    "propagationPolicy",
                )
            ],
        )
    if options.dry_run and options.dry_run != ["All"]:
        raise invalid(
            "meta.k8s.io",
            "DeleteOptions",
            "",
            [cause("FieldValueNotSupported", 'Unsupported value: supported values: "All"', "dryRun")],
        )
    return options
