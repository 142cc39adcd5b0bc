"""Pods whose marks wait for a look at their owners, one after the other: the first of a gang is read for, the rest are
known by then. Called by the scheduler, which is told of each that was judged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from shoal.api import gang as marks
from shoal.api.kind import Key
from shoal.api.labels import KUEUE_WORKLOAD
from shoal.kube.cache import Cache
from shoal.kube.clock import Clock
from shoal.kube.errors import KubeError
from shoal.local.scheduler.lineage import Lineage
from shoal.local.seen import TrackedPod

log = logging.getLogger(__name__)

AGAIN = 1.0
"""Seconds until owners that could not be read are read again."""


class Judging:
    """`judged(key, pod)` is called for every pod that had to wait, as it is stored then."""

    def __init__(
        self, lineage: Lineage, pods: Cache[TrackedPod], clock: Clock, judged: Callable[[Key, TrackedPod], None]
    ) -> None:
        self._lineage, self._pods, self._clock, self._judged = lineage, pods, clock, judged
        self._waiting: dict[Key, str] = {}
        self._came = asyncio.Event()

    def is_due(self, key: Key, pod: TrackedPod) -> bool:
        """Whether this pod has marks that are not judged yet; then it is taken down for it."""
        annotations = pod.metadata.annotations or {}
        if pod.is_terminal or not (annotations.get(marks.GANG_UID) or annotations.get(KUEUE_WORKLOAD)):
            return False
        if self._lineage.is_known(pod.head()):
            return False
        self._waiting[key] = pod.metadata.uid
        self._came.set()
        return True

    def forget(self, key: Key, uid: str) -> None:
        if self._waiting.get(key) == uid:
            del self._waiting[key]
        self._lineage.forget(uid)

    async def judge_all(self) -> None:
        """Before the first decision: every pod that is there."""
        for pod in self._pods.list():
            while not pod.is_terminal and not await self._judge(pod):
                await self._clock.sleep(AGAIN)

    async def run(self) -> None:
        while True:
            await self._came.wait()
            self._came.clear()
            for key, uid in [*self._waiting.items()]:
                pod = self._pods.get(key)
                if pod is None or pod.metadata.uid != uid:
                    self._waiting.pop(key, None)
                elif await self._judge(pod):
                    self._waiting.pop(key, None)
                    latest = self._pods.get(key)
                    if latest is not None and latest.metadata.uid == uid:
                        self._judged(key, latest)
            if self._waiting:
                await self._clock.sleep(AGAIN)
                self._came.set()

    async def _judge(self, pod: TrackedPod) -> bool:
        try:
            await self._lineage.learn(pod.head())
        except KubeError as error:
            log.debug("pod %s: its owners cannot be read now: %s", pod.metadata.name, error)
            return False
        return True
