"""What a ProvisioningRequest holds on nodes until its pods are there.

The node autoscaler writes a booking on the request before it asks for the first node; the pod scheduler and the
controllers that admit gangs keep that room for the request's own pods. A booked place ends when a pod takes it, and for
good when all are taken (the autoscaler then removes the mark). Pure: nothing here reads or writes an API.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from shoal.api.autoscaling import CONSUME_ANNOTATION, LEGACY_CONSUME_ANNOTATION
from shoal.api.gang import GANG_UID, PREFIX

BOOKING = PREFIX + "booking"
"""Annotation of a ProvisioningRequest: its booking as JSON. Written by the node autoscaler alone."""

OVER = ("Failed", "BookingExpired", "CapacityRevoked")
"""Conditions after which a request holds nothing any more."""


class BookedPods(msgspec.Struct, frozen=True):
    """Room for pods of one shape: node name to number of pods."""

    requests: dict[str, int]
    nodes: dict[str, int]


class Booking(msgspec.Struct, frozen=True, omit_defaults=True):
    """`new` are the nodes that were asked for and may not be there yet, each with its pool."""

    pods: tuple[BookedPods, ...]
    new: dict[str, str] = {}

    @property
    def nodes(self) -> set[str]:
        return {node for entry in self.pods for node in entry.nodes}


class Place(msgspec.Struct, frozen=True):
    """Room for `count` equal pods on one node."""

    node: str
    requests: dict[str, int]
    count: int


def written(booking: Booking) -> str:
    return msgspec.json.encode(booking).decode()


def booking_of(request: Mapping[str, Any]) -> Booking | None:
    """What this request holds; None when it holds nothing, is over, or its mark cannot be read."""
    metadata = request["metadata"]
    text = (metadata.get("annotations") or {}).get(BOOKING)
    if not text or metadata.get("deletionTimestamp") or is_over(request):
        return None
    try:
        return msgspec.json.decode(text, type=Booking)
    except msgspec.MsgspecError:
        return None


def is_over(request: Mapping[str, Any]) -> bool:
    """It failed, waited too long for its pods, or lost its nodes: nothing more will happen to it."""
    conditions = (request.get("status") or {}).get("conditions") or ()
    return any(one.get("type") in OVER and one.get("status") == "True" for one in conditions)


def owner_of(request: Mapping[str, Any]) -> str:
    """UID of the gang that this request was made for, or an empty text."""
    owners = request["metadata"].get("ownerReferences") or ()
    return next((str(one.get("uid") or "") for one in owners if one.get("controller")), "")


def use_key(metadata: Mapping[str, Any]) -> str:
    """Whose room a pod takes, by its metadata: `namespace/request` where it names one, else `gang/namespace/<uid>`, for
    requests that were made for its gang; empty for pods of neither sort. A mark without an owner opens nothing."""
    annotations = metadata.get("annotations") or {}
    name = annotations.get(CONSUME_ANNOTATION) or annotations.get(LEGACY_CONSUME_ANNOTATION)
    if name:
        return f"{metadata.get('namespace', '')}/{name}"
    owned = any(one.get("controller") for one in metadata.get("ownerReferences") or ())
    return gang_use(metadata.get("namespace") or "", annotations.get(GANG_UID) or "" if owned else "")


def gang_use(namespace: str, uid: str) -> str:
    return f"gang/{namespace}/{uid}" if uid else ""


def unused(booking: Booking, taken: Iterable[tuple[str, Mapping[str, int]]]) -> list[Place]:
    """The places still held once these pods (node and requests of each) have taken theirs.

    A pod takes the place meant for it: on its node and of its shape, else on its node, else of its shape, else any.
    """
    left: Counter[tuple[str, int]] = Counter()
    for index, entry in enumerate(booking.pods):
        for node, count in entry.nodes.items():
            left[node, index] += count
    for node, requests in taken:
        best = min(
            (place for place, count in left.items() if count > 0),
            key=lambda place: (place[0] != node, booking.pods[place[1]].requests != requests, place),
            default=None,
        )
        if best is None:
            break
        left[best] -= 1
    return [Place(node, booking.pods[index].requests, count) for (node, index), count in left.items() if count > 0]
