"""A pod as the AppWrapper controller needs it: what the engine counts, and why the scheduler could not place it.

Read once when the pod changes; counting a gang's pods then costs no decoding. Bad amounts make a pod count as nothing,
with a warning, never an exception.
"""

from __future__ import annotations

import logging

import msgspec

from shoal.api import gang, pod_told
from shoal.api.codec import opened
from shoal.api.fields import ABSENT
from shoal.api.kind import Key
from shoal.api.labels import KUEUE_TOPOLOGY_ANNOTATIONS
from shoal.api.meta import Json, Object, Part
from shoal.api.times import parse_time
from shoal.engine.facts import pod_fact
from shoal.engine.model import PodFact
from shoal.errors import BadInput

log = logging.getLogger(__name__)

KEPT_ANNOTATIONS = frozenset((gang.GROWTH, gang.LEAVES_FOR, *KUEUE_TOPOLOGY_ANNOTATIONS))
"""Those that the engine is told of; that they are there says all."""

# Messages of co-scheduling plug-ins that only say "my siblings are not there yet": all words of one row.
_WAITING_FOR_SIBLINGS = (
    ("pgName", "last", "failed", "deny"),
    ("optimistic", "rejection", "PostFilter"),
    ("cannot", "find", "enough", "sibling"),
)

_USUAL_SCHEDULER = f'"schedulerName":"{pod_told.DEFAULT_SCHEDULER}"'.encode()
"""As API servers write it into nearly every pod: those need not be opened to know it."""


class SeenStatus(Part):
    phase: str = "Pending"
    conditions: msgspec.Raw = ABSENT
    container_statuses: msgspec.Raw = ABSENT


class SeenPod(Object):
    """As it is cached: metadata, the raw spec, phase and conditions. Everything else is not kept."""

    spec: msgspec.Raw = ABSENT
    status: SeenStatus = SeenStatus()


class GangPod(msgspec.Struct, frozen=True):
    """A pod of a gang. Moments: since when it could have had a node and has none (as a rule, since it was made), and
    when it was first seen on one, by our own clock."""

    fact: PodFact
    refusals: tuple[Json, ...] = ()
    unbound_since: int = 0
    seen_since: int = 0
    """When we first saw it."""
    bound_since: int = 0
    deleting_since: int = 0
    silent_scheduler: str = ""
    """The scheduler that it waits for, where that one has said nothing of it."""
    exit_codes: tuple[int, ...] = ()
    """Of its containers, once it has failed."""

    @property
    def is_live(self) -> bool:
        return not self.fact.is_terminal


def key_of(pod: SeenPod) -> Key:
    return Key(pod.metadata.namespace, pod.metadata.name)


def created_at(pod: SeenPod) -> int:
    try:
        return parse_time(pod.metadata.creation_timestamp) if pod.metadata.creation_timestamp else 0
    except BadInput:
        return 0


def owner_uid(pod: Object) -> str:
    """UID of the controller, or an empty text."""
    return next((one.uid for one in pod.metadata.owner_references or () if one.controller), "")


def mark_of(pod: SeenPod) -> str:
    return (pod.metadata.annotations or {}).get(gang.GANG_UID, "")


def read_fact(pod: SeenPod, gang_uid: str) -> PodFact:
    """What the engine is told. The gang is the one found by owner, never what an annotation claims by itself."""
    metadata = {
        "uid": pod.metadata.uid,
        "namespace": pod.metadata.namespace,
        "name": pod.metadata.name,
        "labels": pod.metadata.labels or {},
        "deletionTimestamp": pod.metadata.deletion_timestamp,
        "creationTimestamp": pod.metadata.creation_timestamp,
    }
    kept = KEPT_ANNOTATIONS & (pod.metadata.annotations or {}).keys()
    if kept:
        metadata["annotations"] = dict.fromkeys(kept, "true")
    spec = opened(pod.spec)
    try:
        fact = pod_fact({"metadata": metadata, "spec": spec, "status": {"phase": pod.status.phase}}, gang=gang_uid)
    except (BadInput, AttributeError, TypeError, ValueError) as error:
        log.warning("pod %s: its amounts cannot be read and count as nothing: %s", key_of(pod), error)
        fact = PodFact(
            uid=pod.metadata.uid,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            node=str(spec.get("nodeName") or ""),
            gang=gang_uid,
            phase=pod.status.phase,
            deleting=pod.metadata.deletion_timestamp is not None,
        )
    return fact


def refusals(pod: SeenPod) -> tuple[Json, ...]:
    """The scheduler's conditions that say it cannot be placed, without those that only wait for siblings."""
    if pod.status.phase != "Pending" or not pod.status.conditions:
        return ()
    conditions = msgspec.json.decode(pod.status.conditions)
    if not isinstance(conditions, list):
        return ()
    return tuple(one for one in conditions if isinstance(one, dict) and _is_refusal(one))


def silent_scheduler(pod: SeenPod) -> str:
    """The scheduler that it waits for, where that one is not Kubernetes' own and has said nothing of it."""
    if pod.status.phase != "Pending" or _USUAL_SCHEDULER in bytes(pod.spec):
        return ""
    conditions = msgspec.json.decode(pod.status.conditions) if pod.status.conditions else []
    known = [one for one in conditions if isinstance(one, dict)] if isinstance(conditions, list) else []
    return pod_told.silent_scheduler(opened(pod.spec), known)


def exit_codes(pod: SeenPod) -> tuple[int, ...]:
    """How the containers of a failed pod ended."""
    if pod.status.phase != "Failed" or not pod.status.container_statuses:
        return ()
    found = msgspec.json.decode(pod.status.container_statuses)
    ends = [
        ((one.get("state") or {}).get("terminated") or {}).get("exitCode")
        for one in (found if isinstance(found, list) else ())
        if isinstance(one, dict)
    ]
    return tuple(code for code in ends if isinstance(code, int))


def _is_refusal(condition: Json) -> bool:
    if condition.get("type") != "PodScheduled" or condition.get("status") != "False":
        return False
    if condition.get("reason") != "Unschedulable":
        return False
    message = str(condition.get("message") or "")
    return not any(all(word in message for word in row) for row in _WAITING_FOR_SIBLINGS)
