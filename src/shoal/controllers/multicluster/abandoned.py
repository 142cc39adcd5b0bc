"""Finalizers of a hub's job that its own controller has set and will not remove.

A Ray operator marks a RayJob as soon as it sees it; once that is given to another cluster (`managedBy`), the operator
leaves it alone, also when it is deleted. What has to be cleaned up is in the other cluster by then, and the finalizer
of the Workload sees to that. Pure.
"""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.appwrapper import FINALIZER
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.queues.checks import multikueue

_PREFIXES: dict[Kind, str] = {
    kinds.RAY_JOB: "ray.io/",
    kinds.RAY_CLUSTER: "ray.io/",
    kinds.APP_WRAPPER_V1BETA2: FINALIZER,
}


def abandoned(kind: Kind, job: Json) -> list[str]:
    """Those that keep a deleted job of ours for ever."""
    prefix = _PREFIXES.get(kind)
    if prefix is None or not job["metadata"].get("deletionTimestamp") or not multikueue.is_managed(job):
        return []
    return [one for one in job["metadata"].get("finalizers") or () if one.startswith(prefix)]
