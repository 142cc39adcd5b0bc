"""From stored RayJobs and RayClusters to the engine's facts.

What was decided is read back from the object alone: its own status and our condition. Demand is what the Ray operator
will make of it, the submitter included; one that Ray's autoscaler sizes asks for its floor. Pure but for a memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.api.ray_gang import condition_of, has_changed, is_admitted
from shoal.api.times import parse_time
from shoal.controllers.demand import NOTHING, Defaults, RaySidecars, as_made, completed, templates
from shoal.controllers.demand.app_wrapper import UNREADABLE
from shoal.controllers.planning.leaving import remains
from shoal.engine.facts import pod_set
from shoal.engine.model import Gang, PodFact, PodSet, State
from shoal.errors import BadInput

ENDED = ("Complete", "Failed", "ValidationFailed")
FIRST = "Initializing"
"""The stage in which KubeRay makes a job's cluster."""


class RayDemand(msgspec.Struct, frozen=True):
    """What a spec asks for, or why that cannot be read."""

    generation: int
    defaults: Defaults
    pod_sets: tuple[PodSet, ...] = ()
    problem: str = ""


class RayGangFacts:
    """Remembers demand by UID and generation."""

    def __init__(self, sidecars: RaySidecars) -> None:
        self._sidecars = sidecars
        self.defaults: Callable[[str], Defaults] = lambda namespace: NOTHING
        """What pods of a namespace are given where they do not say what they need."""
        self._demands: dict[str, RayDemand] = {}

    def gang(self, kind: Kind, obj: Json, *, runs: bool, bound: Iterable[PodFact] = ()) -> Gang:
        """`runs`: something of it exists, so that it was started. `bound`: its pods that have a node.

        A running cluster whose spec was changed holds what it has: what it grows by was not admitted, and growth that
        finds no node holds up no other gang.
        """
        metadata, demand = obj["metadata"], self._demand(kind, obj)
        created = _moment(str(metadata.get("creationTimestamp") or ""))
        state = _state(kind, obj, is_admitted(obj) or runs)
        gang = Gang(
            key=gang_key(kind, obj),
            uid=metadata["uid"],
            namespace=metadata["namespace"],
            name=metadata["name"],
            dialect="plain",
            created_at=created,
            queued_at=created,
            pod_sets=demand.pod_sets,
            preemptable=False,
            state=state,
            admitted_at=_moment(str(condition_of(obj).get("lastTransitionTime") or "")) or created,
            problem=demand.problem if state == "waiting" else "",
        )
        if kind == kinds.RAY_CLUSTER and state in ("admitted", "stopping") and has_changed(obj):
            return remains(gang, bound)
        return gang

    def forget(self, uid: str) -> None:
        self._demands.pop(uid, None)

    def _demand(self, kind: Kind, obj: Json) -> RayDemand:
        metadata = obj["metadata"]
        generation, defaults = int(metadata.get("generation") or 0), self.defaults(metadata["namespace"])
        known = self._demands.get(metadata["uid"])
        if known is not None and kind == kinds.RAY_JOB and is_admitted(obj):
            return known  # what runs was made from the spec that was admitted
        if known is None or known.generation != generation or known.defaults != defaults:
            known = self._demands[metadata["uid"]] = self._read(kind, obj, generation, defaults)
        return known

    def _read(self, kind: Kind, obj: Json, generation: int, defaults: Defaults) -> RayDemand:
        whole = {**obj, "apiVersion": kind.api_version, "kind": kind.kind}
        try:
            found = tuple(
                pod_set(one.name, one.count, completed(as_made(one, self._sidecars), defaults))
                for one in templates(whole, "minimum")
                if one.count
            )
        except UNREADABLE as error:
            return RayDemand(generation, defaults, problem=str(error))
        return RayDemand(generation, defaults, found)


def as_seen_first(obj: Json) -> Json:
    """The object as its operator will have it when it has looked at it once."""
    status = {"jobDeploymentStatus": FIRST, "observedGeneration": 1}
    return {**obj, "metadata": {**obj["metadata"], "generation": 1}, "status": status}


def gang_key(kind: Kind, obj: Json) -> str:
    return f"{kind.kind}/{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def _state(kind: Kind, obj: Json, admitted: bool) -> State:
    if kind == kinds.RAY_JOB:
        stage = str((obj.get("status") or {}).get("jobDeploymentStatus") or "")
        if stage in ENDED:
            return "finished"
        leaves = stage in ("Suspending", "Suspended")
        waits = stage == FIRST and not (obj.get("spec") or {}).get("suspend")
    else:
        leaves, waits = is_suspended(obj), _is_sound(obj)
    if obj["metadata"].get("deletionTimestamp"):
        return "stopping" if admitted else "finished"
    if leaves:
        return "stopping" if admitted else "held"
    if admitted:
        return "admitted"
    return "waiting" if waits else "held"


def is_suspended(obj: Json) -> bool:
    spec = obj.get("spec") or {}
    return spec.get("suspend") is True or spec.get("idleSuspend") is True


def _is_sound(cluster: Json) -> bool:
    """Has the operator looked at this spec, and found nothing wrong with it?"""
    status = cluster.get("status") or {}
    refused = any(one.get("type") == "Valid" and one.get("status") == "False" for one in status.get("conditions") or ())
    return not refused and status.get("observedGeneration") == cluster["metadata"].get("generation")


def _moment(text: str) -> int:
    try:
        return parse_time(text) if text else 0
    except BadInput:
        return 0
