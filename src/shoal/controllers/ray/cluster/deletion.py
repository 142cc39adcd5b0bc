"""The end of a RayCluster: garbage collection does the rest, except for what a finalizer of ours holds it for.

With Redis fault tolerance the cluster's part of Redis is emptied first, by a Job, once the head is gone. Whatever
cannot be reached, the finalizer is gone after a deadline: a cluster is never stuck on us.
"""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.controllers.ray import names, view
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.cluster import redis_cleanup
from shoal.controllers.ray.owned_writer import OwnedWriter, Stranger, owned_by
from shoal.controllers.ray.pods import fault_tolerance
from shoal.controllers.ray.settings import RaySettings
from shoal.kube.clock import Clock
from shoal.kube.errors import ApiError, NotFound
from shoal.kube.events import Recorder

DEFAULT_TIMEOUT = 300.0
RECHECK = 10.0
OURS = (names.REDIS_FINALIZER, names.IDLE_FINALIZER)


def needs_finalizer(cluster: Json, settings: RaySettings) -> bool:
    held = view.metadata(cluster).get("finalizers") or []
    return settings.redis_cleanup and fault_tolerance.uses_redis(cluster) and names.REDIS_FINALIZER not in held


async def add_finalizer(cluster: Json, writer: OwnedWriter, caches: Caches) -> None:
    held = view.metadata(cluster).get("finalizers") or []
    await writer.set_finalizers(kinds.RAY_CLUSTER, cluster, [*held, names.REDIS_FINALIZER], caches.clusters)


async def finish(
    cluster: Json, writer: OwnedWriter, caches: Caches, recorder: Recorder, settings: RaySettings, clock: Clock
) -> float | None:
    """One step towards the end. Returns when to look again."""
    held = view.metadata(cluster).get("finalizers") or []
    if not any(finalizer in OURS for finalizer in held):
        return None
    if names.REDIS_FINALIZER not in held:
        await release(cluster, writer, caches)
        return None
    left = _time_left(cluster, clock)
    if left <= 0:
        recorder.event(
            cluster,
            "Warning",
            "ForceDeletedStuckCluster",
            f"Redis of storage namespace {fault_tolerance.storage_namespace(cluster)} was not cleaned up in time; "
            "the cluster is deleted without it",
        )
        await release(cluster, writer, caches)
        return None
    try:
        done = await _clean_up(cluster, writer, caches, recorder, settings)
    except (ApiError, Stranger) as error:
        recorder.event(cluster, "Warning", "FailedToCreateRedisCleanupJob", str(error))
        return min(RECHECK, left)
    if done:
        await release(cluster, writer, caches)
        return None
    return min(RECHECK, left)


async def release(cluster: Json, writer: OwnedWriter, caches: Caches) -> None:
    held = view.metadata(cluster).get("finalizers") or []
    kept = [finalizer for finalizer in held if finalizer not in OURS]
    try:
        await writer.set_finalizers(kinds.RAY_CLUSTER, cluster, kept, caches.clusters)
    except NotFound:
        return


async def _clean_up(
    cluster: Json, writer: OwnedWriter, caches: Caches, recorder: Recorder, settings: RaySettings
) -> bool:
    """Delete pods, wait for the head to be gone, run the Job. True when the Job has ended, well or not."""
    members = caches.pods_of(cluster)
    for pod in members:
        if not view.deleting(pod):
            await writer.delete(kinds.POD, pod, caches.pods)
    if any(view.labels(pod).get(names.NODE_TYPE) == names.HEAD for pod in caches.pods_of(cluster)):
        return False
    wanted = redis_cleanup.cleanup_job(cluster, settings)
    job = caches.submitters.get(Key(view.namespace(wanted), view.name(wanted)))
    if job is None:
        if await writer.create(kinds.JOB, wanted, cluster, caches.submitters):
            recorder.event(cluster, "Normal", "CreatedRedisCleanupJob", f"Created Job {view.name(wanted)}")
        return False
    if not owned_by(job, cluster):
        raise Stranger(f"Job {view.name(wanted)} exists and belongs to another owner; delete or rename it")
    return ended(job) is not None


def ended(job: Json) -> str | None:
    """`Complete` or `Failed` once a Job has ended."""
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            return str(condition["type"])
    return None


def _time_left(cluster: Json, clock: Clock) -> float:
    written = view.annotations_of(cluster).get(names.FT_DELETION_TIMEOUT, "")
    timeout = float(written) if written.isascii() and written.isdigit() else DEFAULT_TIMEOUT
    began = parse_time(str(view.metadata(cluster)["deletionTimestamp"]))
    return timeout - (clock.now() - began) / 1_000_000
