"""What an asker may read: asked of the API server, for the user that admission recorded on the question.

Without a recorded asker nothing is asked, and only the question's own namespace is named. A record counts only where
admission stood in front of the object: the embedded server writes it always; on any other cluster our webhook must be
in force, must not fail open, and must be older than the question. The webhook records the user of every write, so a
record from before it cannot survive under a newer revision.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterable

from shoal.api import kinds
from shoal.api.gang import CREATED_BY
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.planning.creators import MASTERS, Creator, access_review, read_creator, stamp_of
from shoal.controllers.planning.naming import namespace_of
from shoal.controllers.planning.stamps import Stamps
from shoal.kube.admission_review import AdmissionRequest, AdmissionVerdict
from shoal.kube.client import Client
from shoal.kube.revisions import newer

STAMP_PATH = "/questions/stamp"
STAMPING = "asker.shoal.dev"
"""Name of the webhook, as `shoal install` writes it."""

_NAMED = {
    one.kind: one
    for one in (
        kinds.APP_WRAPPER,
        kinds.JOB,
        kinds.RAY_JOB,
        kinds.RAY_CLUSTER,
        kinds.RAY_SERVICE,
        kinds.RAY,
        kinds.WORKLOAD,
        kinds.POD,
        kinds.DEPLOYMENT,
        kinds.REPLICA_SET,
        kinds.STATEFUL_SET,
        kinds.DAEMON_SET,
        kinds.CRON_JOB,
        kinds.JOB_SET,
    )
} | {"AppWrapper.mcad": kinds.APP_WRAPPER_LEGACY}


def stamp(request: AdmissionRequest) -> AdmissionVerdict:
    """Record the asker: the user who wrote the question last."""
    if request.object is None or request.sub_resource:
        return AdmissionVerdict()
    obj: Json = copy.deepcopy(request.object)
    metadata = obj.setdefault("metadata", {})
    metadata["annotations"] = {**(metadata.get("annotations") or {}), CREATED_BY: stamp_of(request)}
    return AdmissionVerdict(changed=obj)


def asker_of(question: Json, stamps: Stamps) -> Creator | None:
    """The user who asks; None when nothing recorded it, or anyone could have."""
    metadata = question["metadata"]
    found = read_creator((metadata.get("annotations") or {}).get(CREATED_BY, ""))
    if found is None or stamps.cache is None:
        return found
    in_force = any(
        newer(metadata["resourceVersion"], one["metadata"]["resourceVersion"]) and _stamps(one)
        for one in stamps.cache.list()
    )
    return found if in_force else None


def _stamps(configuration: Json) -> bool:
    return any(
        one.get("name") == STAMPING and one.get("failurePolicy") == "Fail"
        for one in configuration.get("webhooks") or ()
    )


class Readers:
    def __init__(self, client: Client, watched: Callable[[], Iterable[Kind]] = lambda: ()) -> None:
        """`watched`: further kinds of gangs, such as kinds of jobs that other packages bring."""
        self._client = client
        self._watched = watched

    async def readable(self, asker: Creator | None, namespace: str, keys: Iterable[str]) -> frozenset[str]:
        """Of these gangs, called as people know them, those that the asker may know by name."""
        found = list(keys)
        own = {key for key in found if namespace_of(key) == namespace}
        if asker is None:
            return frozenset(own)
        named = {**{one.kind: one for one in self._watched()}, **_NAMED}
        wanted = {(kind, namespace_of(key)): key for key in found if (kind := named.get(key.partition("/")[0]))}
        asked = list(wanted)
        answers = await asyncio.gather(*(self.may_read(asker, kind, where) for kind, where in asked))
        allowed = {one for one, may in zip(asked, answers, strict=True) if may}
        return frozenset(
            key for key in found if (named.get(key.partition("/")[0]), namespace_of(key)) in allowed or key in own
        )

    async def may_read(self, asker: Creator, kind: Kind, namespace: str, subresource: str = "") -> bool:
        if MASTERS in asker.groups:  # allowed everything, by definition, on every API server
            return True
        review = access_review(asker, kind, namespace, verb="get", subresource=subresource)
        answer: Json = await self._client.create(kinds.SUBJECT_ACCESS_REVIEW, review)
        return bool((answer.get("status") or {}).get("allowed"))
