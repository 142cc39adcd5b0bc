"""What may not be made yet: objects that start whole, and that the planning loop has not admitted.

Asked by the reconcilers of RayCluster and RayJob before anything is created. What has pods or a cluster already was
started before, and is never held.
"""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.api.ray_gang import is_admitted, is_gang
from shoal.controllers.ray import view
from shoal.controllers.ray.cluster import status
from shoal.controllers.ray.settings import RaySettings


def holds_cluster(cluster: Json, pods: list[Json], settings: RaySettings) -> bool:
    """A suspended cluster is held as well: nothing of it exists."""
    if pods or status.condition_status(cluster, status.PROVISIONED) == "True":
        return False
    return _holds(cluster, settings)


def holds_job(job: Json, settings: RaySettings) -> bool:
    """Of a RayJob that has no cluster."""
    return _holds(job, settings)


def _holds(thing: Json, settings: RaySettings) -> bool:
    return settings.gang == "on" and is_gang(thing) and not is_admitted(thing) and not view.deleting(thing)
