"""PodDisruptionBudgets: how many of the pods they protect may be missing now.

The server takes from `disruptionsAllowed` when it evicts a pod and notes it in `disruptedPods`; a pod noted there
counts as missing until it is gone, or, should its eviction have come to nothing, for two minutes.
"""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.kube.cache import Change
from shoal.kube.runtime import Controller
from shoal.local.apiserver.requests.selectors import label_selector
from shoal.local.builtin import pods
from shoal.local.builtin.context import WorkloadContext, controller_of, key_of, number
from shoal.local.builtin.rollout import part_of

FORGOTTEN = 120.0
_SCALED = (kinds.REPLICA_SET, kinds.REPLICATION_CONTROLLER, kinds.STATEFUL_SET, kinds.DEPLOYMENT)


class DisruptionController:
    def __init__(self, context: WorkloadContext) -> None:
        self._context = context
        self._budgets = context.cache(kinds.POD_DISRUPTION_BUDGET)
        self.controller: Controller[Key] = Controller("disruption", self.reconcile, workers=2, clock=context.clock)

    async def run(self) -> None:
        self._budgets.subscribe(lambda change: self.controller.enqueue(change.key))
        self._context.pods.subscribe(self._on_pod)
        for kind in _SCALED:
            self._context.cache(kind).subscribe(self._on_scaled)
        await self._context.caches.ready.wait()
        await self.controller.run()

    def _on_pod(self, change: Change) -> None:
        for budget in self._budgets.by_index("namespace", change.key.namespace):
            if any(pod is not None and _protects(budget, pod) for pod in (change.old, change.new)):
                self.controller.enqueue(key_of(budget))

    def _on_scaled(self, change: Change) -> None:
        before, after = ((one or {}).get("spec", {}).get("replicas") for one in (change.old, change.new))
        if before != after:
            for budget in self._budgets.by_index("namespace", change.key.namespace):
                self.controller.enqueue(key_of(budget))

    async def reconcile(self, key: Key) -> float | None:
        budget = self._budgets.get(key)
        if budget is None or pods.is_deleting(budget):
            return None
        protected = [pod for pod in self._context.pods.by_index("namespace", key.namespace) if _protects(budget, pod)]
        expected, wanted = self._expected(budget, protected)
        leaving, again = self._leaving(budget, protected)
        healthy = sum(
            pods.is_ready(pod) and not pods.is_deleting(pod) and pod["metadata"]["name"] not in leaving
            for pod in protected
        )
        allowed = max(0, healthy - wanted) if expected else 0
        held = budget.get("status") or {}
        gone = dict.fromkeys(set(held.get("disruptedPods") or ()) - set(leaving))
        change: Json = {
            "observedGeneration": budget["metadata"]["generation"],
            "expectedPods": expected,
            "desiredHealthy": wanted,
            "currentHealthy": healthy,
            "disruptionsAllowed": allowed,
            "disruptedPods": {**gone, **leaving} or None,
            "conditions": [self._condition(budget, allowed > 0)],
        }
        await self._context.patch(kinds.POD_DISRUPTION_BUDGET, budget, {"status": change}, status=True)
        return again

    def _expected(self, budget: Json, protected: list[Json]) -> tuple[int, int]:
        """How many pods there should be, and how many of them must be healthy."""
        spec = budget.get("spec") or {}
        least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
        if most is None and isinstance(least, int):
            return len(protected), least
        scales: dict[str, int] = {}
        for pod in protected:
            owner = controller_of(pod)
            scales[owner["uid"] if owner else pod["metadata"]["uid"]] = self._scale(pod, owner)
        expected = sum(scales.values())
        if most is not None:
            return expected, max(0, expected - part_of(most, expected, up=True))
        return expected, part_of(least if least is not None else 1, expected, up=True)

    def _scale(self, pod: Json, owner: Json | None) -> int:
        """The number of pods that the owner of a pod wants; one, where no owner says."""
        while owner is not None:
            kind = _scaled_kind(owner)
            found = self._context.cache(kind).get(Key(pod["metadata"]["namespace"], owner["name"])) if kind else None
            if found is None:
                break
            above = controller_of(found)
            if above is None:
                return number(found["spec"].get("replicas"), 1)
            owner = above
        return 1

    def _leaving(self, budget: Json, protected: list[Json]) -> tuple[dict[str, str], float | None]:
        """Pods whose eviction was allowed and which are still here, and when the first of them is forgotten."""
        there = {pod["metadata"]["name"] for pod in protected if not pods.is_deleting(pod)}
        now, kept, waits = self._context.clock.now(), {}, []
        for name, moment in ((budget.get("status") or {}).get("disruptedPods") or {}).items():
            left = FORGOTTEN - (now - parse_time(moment)) / 1_000_000
            if name in there and left > 0:
                kept[name] = moment
                waits.append(left)
        return kept, min(waits, default=None)

    def _condition(self, budget: Json, allowed: bool) -> Json:
        held = pods.condition(budget, "DisruptionAllowed")
        status = str(allowed)
        same = held is not None and held.get("status") == status
        since = held["lastTransitionTime"] if held is not None and same else self._context.now()
        return {
            "type": "DisruptionAllowed",
            "status": status,
            "reason": "SufficientPods" if allowed else "InsufficientPods",
            "message": "",
            "lastTransitionTime": since,
            "observedGeneration": budget["metadata"]["generation"],
        }


def _protects(budget: Json, pod: Json) -> bool:
    selector = (budget.get("spec") or {}).get("selector")
    return selector is not None and label_selector(selector)(pod["metadata"].get("labels") or {})


def _scaled_kind(owner: Json) -> Kind | None:
    named = (owner["apiVersion"], owner["kind"])
    return next((kind for kind in _SCALED if (kind.api_version, kind.kind) == named), None)
