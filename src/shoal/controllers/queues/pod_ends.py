"""Why a pod is stopped, told on the pod itself before it is deleted: Kueue's condition `TerminationTarget`.

Called by the reconciler and by the keeper of groups. What made the pod reads there whether it was taken back or failed
by itself. It never keeps a pod from being stopped: where the condition cannot be written, the pod goes without.
"""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.controllers.queues.context import QueueContext
from shoal.kube.client import Client
from shoal.kube.errors import Conflict, Forbidden, Invalid, NotFound

TARGET = "TerminationTarget"


async def tell(context: QueueContext, pod: Json, reason: str, message: str) -> None:
    metadata = pod["metadata"]
    condition = {
        "type": TARGET,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": seconds_text(context.clock.now()),
    }
    body = {"metadata": {"uid": metadata["uid"]}, "status": {"conditions": [condition]}}

    async def write(server: Client) -> Json:
        answer: Json = await server.patch(
            kinds.POD, metadata["name"], metadata["namespace"], body, subresource="status", patch_type="strategic"
        )
        return answer

    try:
        await context.writer.send(write)
    except (NotFound, Conflict, Invalid, Forbidden):
        pass  # gone, another of its name, or rights from an older installation
