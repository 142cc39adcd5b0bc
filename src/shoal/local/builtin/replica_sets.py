"""ReplicaSets, and ReplicationControllers before them: so many pods of one template, no more and no fewer."""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.kube.errors import ApiError
from shoal.kube.runtime import Controller
from shoal.local.builtin import pods
from shoal.local.builtin.context import WorkloadContext, number, run_sets


class ReplicaSetController:
    def __init__(self, context: WorkloadContext, kind: Kind = kinds.REPLICA_SET) -> None:
        self._context = context
        self._kind = kind
        self._sets = context.cache(kind)
        self.controller: Controller[Key] = Controller(kind.plural, self.reconcile, workers=8, clock=context.clock)

    async def run(self) -> None:
        await run_sets(self._context, self.controller, self._kind, self._sets, pods.matches)

    async def reconcile(self, key: Key) -> float | None:
        owner = self._sets.get(key)
        if owner is None:
            return None
        mine = await pods.claim(self._context, self._kind, owner)
        refused: ApiError | None = None
        if not pods.is_deleting(owner):
            try:
                await self._scale(owner, [pod for pod in mine if pods.is_active(pod)])
            except ApiError as error:
                refused = error
        wait = await self._publish(owner, refused)
        if refused is not None:
            raise refused  # tried again, later and later
        return wait

    async def _scale(self, owner: Json, active: list[Json]) -> None:
        wanted = number(owner["spec"].get("replicas"), 1)
        if len(active) < wanted:
            name = owner["metadata"]["name"]
            template = owner["spec"].get("template") or {}
            bodies = [pods.from_template(self._kind, owner, template, self._context.fresh(f"{name}-"))
                      for _ in range(min(wanted - len(active), pods.MOST_AT_ONCE))]  # fmt: skip
            await self._context.create_pods(owner, bodies)
        elif len(active) > wanted:
            doomed = sorted(active, key=pods.least_wanted)[: len(active) - wanted]
            await self._context.delete_pods(owner, doomed)

    async def _publish(self, owner: Json, refused: ApiError | None) -> float | None:
        active = [pod for pod in self._context.owned_pods(owner) if pods.is_active(pod)]
        labels = ((owner["spec"].get("template") or {}).get("metadata") or {}).get("labels") or {}
        whole = sum(labels.items() <= (pod["metadata"].get("labels") or {}).items() for pod in active)
        least = number(owner["spec"].get("minReadySeconds"))
        waits = [pods.available_in(pod, least, self._context.clock.now()) for pod in active]
        ready = sum(wait is not None for wait in waits)
        available = sum(wait == 0 for wait in waits)
        status = {
            "replicas": len(active),
            "fullyLabeledReplicas": whole or None,
            "readyReplicas": ready or None,
            "availableReplicas": available or None,
            "observedGeneration": owner["metadata"]["generation"],
            "conditions": self._conditions(owner, refused),
        }
        await self._context.patch(self._kind, owner, {"status": status}, status=True)
        later = [wait for wait in waits if wait]
        return min(later) if later else None

    def _conditions(self, owner: Json, refused: ApiError | None) -> list[Json] | None:
        """Pods that cannot be made are reported in the status, until they can."""
        if refused is None:
            return None
        known = pods.condition(owner, "ReplicaFailure")
        if known is not None:
            return [known]  # its words name one pod of many: they would change with every try
        return [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": refused.message,
                 "lastTransitionTime": self._context.now()}]  # fmt: skip
