"""Pods that come on top of what a gang was admitted with: workers that Ray's autoscaler asked for while it runs.

The Ray operator makes them with a gate that keeps the scheduler away; here the gate is opened as soon as a plan says
that the quota trees have room, which from then on carry the pod. What already runs is never touched for it. Pods that
were admitted come through at once, a replacement for a dead worker too.
"""

from __future__ import annotations

import logging

from shoal.api import gang, kinds
from shoal.api.codec import opened
from shoal.api.meta import Json
from shoal.controllers.appwrapper.context import WrapperContext
from shoal.controllers.planning.pods import SeenPod, key_of
from shoal.engine.model import Grow, Plan, Shortfall
from shoal.kube.cache import Change
from shoal.kube.client import Client
from shoal.kube.errors import Conflict, KubeError, NotFound
from shoal.kube.writes import Writer

log = logging.getLogger(__name__)


class Growth:
    def __init__(self, writer: Writer, context: WrapperContext) -> None:
        self._writer = writer
        self._context = context
        self._waiting: dict[str, SeenPod] = {}
        """By UID: pods whose gate is ours to open."""
        self._decided: dict[str, Grow] = {}
        """By UID: what plans say of them and is not carried out yet."""

    def subscribe(self) -> None:
        self._context.shared.pods.subscribe(self._pod_changed)

    def _pod_changed(self, change: Change) -> None:
        new: SeenPod | None = change.new
        if new is not None and gang.GROWTH in (new.metadata.annotations or ()) and _gates(new):
            self._waiting[new.metadata.uid] = new
        else:
            uid = (new or change.old).metadata.uid
            self._waiting.pop(uid, None)
            self._decided.pop(uid, None)

    def planned(self, plan: Plan) -> bool:
        """Take over what a plan says; True when there is something to carry out."""
        for one in plan.grows:
            self._decided[one.pod] = one
        return bool(self._decided)

    async def open_gates(self) -> bool:
        """Let pods come that may, and say why others may not; False when one is to be tried again."""
        done = True
        for uid, decision in list(self._decided.items()):
            pod = self._waiting.get(uid)
            if pod is not None and decision.shortfalls:
                self._notify(pod, decision.shortfalls)
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
            "spec": {"schedulingGates": [one for one in _gates(pod) if one.get("name") != gang.GROWTH]},
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
        self._context.shared.pods.note_write(stored)
        return True

    def _notify(self, pod: SeenPod, missing: tuple[Shortfall, ...]) -> None:
        message = "; ".join(one.message for one in missing)
        wrapper = self._context.caches.wrapper_by_uid(self._context.planning.cluster.gang_of(pod))
        if wrapper is not None:
            text = f"Pod {pod.metadata.name} is more than was admitted and waits for quota: {message}"
            self._context.tell_people(wrapper, "Normal", "GrowthWaits", text)


def _gates(pod: SeenPod) -> list[Json]:
    """All of its gates, where ours is among them and it is not on its way out."""
    found = opened(pod.spec).get("schedulingGates") or []
    held = any(one.get("name") == gang.GROWTH for one in found) and not pod.metadata.deletion_timestamp
    return list(found) if held else []
