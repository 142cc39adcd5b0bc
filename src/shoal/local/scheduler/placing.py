"""Where pods of one gang can go, by the same fit code that admitted it. Pure: asks the room, takes nothing."""

from __future__ import annotations

from shoal.api import gang as marks
from shoal.api.booking import use_key
from shoal.api.meta import Json
from shoal.engine.model import Gang, PodSet, Shortfall
from shoal.engine.nodes import Placement, Room, place
from shoal.local.scheduler.groups import Group, alike, as_pod_set, shape_key


def places_for(group: Group, room: Room) -> list[tuple[Json, str]] | tuple[Shortfall, ...]:
    """A node for each pod: those planned when the gang was admitted if they still hold it, else any."""
    planned = any((pod["metadata"].get("annotations") or {}).get(marks.NODE_PIN) for pod in group.pods)
    answer: Placement | tuple[Shortfall, ...] = ()
    for pinned in (True, False) if planned else (False,):
        sets = alike(group.pods, pinned)
        namespace = group.pods[0]["metadata"].get("namespace", "")
        pod_sets = tuple(pod_set for pod_set, _ in sets)
        answer = place(Gang(key=group.key, uid=group.key, namespace=namespace, name=group.key, pod_sets=pod_sets), room)
        if isinstance(answer, Placement):
            return [
                found
                for (_, members), nodes in zip(sets, answer.pod_sets, strict=True)
                for found in zip(members, (n for n, count in nodes.items() for _ in range(count)), strict=True)
            ]
    return answer if isinstance(answer, tuple) else ()


def shape_of(pod: Json) -> tuple[PodSet, bytes]:
    """What the fit code sees of a pod, and a key that equal ones share."""
    shape = as_pod_set([pod], "pod")
    namespace = pod["metadata"].get("namespace", "")
    return shape, shape_key(shape) + f"{namespace} {use_key(pod['metadata'])}".encode()
