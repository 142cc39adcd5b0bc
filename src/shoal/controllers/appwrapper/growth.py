"""Pods that come on top of what a gang was admitted with: workers that Ray's autoscaler asked for while it runs.

The Ray operator makes them with a gate that keeps the scheduler away; here the gate is opened as soon as the quota
trees have room, which from then on carry the pod. What already runs is never touched for it. Whatever was admitted
comes through at once, a replacement for a dead worker too.
"""

from __future__ import annotations

import logging

from shoal.api import gang, kinds
from shoal.api.codec import opened
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.controllers.appwrapper.context import WrapperContext
from shoal.controllers.planning.pods import SeenPod, key_of, read_fact
from shoal.engine.model import Shortfall
from shoal.kube.cache import Change
from shoal.kube.client import Client
from shoal.kube.errors import Conflict, KubeError, NotFound
from shoal.kube.writes import Writer

log = logging.getLogger(__name__)


class Growth:
    def __init__(self, writer: Writer, context: WrapperContext) -> None:
        self._writer = writer
        self._context = context
        self._waiting: dict[Key, SeenPod] = {}
        self._told: dict[str, str] = {}
        """By UID of a pod that waits: what was said about it."""

    def subscribe(self) -> None:
        """After the intake, so that the engine knows a pod before it is asked about it."""
        self._context.shared.pods.subscribe(self._pod_changed)

    def _pod_changed(self, change: Change) -> None:
        new: SeenPod | None = change.new
        if new is not None and gang.GROWTH in (new.metadata.annotations or ()) and _gates(new):
            self._waiting[change.key] = new
        elif (left := self._waiting.pop(change.key, None)) is not None:
            self._told.pop(left.metadata.uid, None)

    async def open_gates(self) -> bool:
        """Let come whoever may; False when one could not be told and is to be tried again."""
        done = True
        waiting = sorted(self._waiting.values(), key=lambda one: (one.metadata.creation_timestamp or "", key_of(one)))
        for pod in waiting:
            missing = self._context.planning.engine.let_grow(pod.metadata.uid)
            if missing:
                self._tell(pod, missing)
            elif missing is not None:
                done = await self._open(pod) and done
        return done

    async def _open(self, pod: SeenPod) -> bool:
        metadata = pod.metadata
        change = {
            "metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version},
            "spec": {"schedulingGates": [one for one in _gates(pod) if one.get("name") != gang.GROWTH]},
        }

        async def write(server: Client) -> SeenPod:
            stored: SeenPod = await server.patch(kinds.POD, metadata.name, metadata.namespace, change, type=SeenPod)
            return stored

        try:
            stored = await self._writer.send(write)
        except (NotFound, Conflict):
            return True  # whatever it is now is told anew
        except KubeError as error:
            log.warning("the gate of pod %s could not be opened: %s", key_of(pod), error)
            self._context.planning.engine.update(read_fact(pod, self._context.planning.cluster.gang_of(pod)))
            return False
        self._context.shared.pods.note_write(stored)
        return True

    def _tell(self, pod: SeenPod, missing: tuple[Shortfall, ...]) -> None:
        message = "; ".join(one.message for one in missing)
        wrapper = self._context.caches.wrapper_by_uid(self._context.planning.cluster.gang_of(pod))
        if wrapper is not None and self._told.get(pod.metadata.uid) != message:
            self._told[pod.metadata.uid] = message
            text = f"Pod {pod.metadata.name} is more than was admitted and waits for quota: {message}"
            self._context.tell_people(wrapper, "Normal", "GrowthWaits", text)


def _gates(pod: SeenPod) -> list[Json]:
    """All of its gates, where ours is among them and it is not on its way out."""
    found = opened(pod.spec).get("schedulingGates") or []
    held = any(one.get("name") == gang.GROWTH for one in found) and not pod.metadata.deletion_timestamp
    return list(found) if held else []
