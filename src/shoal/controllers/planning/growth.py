"""Pods that come on top of what a gang was admitted with: workers that Ray's autoscaler asked for while it runs.

They are made with a gate that keeps the scheduler away; here the gate is opened as soon as a plan says that they may
come, and from then on they are charged. What already runs is never touched for it. Pods that were admitted come through
at once, a replacement for a dead worker too. Each source has a gate of its own and opens no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from shoal.api import kinds
from shoal.api.codec import opened
from shoal.api.meta import Json
from shoal.controllers.planning.pods import SeenPod, key_of
from shoal.engine.model import Grow, Plan, Shortfall
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.errors import Conflict, KubeError, NotFound
from shoal.kube.writes import Writer

log = logging.getLogger(__name__)

RETRY_PAUSE = 5.0


class Growth:
    """`gate`: the name of the gate that is ours to open. `tell(pod, missing)`: why one may not come yet."""

    def __init__(
        self,
        writer: Writer,
        pods: Cache[SeenPod],
        gate: str,
        tell: Callable[[SeenPod, tuple[Shortfall, ...]], None],
    ) -> None:
        self._writer = writer
        self._pods = pods
        self._gate = gate
        self._tell = tell
        self._waiting: dict[str, SeenPod] = {}
        """By UID: pods whose gate is ours to open."""
        self._decided: dict[str, Grow] = {}
        """By UID: what plans say of them and is not carried out yet."""
        self._due = asyncio.Event()

    def subscribe(self) -> None:
        self._pods.subscribe(self._pod_changed)

    async def run(self, clock: Clock) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            if not await self.open_gates():
                await clock.sleep(RETRY_PAUSE)
                self._due.set()

    def _pod_changed(self, change: Change) -> None:
        new: SeenPod | None = change.new
        if new is not None and self._gates(new):
            self._waiting[new.metadata.uid] = new
        else:
            uid = (new or change.old).metadata.uid
            self._waiting.pop(uid, None)
            self._decided.pop(uid, None)

    def planned(self, plan: Plan) -> None:
        """Take over what a plan says of the pods behind this gate."""
        for one in plan.grows:
            if one.pod in self._waiting:
                self._decided[one.pod] = one
        if self._decided:
            self._due.set()

    async def open_gates(self) -> bool:
        """Let pods come that may, and say why others may not; False when one is to be tried again."""
        done = True
        for uid, decision in list(self._decided.items()):
            pod = self._waiting.get(uid)
            if pod is not None and decision.shortfalls:
                self._tell(pod, decision.shortfalls)
            elif pod is not None and not await self._open(pod):
                done = False
                continue
            if self._decided.get(uid) is decision:
                del self._decided[uid]
        return done

    async def _open(self, pod: SeenPod) -> bool:
        metadata = pod.metadata
        change = {
            "metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version},
            "spec": {"schedulingGates": [one for one in self._gates(pod) if one.get("name") != self._gate]},
        }

        async def write(server: Client) -> SeenPod:
            stored: SeenPod = await server.patch(kinds.POD, metadata.name, metadata.namespace, change, type=SeenPod)
            return stored

        try:
            stored = await self._writer.send(write)
        except (NotFound, Conflict):
            return True  # the watch tells what it is now
        except KubeError as error:
            log.warning("the gate of pod %s could not be opened: %s", key_of(pod), error)
            return False
        self._pods.note_write(stored)
        return True

    def _gates(self, pod: SeenPod) -> list[Json]:
        """All of its gates, where ours is among them and it is not on its way out."""
        found = opened(pod.spec).get("schedulingGates") or []
        held = any(one.get("name") == self._gate for one in found) and not pod.metadata.deletion_timestamp
        return list(found) if held else []
