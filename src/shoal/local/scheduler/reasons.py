"""Says why a pod waits: once, as kube-scheduler does, in its PodScheduled condition and in an event.

A pod that came before the others of its gang is no failure: its condition says so, and no warning is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from shoal.api.kinds import POD
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.errors import KubeError
from shoal.kube.events import Recorder

log = logging.getLogger(__name__)

UNSCHEDULABLE = "Unschedulable"
WAITING_FOR_GANG = "WaitingForGang"


class ReasonWriter:
    def __init__(
        self,
        client: Client,
        recorder: Recorder,
        clock: Clock,
        limit: asyncio.Semaphore,
        is_placed: Callable[[str], bool],
    ) -> None:
        self._client, self._recorder, self._clock, self._limit = client, recorder, clock, limit
        self._is_placed = is_placed
        self._said: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def waits(self, pod: Json, message: str, reason: str = UNSCHEDULABLE) -> None:
        uid = pod["metadata"]["uid"]
        if self._said.get(uid) == message:
            return
        self._said[uid] = message
        if reason == UNSCHEDULABLE:
            self._recorder.event({**pod, "apiVersion": "v1", "kind": "Pod"}, "Warning", "FailedScheduling", message)
        task = asyncio.create_task(self._write(pod, message, reason))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def bound(self, pod: Json, node: str) -> None:
        metadata = pod["metadata"]
        self._said.pop(metadata["uid"], None)
        message = f"Successfully assigned {metadata.get('namespace', '')}/{metadata['name']} to {node}"
        self._recorder.event({**pod, "apiVersion": "v1", "kind": "Pod"}, "Normal", "Scheduled", message)

    def forget(self, uid: str) -> None:
        self._said.pop(uid, None)

    async def _write(self, pod: Json, message: str, reason: str) -> None:
        metadata = pod["metadata"]
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastProbeTime": None,
            "lastTransitionTime": seconds_text(self._clock.now()),
        }
        body = {"metadata": {"uid": metadata["uid"]}, "status": {"phase": "Pending", "conditions": [condition]}}
        async with self._limit:
            if self._is_placed(metadata["uid"]) or self._said.get(metadata["uid"]) != message:
                return
            try:
                await self._client.patch(
                    POD, metadata["name"], metadata.get("namespace"), body, subresource="status", patch_type="strategic"
                )
            except KubeError as error:
                log.debug("the reason why pod %s waits was not written: %s", metadata["name"], error)
