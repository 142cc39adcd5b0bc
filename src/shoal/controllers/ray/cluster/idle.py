"""Clusters that Ray's autoscaler found idle: suspended first and, much later, deleted.

The autoscaler says `spec.idleSuspend: true` and no more. The operator makes an ordinary suspension of it, so that a
person resumes it like any other, with `spec.suspend: false`; but not where a queue decides about `suspend`, which would
take it for an eviction. Called by the cluster reconciler; deletes only clusters that asked for idle termination and
that nothing else owns.
"""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.controllers.ray import view
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.cluster import status
from shoal.controllers.ray.owned_writer import OwnedWriter
from shoal.controllers.ray.settings import RaySettings
from shoal.kube.clock import Clock
from shoal.kube.events import Recorder


async def settle(
    cluster: Json, writer: OwnedWriter, caches: Caches, recorder: Recorder, settings: RaySettings, clock: Clock
) -> tuple[Json | None, float | None]:
    """The cluster to go on with, None when it was deleted, and when to look again."""
    if view.spec(cluster).get("idleSuspend") is not True:
        return cluster, None
    queued = any(label.startswith("kueue.x-k8s.io/") for label in view.labels(cluster))
    if view.spec(cluster).get("suspend") is not True and not queued:
        return await _follow(cluster, writer, caches, recorder, settings), None
    left = _left(cluster, settings, clock)
    if left is None or left > 0:
        return cluster, left
    days = settings.idle_delete_after / 86400
    recorder.event(cluster, "Normal", "DeletedIdleCluster", f"Deleted: suspended for being idle {days:.3g} days ago")
    await writer.delete(kinds.RAY_CLUSTER, cluster, caches.clusters)
    return None, None


async def _follow(
    cluster: Json, writer: OwnedWriter, caches: Caches, recorder: Recorder, settings: RaySettings
) -> Json:
    """Idle and not suspended: suspend. Suspended and told not to be: it resumes, and its idleness is forgotten."""
    version = view.metadata(cluster).get("resourceVersion")
    begun = any(status.condition_status(cluster, kind) == "True" for kind in (status.SUSPENDING, status.SUSPENDED))
    change: Json = {"spec": {"idleSuspend": None} if begun else {"suspend": True}}
    change["metadata"] = {"resourceVersion": version}
    changed = await writer.patch(kinds.RAY_CLUSTER, cluster, change, caches.clusters)
    if not begun:
        later = ""
        if _may_delete(cluster, settings):
            later = f"; it is deleted after {settings.idle_delete_after / 86400:.3g} more days"
        text = f"Suspended: no driver was attached for long; spec.suspend: false resumes it{later}"
        recorder.event(cluster, "Normal", "SuspendedIdleCluster", text)
    return changed


def _left(cluster: Json, settings: RaySettings, clock: Clock) -> float | None:
    """Seconds until it may be deleted; None when it never is."""
    if not _may_delete(cluster, settings):
        return None
    for condition in (cluster.get("status") or {}).get("conditions") or []:
        if condition.get("type") == status.SUSPENDED and condition.get("status") == "True":
            since = parse_time(str(condition["lastTransitionTime"]))
            return settings.idle_delete_after - (clock.now() - since) / 1_000_000
    return None


def _may_delete(cluster: Json, settings: RaySettings) -> bool:
    asked = (view.spec(cluster).get("idleTerminationOptions") or {}).get("timeoutSeconds") is not None
    return asked and settings.idle_delete_after > 0 and not view.metadata(cluster).get("ownerReferences")
