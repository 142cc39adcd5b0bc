"""The metadata that the server itself keeps: names, uids, revisions, generations, deletion marks.

Called by the writing verbs before anything is stored. What a client sends for these fields is checked or ignored, never
trusted. Pure: works on decoded objects and knows nothing of storage.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

import msgspec

from shoal.api.meta import Json
from shoal.api.times import parse_time, seconds_text
from shoal.errors import BadInput
from shoal.local.apiserver.kinds.resources import Resource, ServedVersion
from shoal.local.apiserver.primitives.status import MODIFIED, Refused, bad_request, cause, conflict, invalid
from shoal.local.apiserver.primitives.values import mark

NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # no vowels and no look-alikes: as Kubernetes
LONGEST_GENERATED_BASE = 58

_KEPT = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink")


class _Owner(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    self_link: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str | None] | None = None
    annotations: dict[str, str | None] | None = None
    owner_references: list[_Owner] | None = None
    finalizers: list[str] | None = None
    managed_fields: list[dict[str, Any]] | None = None


METADATA_FIELDS = frozenset(_Metadata.__struct_encode_fields__)


def check_identity(obj: Json, version: ServedVersion) -> None:
    """apiVersion and kind must be those of the URL; built-in kinds may leave them out."""
    if version.raw_schema is not None:
        if not obj.get("kind"):
            raise bad_request(
                f"the object provided is unrecognized (must be of type {version.kind.kind}): Object 'Kind' is missing"
            )
        if not obj.get("apiVersion"):
            raise bad_request(
                f"the API version in the data () does not match the expected API version ({version.kind.api_version})"
            )
    wanted = version.kind.api_version
    given = obj.get("apiVersion") or wanted
    kind = obj.get("kind") or version.kind.kind
    if given != wanted:
        raise bad_request(f"the API version in the data ({given}) does not match the expected API version ({wanted})")
    if kind != version.kind.kind:
        raise bad_request(
            f'{kind} in version "{version.name}" cannot be handled as a {version.kind.kind}: '
            f'no kind "{kind}" is expected at this address'
        )
    obj["apiVersion"], obj["kind"] = wanted, version.kind.kind


def check_metadata(obj: Json, kind: str) -> Json:
    """The object's metadata, its types as Kubernetes has them; nulls and empty parts are dropped."""
    metadata = obj.get("metadata")
    if metadata is None:
        metadata = obj["metadata"] = {}
    if type(metadata) is not dict:
        raise bad_request(f"{kind} cannot be decoded: metadata is not an object")
    try:
        msgspec.convert(metadata, _Metadata)
    except msgspec.ValidationError as error:
        raise bad_request(f"{kind} cannot be decoded: metadata: {error}") from None
    for name in ("creationTimestamp", "deletionTimestamp"):
        if metadata.get(name):
            try:
                parse_time(metadata[name])
            except BadInput as error:
                raise bad_request(f"{kind} cannot be decoded: metadata.{name}: {error}") from None
    for name in [name for name, value in metadata.items() if value is None]:
        del metadata[name]
    for name in ("labels", "annotations"):
        found = metadata.get(name)
        if found is not None:
            if None in found.values():
                metadata[name] = found = {key: value or "" for key, value in found.items()}
            if not found:
                del metadata[name]
    for name in ("ownerReferences", "finalizers"):
        if name in metadata and not metadata[name]:
            del metadata[name]
    owners = metadata.get("ownerReferences") or ()
    if len(owners) > 1:
        metadata["ownerReferences"] = list({mark(one): one for one in reversed(owners)}.values())[::-1]
    return metadata


def drop_unknown_metadata(metadata: Json) -> list[str]:
    """Of custom kinds, whose schemas do not describe metadata."""
    unknown = [name for name in metadata if name not in METADATA_FIELDS]
    for name in unknown:
        del metadata[name]
    return [f"metadata.{name}" for name in unknown]


def begin(obj: Json, resource: Resource, moment: int, chance: random.Random) -> None:
    """What every new object gets."""
    metadata = obj["metadata"]
    if metadata.get("resourceVersion"):
        raise bad_request("resourceVersion should not be set on objects to be created")
    for name in ("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"):
        metadata.pop(name, None)
    metadata["uid"] = str(uuid.UUID(int=chance.getrandbits(128), version=4))
    metadata["creationTimestamp"] = seconds_text(moment)
    if resource.generation or resource.custom:
        metadata["generation"] = 1


