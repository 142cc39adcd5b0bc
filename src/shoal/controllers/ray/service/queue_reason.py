"""Why the next cluster of a RayService waits in its queue, in the queue's own words.

The queue stores its reason in the Workload of the RayCluster; that is asked for only while such a cluster is suspended,
and as seldom as its answer may be told. Works with any controller that keeps Kueue's Workloads; where there are none,
or they may not be read, the service says only that its cluster is suspended. Reads only.
"""

from __future__ import annotations

import msgspec

from shoal.api import kinds, kueue_told
from shoal.api.labels import KUEUE_JOB_UID, KUEUE_QUEUE
from shoal.api.meta import Json
from shoal.api.objects import controller_of, label
from shoal.controllers.ray import view
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.errors import KubeError

ASKED_EVERY = 5.0
"""Seconds for which an answer holds."""


class _Answer(msgspec.Struct, frozen=True):
    text: str
    at: float


class QueueReasons:
    def __init__(self, client: Client, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._answers: dict[str, _Answer] = {}
        """By UID of a RayCluster that waits."""

    async def why_waiting(self, cluster: Json | None) -> str:
        """Empty for a cluster that runs, that no queue holds, or of which the queue has not said anything yet."""
        if cluster is None or not view.suspended(cluster) or not label(cluster, KUEUE_QUEUE):
            return ""
        held, now = self._answers.get(view.uid(cluster)), self._clock.monotonic()
        if held is None or now >= held.at + ASKED_EVERY:
            held = self._answers[view.uid(cluster)] = _Answer(await self._asked(cluster), now)
            self._answers = {uid: one for uid, one in self._answers.items() if now < one.at + 2 * ASKED_EVERY}
        return held.text

    async def _asked(self, cluster: Json) -> str:
        uid, namespace = view.uid(cluster), view.namespace(cluster)
        try:
            found = await self._client.list(kinds.WORKLOAD, namespace, label_selector=f"{KUEUE_JOB_UID}={uid}")
        except KubeError:  # words alone are at stake
            return ""
        said = (kueue_told.told(one) for one in found if (controller_of(one) or {}).get("uid") == uid)
        return next(
            (message if state == "Queued" else f"{state}: {message}" for state, message in filter(None, said)), ""
        )
