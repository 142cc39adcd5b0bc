"""Pods without a node agent that ends them: those whose node is gone, those deleted before they were placed, and too
many ended ones.
"""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.kube.cache import Change
from shoal.kube.errors import Conflict, NotFound
from shoal.kube.runtime import Controller
from shoal.local.builtin import pods
from shoal.local.builtin.context import WorkloadContext

QUARANTINE = 40.0  # a node that comes back within this time keeps its pods
MOST_ENDED = 12_500


class PodCleanup:
    """Keys are pods; the empty key means all ended pods together."""

    def __init__(self, context: WorkloadContext) -> None:
        self._context = context
        self._nodes = context.cache(kinds.NODE)
        self._ended = 0
        self.controller: Controller[Key] = Controller("pod-cleanup", self.reconcile, workers=2, clock=context.clock)

    async def run(self) -> None:
        self._context.pods.subscribe(self._on_pod)
        self._nodes.subscribe(self._on_node)
        await self._context.caches.ready.wait()
        await self.controller.run()

    def _on_pod(self, change: Change) -> None:
        before = change.old is not None and pods.is_terminal(change.old)
        after = change.new is not None and pods.is_terminal(change.new)
        self._ended += after - before
        if self._ended > MOST_ENDED:
            self.controller.enqueue(Key("", ""))
        if change.new is None:
            return
        node = (change.new.get("spec") or {}).get("nodeName")
        if not node and pods.is_deleting(change.new):
            self.controller.enqueue(change.key)
        elif node and change.kind == "added" and self._nodes.get(Key("", node)) is None:
            self.controller.enqueue(change.key, QUARANTINE)

    def _on_node(self, change: Change) -> None:
        if change.kind == "removed":
            for pod in self._context.pods.by_index("node", change.key.name):
                metadata = pod["metadata"]
                self.controller.enqueue(Key(metadata["namespace"], metadata["name"]), QUARANTINE)

    async def reconcile(self, key: Key) -> float | None:
        if not key.name:
            await self._thin_out()
            return None
        pod = self._context.pods.get(key)
        if pod is None:
            return None
        node = (pod.get("spec") or {}).get("nodeName")
        if not node:
            if pods.is_deleting(pod):
                await self._end(pod, "the pod was deleted before it was placed on a node")
        elif self._nodes.get(Key("", node)) is None and not await self._node_exists(node):
            await self._end(pod, f"node {node} is gone")
        return None

    async def _thin_out(self) -> None:
        ended = [pod for pod in self._context.pods.list() if pods.is_terminal(pod) and not pods.is_deleting(pod)]
        ended.sort(key=lambda pod: pod["metadata"].get("creationTimestamp") or "")
        for pod in ended[: max(0, len(ended) - MOST_ENDED)]:
            await self._context.delete(kinds.POD, pod, grace=0)

    async def _node_exists(self, name: str) -> bool:
        try:
            await self._context.client.get(kinds.NODE, name)
        except NotFound:
            return False
        return True

    async def _end(self, pod: Json, why: str) -> None:
        """Say that it has failed, so that its owner can go on, and remove it."""
        if not pods.is_terminal(pod):
            now = self._context.now()
            condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
                         "message": f"PodGC: {why}", "lastTransitionTime": now}  # fmt: skip
            kept = [c for c in (pod.get("status") or {}).get("conditions") or () if c.get("type") != "DisruptionTarget"]
            change = {"status": {"phase": "Failed", "conditions": [*kept, condition]}}
            try:
                pod = await self._context.patch(kinds.POD, pod, change, status=True)
            except (Conflict, NotFound):
                return  # seen again with the change that came between
        await self._context.delete(kinds.POD, pod, grace=0)
