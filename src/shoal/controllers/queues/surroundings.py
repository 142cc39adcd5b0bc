"""What admission has to know beside the request: the owner, the namespace and the queues of a job.

A few reads of the API server for each new or changed job, each with a limit. What cannot be read now is taken as not
there: the job gets in, and the controller puts right what it has to. Writes nothing.
"""

from __future__ import annotations

import asyncio

import msgspec

from shoal.api import kinds, kueue_names
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.api.objects import label
from shoal.controllers.queues.elsewhere import Elsewhere
from shoal.controllers.queues.jobs import GangJob
from shoal.controllers.queues.jobs.blueprint import has_blueprint
from shoal.controllers.queues.managing import DEFAULT, Managing
from shoal.controllers.queues.owners import Owners
from shoal.controllers.queues.settings import QueueSettings
from shoal.kube.admission_review import AdmissionRequest
from shoal.kube.client import Client
from shoal.kube.errors import KubeError

SECONDS = 5.0


def fresh(job: Json) -> Json:
    """A new object as its user wrote it: some servers have filled in a status before they ask."""
    return {name: part for name, part in job.items() if name != "status"}


class JobSurroundings(msgspec.Struct, frozen=True, kw_only=True):
    """Of one job, at the moment of its admission."""

    managing: Managing = Managing(QueueSettings())
    has_part: bool = True
    """Do jobs of its namespace go by queues?"""
    child: bool = False
    """Another job that is held made it."""
    default_queue: bool = False
    """Its namespace has a LocalQueue named `default`."""
    default_class: bool = False
    """There is a WorkloadPriorityClass named `default`."""
    elsewhere: bool = False
    """Its queue gives it to another cluster."""
    blueprint: Json | None = None
    """The object that describes its pods, where another one does."""


class SurroundingsReader:
    def __init__(self, client: Client, settings: QueueSettings) -> None:
        self._client = client
        self.managing = Managing(settings)
        self._owners = Owners(client, without_queue_name=settings.manage_jobs_without_queue_name)
        self._elsewhere = Elsewhere(client)

    async def of(self, kind: GangJob, job: Json, request: AdmissionRequest) -> JobSurroundings:
        """All that matters for this request, and no more reads than that takes."""
        managing, namespace = self.managing, request.namespace
        outside = JobSurroundings(managing=managing, has_part=False)
        queue = label(job, kueue_names.QUEUE)
        was_queued = request.old_object is not None and bool(label(request.old_object, kueue_names.QUEUE))
        is_new = request.operation == "CREATE" and kind.kind != kinds.POD  # of pods, only those with a label
        concerned = is_new or queue or was_queued or managing.waits_unnamed(kind)
        if not concerned or not await self._has_part(namespace):
            return outside
        if await self._is_child(job, namespace):
            return JobSurroundings(managing=managing, child=True)
        default_queue = not queue and await self._exists(kinds.LOCAL_QUEUE, namespace)
        if request.operation != "CREATE":
            changed = (request.old_object or {}).get("spec") != job.get("spec")
            blueprint = await self._blueprint(kind, job, namespace) if changed else None
            return JobSurroundings(managing=managing, default_queue=default_queue, blueprint=blueprint)
        named = {**job, "metadata": {**job["metadata"], "labels": {kueue_names.QUEUE: queue or DEFAULT}}}
        queued = managing.is_queued(kind, fresh(named if default_queue else job))
        wants_class = queued and not label(job, kueue_names.PRIORITY_CLASS)
        return JobSurroundings(
            managing=managing,
            default_queue=default_queue,
            default_class=wants_class and await self._exists(kinds.WORKLOAD_PRIORITY_CLASS),
            elsewhere=queued and await self._elsewhere.takes(kind, named, namespace),
            blueprint=await self._blueprint(kind, job, namespace) if queued else None,
        )

    async def _has_part(self, namespace: str) -> bool:
        if not self.managing.by_labels:
            return self.managing.has_part(namespace)
        try:
            async with asyncio.timeout(SECONDS):
                found = await self._client.get(kinds.NAMESPACE, namespace)
        except (KubeError, TimeoutError):
            return False
        return self.managing.has_part(namespace, found["metadata"].get("labels") or {})

    async def _is_child(self, job: Json, namespace: str) -> bool:
        """Where that cannot be known now the job gets in as it is: the controller stops it if it should wait."""
        try:
            return await self._owners.hold(job, namespace)
        except KubeError:
            return True

    async def _blueprint(self, kind: GangJob, job: Json, namespace: str) -> Json | None:
        if not has_blueprint(kind):
            return None
        name = kind.blueprint_name({**job, "metadata": {**job["metadata"], "namespace": namespace}})
        if name is None:
            return None
        try:
            async with asyncio.timeout(SECONDS):
                found: Json = await self._client.get(name.kind, name.key.name, name.key.namespace or None)
        except (KubeError, TimeoutError):
            return None
        return found

    async def _exists(self, kind: Kind, namespace: str | None = None) -> bool:
        try:
            async with asyncio.timeout(SECONDS):
                await self._client.get(kind, DEFAULT, namespace)
        except (KubeError, TimeoutError):
            return False
        return True
