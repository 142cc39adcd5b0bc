"""What is stored with an admission, as one short text in the status.

Written before the first wrapped object exists and read back after a restart: how often the gang was admitted, which
generation of its spec, what it was given, which objects it will have, and whether it is being taken back. A text that
no longer decodes counts as absent: the engine then decides again. A text of a later format is counted as far as it can
be read, and never written over: the release that wrote it goes on from it.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from shoal.engine.model import Amounts, PodSet, PodSetAssignment, Seat

FORMAT = 1
"""Of what is written here. A field that an earlier release may ignore and drop leaves it as it is; any other change
counts it up."""
NEWER = "its admission was stored by a later release of Shoal: it is left as it is; run that release again to go on"
Name = tuple[str, str, str]
"""apiVersion, kind and name of a wrapped object."""


class Given(msgspec.Struct, frozen=True, array_like=True):
    """What one pod set was given: pods, what they are charged together, and how many were planned on which node."""

    count: int
    usage: Amounts = {}
    nodes: dict[str, int] = {}


class StoredAdmission(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    format: int = 1
    """1, the first, is not written."""
    epoch: int = 0
    """How often this AppWrapper was admitted; never repeats."""
    generation: int = 0
    at: int = 0
    """Moment of the admission."""
    by: str = ""
    """The user whose right to create the objects was asked for."""
    seats: dict[str, Seat] = {}
    sets: dict[str, Given] = {}
    objects: tuple[Name, ...] = ()
    stopping: str = ""
    """Why the gang is being taken back; set until the last of its objects is gone."""
    stopping_for: str = ""
    """The gang that gets the room, by UID, or by its mark where it is in another namespace; stays until this one
    starts again."""
    cluster: str = ""
    """The other cluster that it was given to; empty: it runs here."""
    fence: int = 0
    """Seconds after the last word of this cluster after which nothing of it runs in the other; 0: it runs on."""
    moving_to: str = ""
    """The other cluster whose room is kept for it, while it leaves the one that it was given to."""
    setbacks: int = 0
    """How often in a row a start came to nothing, through no fault of the queue."""
    resume_at: int = 0
    """Moment before which it is not tried again."""


_decoder = msgspec.json.Decoder(StoredAdmission)


@lru_cache(maxsize=1 << 12)
def read(text: str) -> StoredAdmission:
    """Kept for a while: the same text is read at every look at its AppWrapper."""
    if not text:
        return StoredAdmission()
    try:
        return _decoder.decode(text)
    except msgspec.MsgspecError:
        return StoredAdmission(format=_format_alone(text))


class _Numbered(msgspec.Struct):
    format: int = 1


def _format_alone(text: str) -> int:
    """Other fields may have changed their types."""
    try:
        return msgspec.json.decode(text, type=_Numbered).format
    except msgspec.MsgspecError:
        return 1


def is_newer(text: str) -> bool:
    """Was this stored by a release that writes what we do not understand?"""
    return bool(text) and read(text).format > FORMAT


def write(admission: StoredAdmission) -> str:
    text = msgspec.json.encode(admission).decode()
    return "" if text == "{}" else text


def given(assignment: tuple[PodSetAssignment, ...]) -> dict[str, Given]:
    return {one.name: Given(one.count, one.usage, one.nodes) for one in assignment}


def assignment(admission: StoredAdmission) -> tuple[PodSetAssignment, ...]:
    return tuple(
        PodSetAssignment(name=name, count=one.count, usage=one.usage, nodes=one.nodes)
        for name, one in admission.sets.items()
    )


def admitted_pod_sets(admission: StoredAdmission) -> tuple[PodSet, ...]:
    """The pod sets as they were admitted, for a gang whose spec was edited since: its charge stays what it was."""
    return tuple(
        PodSet(
            name=name,
            count=one.count,
            requests={resource: amount // one.count for resource, amount in one.usage.items()} if one.count else {},
            opaque=True,
        )
        for name, one in admission.sets.items()
    )


def as_admitted(pod_sets: tuple[PodSet, ...], admission: StoredAdmission) -> tuple[PodSet, ...]:
    """The same pod sets with the amounts they were admitted with: defaults of the namespace may have changed since."""
    return tuple(_with_given(one, admission.sets.get(one.name)) for one in pod_sets)


def _with_given(pods: PodSet, given: Given | None) -> PodSet:
    if given is None or not given.count or given.count != pods.count:
        return pods
    requests = {resource: amount // given.count for resource, amount in given.usage.items() if amount}
    return pods if requests == pods.requests else msgspec.structs.replace(pods, requests=requests)


def ended(admission: StoredAdmission) -> StoredAdmission:
    """What is kept once the objects are gone: its number, the gang for which it left, and how often it was set back."""
    return StoredAdmission(
        epoch=admission.epoch,
        stopping_for=admission.stopping_for,
        moving_to=admission.moving_to,
        setbacks=admission.setbacks,
        resume_at=admission.resume_at,
    )
