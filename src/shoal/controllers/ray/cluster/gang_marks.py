"""Which gang a Ray cluster's pods belong to, and the marks that tell the scheduler.

A cluster is a gang of its own unless an AppWrapper made it, or made the RayJob that made it: then the wrapper's
gang counts, as the wrapper's controller wrote it on the object. The cluster of a RayJob that was admitted by itself
belongs to that RayJob's gang. Marks that anyone else put into a template are dropped.
"""

from __future__ import annotations

import msgspec

from shoal.api import gang, ray_gang
from shoal.api.meta import Json
from shoal.controllers.ray import view
from shoal.controllers.ray.cluster import counts


class GangMarks(msgspec.Struct, frozen=True):
    """`size` is None for a gang of unknown size; its pods are bound one by one."""

    name: str
    uid: str
    size: int | None
    wrapped: bool = False
    """An AppWrapper's, which was admitted with so many pods and no more."""


def gang_of(cluster: Json, maker: Json | None = None) -> GangMarks:
    """The gang of a cluster; `maker` is the RayJob or Ray that made it, if one did."""
    for wrapped in (cluster, maker):
        found = _wrapper_gang(wrapped) if wrapped is not None else None
        if found is not None:
            return found
    if maker is not None and ray_gang.is_gang(maker) and ray_gang.is_admitted(maker):
        name = f"RayJob/{view.namespace(maker)}/{view.name(maker)}"
        return GangMarks(name, view.uid(maker), counts.gang_size(cluster))
    name = f"RayCluster/{view.namespace(cluster)}/{view.name(cluster)}"
    return GangMarks(name, view.uid(cluster), counts.gang_size(cluster))


def mark(pod: Json, of: GangMarks) -> None:
    annotations = pod["metadata"].setdefault("annotations", {})
    for key in [key for key in annotations if key.startswith(gang.PREFIX)]:
        del annotations[key]
    annotations.update({gang.GANG_NAME: of.name, gang.GANG_UID: of.uid})
    if of.size is not None:
        annotations[gang.GANG_SIZE] = str(of.size)


def hold_growth(pod: Json, of: GangMarks) -> None:
    """Whether an AppWrapper's gang may have one more is for its controller to say; until then the pod is not bound."""
    if of.wrapped:
        pod["metadata"]["annotations"][gang.GROWTH] = "true"
        pod["spec"]["schedulingGates"] = [*(pod["spec"].get("schedulingGates") or []), {"name": gang.GROWTH}]


def _wrapper_gang(wrapped: Json) -> GangMarks | None:
    """The marks on an object, believed only when its owner is the very AppWrapper they name."""
    marks = view.annotations_of(wrapped)
    uid, size = marks.get(gang.GANG_UID, ""), marks.get(gang.GANG_SIZE, "")
    owners = view.metadata(wrapped).get("ownerReferences") or []
    if not uid or not any(owner.get("kind") == "AppWrapper" and owner.get("uid") == uid for owner in owners):
        return None
    known = int(size) if size.isascii() and size.isdigit() else None
    return GangMarks(marks.get(gang.GANG_NAME, ""), uid, known, wrapped=True)
