"""Gangs that can have no pod any more: what they wrapped has ended for good, or is gone, and no status says so.

Such an AppWrapper stays in the state that MCAD's users know, because no completion was asked for; but what it was given
is free for others. So is the room of single pods that were wrapped as they are and are gone: no controller makes them
again. Found at every look at a running gang, from what is stored, so that a restart finds the same.
"""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapper, wrapped_items
from shoal.api.codec import opened
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.controllers.appwrapper import monitor
from shoal.controllers.appwrapper.context import SECOND, WrapperContext
from shoal.controllers.appwrapper.dispatch import is_ours
from shoal.controllers.appwrapper.status import admission as admissions
from shoal.controllers.demand.templates import templates
from shoal.controllers.planning.observations import PodGone, RoomNeeded

SEEN_AFTER = 30.0
"""Seconds after its dispatch within which an object that is not seen yet may still come; then the server is asked."""
ENDS = {
    "Job": ("Complete", "Failed"),
    "JobSet": ("Completed", "Failed"),
    "PyTorchJob": ("Succeeded", "Failed"),
}


class DeadEnds:
    def __init__(self, context: WrapperContext) -> None:
        self.context = context

    async def look(self, uid: str) -> float | None:
        """Note whether this running gang still needs what it has; returns when to look again."""
        context = self.context
        wrapper = context.caches.wrapper_by_uid(uid)
        if wrapper is None or not wrapper.status.can_run:
            return None
        left = monitor.last_dispatch(wrapper.status) + int(SEEN_AFTER * SECOND) - context.clock.now()
        if wrapper.status.state != "Running":
            context.note(RoomNeeded, wrapper, needed=True)
            return None
        if any(pod.is_live for pod in context.planning.pods(uid)):
            context.note(RoomNeeded, wrapper, needed=True)
            return await self._note_gone(wrapper, left)
        dead = await self._is_dead(wrapper, may_come=left > 0)
        context.note(RoomNeeded, wrapper, needed=not dead)
        return left / SECOND if left > 0 and not dead else None

    async def _note_gone(self, wrapper: AppWrapper, left: int) -> float | None:
        """Others of its pods run on; those that were wrapped as pods and are gone need no room."""
        intake, uid = self.context.intake, wrapper.metadata.uid
        made = admissions.read(wrapper.status.admission).objects
        gone = [
            (index, name)
            for index, (version, kind, name) in enumerate(made)
            if (version, kind) == ("v1", "Pod") and not self._is_there(wrapper, name) and not intake.is_gone(uid, name)
        ]
        if gone and left > 0:
            return left / SECOND
        for index, name in gone:
            if await self.context.objects.find(wrapper, kinds.POD, name) is None:
                self.context.note(PodGone, wrapper, item=index, name=name)
        return None

    def _is_there(self, wrapper: AppWrapper, name: str) -> bool:
        pod = self.context.shared.pods.get(Key(wrapper.metadata.namespace, name))
        return pod is not None and is_ours(pod, wrapper)

    async def _is_dead(self, wrapper: AppWrapper, may_come: bool) -> bool:
        found = False
        for item in wrapped_items(wrapper):
            template = opened(item.generic_template)
            if not templates(template):
                if item.custom_pod_resources:
                    return False  # an unknown controller makes pods for it
                continue
            found = True
            if not await self._has_ended(wrapper, template, may_come):
                return False
        return found

    async def _has_ended(self, wrapper: AppWrapper, template: Json, may_come: bool) -> bool:
        shared = self.context.shared
        kind = await self.context.objects.kinds.kind_of(str(template.get("apiVersion")), str(template.get("kind")))
        key = Key(wrapper.metadata.namespace, str((template.get("metadata") or {}).get("name") or ""))
        if kind is None or not kind.namespaced:
            return False
        if kind == kinds.POD:
            pod = shared.pods.get(key)
            if pod is None or not is_ours(pod, wrapper):
                return not may_come and await self.context.objects.find(wrapper, kind, key.name) is None
            return pod.status.phase in ("Succeeded", "Failed")
        shared.watch(kind)
        cache = shared.between.get(kind)
        if cache is None or not cache.synced.is_set():
            return False
        obj = cache.get(key)
        if obj is None or not is_ours(obj, wrapper):
            return not may_come and await self.context.objects.find(wrapper, kind, key.name) is None
        return ended(kind.kind, opened(obj.status))


def ended(kind: str, status: Json) -> bool:
    """Will an object of this kind, in this state, never again have a pod?"""
    if kind == "RayJob":
        stage, outcome = str(status.get("jobDeploymentStatus")), str(status.get("jobStatus"))
        return stage in ("Failed", "ValidationFailed") or (stage == "Complete" and outcome in ("SUCCEEDED", "FAILED"))
    return any(one in ENDS.get(kind, ()) for one in monitor.true_conditions({"status": status}))
