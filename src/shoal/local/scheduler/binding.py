"""Tells the API server where a pod goes, and keeps trying while the server does not answer.

Called by the scheduler, which has charged the place already and keeps it until this says that the pod is gone: a bind
that fails for a while must not give the place of half a gang to another pod.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random

import msgspec

from shoal.api.kinds import POD
from shoal.api.meta import Json
from shoal.kube.backoff import Backoff
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.errors import Conflict, KubeError, NotFound
from shoal.local.scheduler.groups import BOUND_WHOLE

log = logging.getLogger(__name__)

PARALLEL_BINDS = 64


class Binder:
    def __init__(self, client: Client, clock: Clock, is_wanted: Callable[[Json, str], bool]) -> None:
        """`is_wanted(pod, node)` says whether a bind that failed should be tried again."""
        self._client = client
        self._clock = clock
        self._is_wanted = is_wanted
        self.limit = asyncio.Semaphore(PARALLEL_BINDS)

    async def bind(self, pod: Json, node: str, *, last_of_gang: bool = False) -> bool:
        """True when the pod is bound there; False when it is gone, or was bound by another scheduler."""
        metadata = pod["metadata"]
        name, namespace = metadata["name"], metadata.get("namespace", "")
        about = {"name": name, "namespace": namespace, "uid": metadata["uid"]}
        if last_of_gang:
            about["annotations"] = {BOUND_WHOLE: "true"}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = msgspec.json.encode({"apiVersion": "v1", "kind": "Binding", "metadata": about, "target": target})
        patience = Backoff(Random(metadata["uid"]), first=0.2)
        while self._is_wanted(pod, node):
            try:
                async with self.limit:
                    await self._client.request("POST", POD.path(namespace, name, "binding"), body=body)
                return True
            except (NotFound, Conflict):
                return False  # the watch says which
            except KubeError as error:
                log.warning("pod %s/%s could not be bound to %s: %s", namespace, name, node, error)
                await self._clock.sleep(patience.after(error))
        return False
