"""ReplicaSets: so many pods of one template, no more and no fewer."""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.kube.runtime import Controller
from shoal.local.builtin import pods
from shoal.local.builtin.workbench import Workbench, number, run_sets


class ReplicaSets:
    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._sets = bench.cache(kinds.REPLICA_SET)
        self.controller: Controller[Key] = Controller("replicasets", self.reconcile, workers=8, clock=bench.clock)

    async def run(self) -> None:
        await run_sets(self._bench, self.controller, kinds.REPLICA_SET, self._sets, pods.matches)

    async def reconcile(self, key: Key) -> float | None:
        owner = self._sets.get(key)
        if owner is None:
            return None
        mine = await pods.claim(self._bench, kinds.REPLICA_SET, owner)
        if not pods.is_deleting(owner):
            await self._scale(owner, [pod for pod in mine if pods.is_active(pod)])
        return await self._publish(owner)

    async def _scale(self, owner: Json, active: list[Json]) -> None:
        wanted = number(owner["spec"].get("replicas"), 1)
        if len(active) < wanted:
            name = owner["metadata"]["name"]
            template = owner["spec"].get("template") or {}
            bodies = [pods.from_template(kinds.REPLICA_SET, owner, template, self._bench.fresh(f"{name}-"))
                      for _ in range(min(wanted - len(active), pods.MOST_AT_ONCE))]  # fmt: skip
            await self._bench.create_pods(owner, bodies)
        elif len(active) > wanted:
            doomed = sorted(active, key=pods.least_wanted)[: len(active) - wanted]
            await self._bench.delete_pods(owner, doomed)

    async def _publish(self, owner: Json) -> float | None:
        active = [pod for pod in self._bench.owned_pods(owner) if pods.is_active(pod)]
        labels = ((owner["spec"].get("template") or {}).get("metadata") or {}).get("labels") or {}
        whole = sum(labels.items() <= (pod["metadata"].get("labels") or {}).items() for pod in active)
        least = number(owner["spec"].get("minReadySeconds"))
        waits = [pods.available_in(pod, least, self._bench.clock.now()) for pod in active]
        ready = sum(wait is not None for wait in waits)
        available = sum(wait == 0 for wait in waits)
        status = {
            "replicas": len(active),
            "fullyLabeledReplicas": whole or None,
            "readyReplicas": ready or None,
            "availableReplicas": available or None,
            "observedGeneration": owner["metadata"]["generation"],
        }
        await self._bench.patch(kinds.REPLICA_SET, owner, {"status": status}, status=True)
        later = [wait for wait in waits if wait]
        return min(later) if later else None
