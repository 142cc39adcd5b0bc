"""Whose a Workload is when no job that we watch stands behind it: an orphan, a copy, one that others made.

Asked by the reconciler before it lets go of quota or of the Workload itself.
"""

from __future__ import annotations

from typing import Literal

from shoal.api import kueue_names
from shoal.api.kueue_workload import Workload
from shoal.api.meta import Json, controller_of
from shoal.api.objects import key_of, label
from shoal.controllers.queues.caches import workload_key
from shoal.controllers.queues.checks import multikueue
from shoal.controllers.queues.jobs import BY_NAME, GangJob
from shoal.controllers.queues.jobs.pod_group import is_group
from shoal.controllers.queues.managing import Managing
from shoal.controllers.queues.stored import is_true
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden, NotFound


def is_orphan(workload: Workload) -> bool:
    """Made for a job that has let it go."""
    return not workload.metadata.owner_references and bool(label(workload, kueue_names.JOB_UID))


def cannot_have_started(workload: Workload) -> bool:
    """Its job is gone, or never was here. What runs for a Workload that others made, their controller knows."""
    return _job_kind(workload) is not None or multikueue.is_copy(workload) or not is_true(workload, "Admitted")


def may_be_left_behind(workload: Workload) -> bool:
    """It was switched off and has no owner: perhaps no client ever ends its eviction. Kueue counts no quota for it."""
    return not workload.spec.active and controller_of(workload.metadata) is None


async def owner_is(client: Client, workload: Workload, managing: Managing) -> Literal["", "gone", "without it"]:
    """Where the job is that owns it. Without it: the job is there, and a queue's no more, so that we do not watch it
    and it needs no quota of ours, or it has a Workload of another name, and this one would hold quota for no pod."""
    owner, kind = controller_of(workload.metadata), _job_kind(workload)
    if owner is None or kind is None:
        return ""
    try:
        job = await client.get(kind.kind, owner.name, workload.metadata.namespace)
    except NotFound:
        return "gone"
    except Forbidden:
        return ""
    if job["metadata"]["uid"] != owner.uid:
        return "gone"
    has_another = not is_group(workload) and workload_key(kind, job) != key_of(workload)
    return "without it" if has_another or not managing.is_queued(kind, job) else ""


def owner_of(workload: Workload) -> Json:
    """The job that controls it, as far as an event names it."""
    owner = controller_of(workload.metadata)
    assert owner is not None
    metadata = {"name": owner.name, "namespace": workload.metadata.namespace, "uid": owner.uid}
    return {"apiVersion": owner.api_version, "kind": owner.kind, "metadata": metadata}


def _job_kind(workload: Workload) -> GangJob | None:
    owner = controller_of(workload.metadata)
    return BY_NAME.get((owner.api_version.rpartition("/")[0], owner.kind)) if owner is not None else None