def generated_name(base: str, chance: random.Random) -> str:
    return base[:LONGEST_GENERATED_BASE] + "".join(chance.choice(NAME_LETTERS) for _ in range(5))


def place(obj: Json, resource: Resource, namespace: str) -> None:
    """The namespace of the URL, which the body may repeat but not contradict."""
    metadata = obj["metadata"]
    if not resource.namespaced:
        metadata.pop("namespace", None)
        return
    given = metadata.get("namespace") or namespace
    if given != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    metadata["namespace"] = namespace


def carry_over(new: Json, old: Json, resource: Resource, patched: bool) -> None:
    """What an update cannot change, from the stored object."""
    metadata, before = new["metadata"], old["metadata"]
    given_uid = metadata.get("uid")
    if given_uid and given_uid != before["uid"]:
        if patched:
            raise invalid(
                resource.group,
                resource.kind,
                before["name"],
                [cause("FieldValueInvalid", f'Invalid value: "{given_uid}": field is immutable', "metadata.uid")],
            )
        raise conflict(
            resource.group,
            resource.plural,
            before["name"],
            f"Precondition failed: UID in precondition: {given_uid}, UID in object meta: {before['uid']}",
        )
    marked = metadata.get("deletionTimestamp")
    if marked and not before.get("deletionTimestamp"):
        words = f'Invalid value: "{marked}": field is immutable'
        causes = [cause("FieldValueInvalid", words, "metadata.deletionTimestamp")]
        raise invalid(resource.group, resource.kind, before["name"], causes)
    for field in _KEPT:
        if field in before:
            metadata[field] = before[field]
        else:
            metadata.pop(field, None)
    metadata["name"] = before["name"]
    if "namespace" in before:
        metadata["namespace"] = before["namespace"]
    if "generateName" in before:
        metadata["generateName"] = before["generateName"]


def check_revision(new: Json, old: Json, resource: Resource) -> None:
    """A body with an old resourceVersion is refused."""
    given = new["metadata"].get("resourceVersion")
    if given and given != "0" and given != old["metadata"]["resourceVersion"]:
        raise conflict(resource.group, resource.plural, old["metadata"]["name"], MODIFIED)


def bump_generation(new: Json, old: Json, resource: Resource, version: ServedVersion) -> None:
    """The generation counts changes of what the user wants: not of metadata, not of status."""
    if not (resource.generation or resource.custom):
        return
    ignored = {"metadata", "status", "apiVersion", "kind"} if version.status else {"metadata", "apiVersion", "kind"}
    fields = (set(new) | set(old)) - ignored
    changed = any(new.get(field) != old.get(field) for field in fields)
    if resource.kind == "Deployment" and resource.group == "apps":  # as Kubernetes: its annotations count, too
        changed = changed or new["metadata"].get("annotations") != old["metadata"].get("annotations")
    if changed:
        new["metadata"]["generation"] = int(old["metadata"].get("generation") or 0) + 1


def missing_name(resource: Resource) -> Refused:
    return invalid(
        resource.group,
        resource.kind,
        "",
        [cause("FieldValueRequired", "Required value: name or generateName is required", "metadata.name")],
    )


def is_finished(obj: Json, kind: str) -> bool:
    """Whether an object marked for deletion has nothing left to wait for."""
    metadata = obj["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    if kind == "Namespace" and (obj.get("spec") or {}).get("finalizers"):
        return False
    return not metadata.get("deletionGracePeriodSeconds")


def same_but_times(new: Json, old: Json) -> bool:
    """Equal apart from when fields were owned: then nothing is written."""
    if new == old:
        return True
    if {**new, "metadata": None} != {**old, "metadata": None}:
        return False
    return _timeless(new["metadata"]) == _timeless(old["metadata"])


def _timeless(metadata: Json) -> Json:
    managed = metadata.get("managedFields")
    if not managed:
        return metadata
    return {**metadata, "managedFields": [{**entry, "time": None} for entry in managed]}
