"""The import record: which objects of another controller an administrator has given to Shoal, and who made them.

One ConfigMap in the controller's own namespace, written by `shoal import --take`. An AppWrapper that was made before
our admission stood in front of it has no stamp that could be believed: its creator is the one that is named here for
its UID, or none. Pure; `stamps.py` watches it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shoal.api.kinds import CONFIG_MAP
from shoal.api.labels import APP_PART_OF
from shoal.api.meta import Json
from shoal.controllers.planning.creators import Creator, read_creator

RECORD = "shoal-import"
STOPPED = "controllers"
"""Its key for what was stopped, and how it is to be started again. All other keys are UIDs."""
MOST_BYTES = 900_000
"""What the server stores in a ConfigMap, with room to spare."""


class StoppedController(msgspec.Struct, frozen=True):
    """A Deployment of another controller that was scaled to nothing."""

    namespace: str
    name: str
    replicas: int


class SoftenedWebhooks(msgspec.Struct, frozen=True):
    """A configuration whose webhooks would refuse everything while their controller is stopped."""

    kind: str
    name: str
    policies: tuple[str, ...]
    """As they were, in the order of its webhooks."""


class StoppedParts(msgspec.Struct, frozen=True):
    deployments: tuple[StoppedController, ...] = ()
    webhooks: tuple[SoftenedWebhooks, ...] = ()


class ImportedObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the record says of one UID, beside the creator's fields."""

    object: str
    """Kind, namespace and name, for people."""
    user: str = ""
    groups: tuple[str, ...] = ()


def imported_creator(record: Json | None, uid: str) -> Creator | None:
    """Who answers for the object with this UID; None where the record does not name it, or has no user for it."""
    text = ((record or {}).get("data") or {}).get(uid)
    return read_creator(text) if isinstance(text, str) else None


def is_imported(record: Json | None, uid: str) -> bool:
    return uid != STOPPED and uid in ((record or {}).get("data") or {})


def record_of(namespace: str, objects: Mapping[str, ImportedObject], stopped: StoppedParts) -> Json:
    """The ConfigMap, by UID."""
    data = {uid: msgspec.json.encode(one).decode() for uid, one in sorted(objects.items())}
    data[STOPPED] = msgspec.json.encode(stopped).decode()
    metadata = {"name": RECORD, "namespace": namespace, "labels": {APP_PART_OF: "shoal"}}
    return {"apiVersion": CONFIG_MAP.api_version, "kind": CONFIG_MAP.kind, "metadata": metadata, "data": data}


def stopped_parts(record: Json) -> StoppedParts:
    """What to start again. A text that cannot be read counts as nothing."""
    try:
        return msgspec.json.decode((record.get("data") or {}).get(STOPPED) or "{}", type=StoppedParts)
    except msgspec.MsgspecError:
        return StoppedParts()
