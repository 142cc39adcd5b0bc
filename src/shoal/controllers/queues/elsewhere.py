"""Whether a new job's queue gives its gangs to other clusters.

Such a job has to say so from its first moment (`spec.managedBy`), or the controllers of its own kind begin with it: a
Job's field can never be changed later. As Kueue, admission writes it. Where no MultiKueueCluster exists, which is asked
once in a while, this costs nothing; otherwise a few reads with a limit. Writes nothing.
"""

from __future__ import annotations

import asyncio

from shoal.api import kinds, kueue_names
from shoal.api.labels import KUEUE_MULTIKUEUE, RAY_OPERATOR
from shoal.api.meta import Json
from shoal.api.objects import label
from shoal.controllers.queues.jobs import GangJob
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.errors import Forbidden, KubeError, NotFound

SECONDS = 5.0
REMEMBERED = 1_000_000
"""Microseconds for which it is believed that there is no other cluster, or that there is one."""
KINDS = (kinds.JOB, kinds.RAY_JOB, kinds.RAY_CLUSTER, kinds.APP_WRAPPER_V1BETA2)
"""Those with such a field that can run in another cluster."""
OWN = (None, "", RAY_OPERATOR)
"""`managedBy` of jobs that no other controller claims."""


class Elsewhere:
    """`client` reads the queue that a job names, and its checks."""

    def __init__(self, client: Client, clock: Clock | None = None) -> None:
        self._client = client
        self._clock: Clock = clock or SystemClock()
        self._asked = 0
        self._is_hub = False

    async def takes(self, kind: GangJob, job: Json, namespace: str) -> bool:
        """False also where it cannot be known now: then the check refuses the job, and says what to write."""
        queue = label(job, kueue_names.QUEUE)
        if kind.kind not in KINDS or not queue or (job.get("spec") or {}).get("managedBy") not in OWN:
            return False
        try:
            async with asyncio.timeout(SECONDS):
                return await self._has_clusters() and await self._is_given_away(queue, namespace)
        except (KubeError, TimeoutError):
            return False

    async def _has_clusters(self) -> bool:
        now = self._clock.now()
        if now - self._asked >= REMEMBERED:
            self._asked = now
            try:
                self._is_hub = bool(await self._client.list(kinds.MULTIKUEUE_CLUSTER))
            except (NotFound, Forbidden):  # the kind is not installed, or this installation has no part for members
                self._is_hub = False
        return self._is_hub

    async def _is_given_away(self, queue: str, namespace: str) -> bool:
        local = await self._client.get(kinds.LOCAL_QUEUE, queue, namespace)
        cluster_queue = await self._client.get(
            kinds.CLUSTER_QUEUE, str((local.get("spec") or {}).get("clusterQueue") or "-")
        )
        strategy = (cluster_queue.get("spec") or {}).get("admissionChecksStrategy") or {}
        for named in strategy.get("admissionChecks") or ():
            check = await self._client.get(kinds.ADMISSION_CHECK, str(named.get("name") or "-"))
            if (check.get("spec") or {}).get("controllerName") == KUEUE_MULTIKUEUE:
                return True
        return False
