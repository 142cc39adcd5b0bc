"""What a kind of job must answer so that a queue can hold it back, start it whole and stop it.

One small class per kind, all pure: they read stored objects and return the object as it should be. Nothing here
writes, and nothing outside this folder knows how a kind is suspended.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.queues.inject import InjectedInfo


class End(msgspec.Struct, frozen=True):
    succeeded: bool
    message: str


class GangJob(Protocol):
    """One kind of job. `job` is always the object as the API server stored it."""

    kind: Kind

    def is_skipped(self, job: Json) -> bool:
        """True for objects that no queue can hold, such as a RayJob on a cluster that exists already."""

    def is_suspended(self, job: Json) -> bool: ...

    def pod_sets(self, job: Json) -> list[Json]:
        """The pod sets of its Workload, in order. Raises BadInput where the spec cannot be read."""

    def is_active(self, job: Json) -> bool:
        """Does the job itself say that it may have pods?"""

    def end(self, job: Json) -> End | None: ...

    def is_on_hold(self, job: Json) -> bool:
        """It can have no pods until a user changes it; so long it needs no quota."""

    def are_pods_ready(self, job: Json, counts: Mapping[str, int]) -> bool: ...

    def reclaimable(self, job: Json) -> dict[str, int]:
        """Pod set name to pods that are done and need no quota any more."""

    def started(self, job: Json, infos: Sequence[InjectedInfo]) -> Json:
        """The job, unsuspended and with what the admission adds. Raises StartError where that contradicts it."""

    def stopped(self, job: Json, pod_sets: Sequence[Json]) -> Json:
        """The job, suspended, its templates as they were before the start."""

    def is_half_stopped(self, job: Json) -> bool:
        """Suspended by us, and its templates could not be put back in the same step."""

    def is_winding_down(self, job: Json) -> bool:
        """Half stopped, and its own controller has not said yet that it stands still."""

    def restored(self, job: Json, pod_sets: Sequence[Json]) -> Json:
        """The rest of a half stop. The controller clears `status.startTime`, where there is one, before it writes."""

    def suspended(self, job: Json) -> Json:
        """The job, suspended, nothing else changed."""

    def problems(self, job: Json) -> list[str]:
        """Why a queue can never start it whole; empty when it can."""

    def resting(self) -> Json:
        """Status of a job of a hub while no cluster runs it."""

    def copied(self, spec: Json) -> Json:
        """The spec for another cluster: without what the API server of this one wrote into it."""


MEMBERS = tuple(name for name in (*GangJob.__annotations__, *vars(GangJob)) if not name.startswith("_"))


def lacking(job: object) -> list[str]:
    """Members of the protocol that this object does not have."""
    return [name for name in MEMBERS if not hasattr(job, name)]


class Suspendable:
    """What most kinds answer: one field suspends it, and it stands still as soon as it is suspended."""

    deleted_to_stop = False
    """Objects of this kind cannot be suspended again: they are deleted instead."""
    between: tuple[Kind, ...] = ()
    """Kinds that stand between a job and its pods, beside Jobs, ReplicaSets and RayClusters; watched once it is met."""
    required_fields: tuple[str, ...] = ()
    """What an API server must store of this kind, as `spec.patches`: where it does not, nothing is done with it."""

    def is_skipped(self, job: Json) -> bool:
        return False

    def is_suspended(self, job: Json) -> bool:
        return (job.get("spec") or {}).get("suspend") is True

    def is_on_hold(self, job: Json) -> bool:
        return False

    def reclaimable(self, job: Json) -> dict[str, int]:
        return {}

    def is_half_stopped(self, job: Json) -> bool:
        return False

    def is_winding_down(self, job: Json) -> bool:
        return False

    def restored(self, job: Json, pod_sets: Sequence[Json]) -> Json:
        return job

    def suspended(self, job: Json) -> Json:
        made: Json = copy.deepcopy(job)
        made.setdefault("spec", {})["suspend"] = True
        return made

    def prepared(self, job: Json) -> Json:
        """A new job, as admission stores it beside its suspension."""
        return job

    def problems(self, job: Json) -> list[str]:
        return []

    def resting(self) -> Json:
        return {}

    def copied(self, spec: Json) -> Json:
        return spec
