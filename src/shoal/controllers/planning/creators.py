"""The user who created an object, as admission recorded it, and the question of what that user may do.

The record is one annotation that admission writes and no client can. AppWrappers are started with their creator's
rights, questions are answered with those of the user who asks. Pure.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from shoal.api.appwrapper import AppWrapper
from shoal.api.gang import CREATED_BY, SUBMITTED_BY
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.kube.admission_review import AdmissionRequest

MASTERS = "system:masters"


class Creator(msgspec.Struct, frozen=True):
    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = {}


def creator_of(wrapper: AppWrapper) -> Creator | None:
    """The creator that admission recorded; None when there is no record, or it cannot be read."""
    return read_creator((wrapper.metadata.annotations or {}).get(CREATED_BY, ""))


@lru_cache(maxsize=1 << 10)
def read_creator(text: str) -> Creator | None:
    """Kept for a while: few users make many objects."""
    try:
        found = msgspec.json.decode(text, type=Creator) if text else None
    except msgspec.MsgspecError:
        return None
    return found if found is not None and found.user else None


def submitter_of(job: Json) -> str:
    """Name of the user who submitted a job, as admission recorded it; empty where nothing did."""
    annotations = (job.get("metadata") or {}).get("annotations") or {}
    creator = read_creator(annotations.get(CREATED_BY, ""))
    return creator.user if creator is not None else str(annotations.get(SUBMITTED_BY, ""))


def stamp_of(request: AdmissionRequest) -> str:
    user = request.user_info
    found = Creator(user.username, user.uid, tuple(user.groups), user.extra)
    return msgspec.json.encode(found).decode()


def access_review(creator: Creator, kind: Kind, namespace: str, verb: str = "create", subresource: str = "") -> Json:
    """The SubjectAccessReview that asks whether this person may create (or read) such objects there."""
    attributes = {"verb": verb, "group": kind.group, "version": kind.version, "resource": kind.plural}
    attributes |= {"subresource": subresource} if subresource else {}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": creator.user,
            "uid": creator.uid,
            "groups": list(creator.groups),
            "extra": creator.extra,
            "resourceAttributes": {**attributes, "namespace": namespace},
        },
    }
