"""How much of a ResourceQuota is used, for people to read. The server itself refuses what would exceed it."""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.api.quantity import NANO, Quantity, parse
from shoal.errors import BadInput
from shoal.kube.cache import Change
from shoal.kube.runtime import Controller
from shoal.local.apiserver.limits import in_scope, is_counted, total
from shoal.local.builtin.workbench import Workbench, key_of

_COUNTED = ("configmaps", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas", "secrets", "services")


class Quotas:
    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._quotas = bench.cache(kinds.RESOURCE_QUOTA)
        self.controller: Controller[Key] = Controller("quotas", self.reconcile, workers=1, clock=bench.clock)

    async def run(self) -> None:
        self._quotas.subscribe(lambda change: self.controller.enqueue(change.key))
        self._bench.census.listen(self._on_change)
        await self._bench.census.ready.wait()
        await self.controller.run()

    def _on_change(self, kind: Kind, change: Change) -> None:
        """Only what comes, goes or ends changes what is used."""
        if change.kind == "changed" and (kind != kinds.POD or is_counted(change.old) == is_counted(change.new)):
            return
        for quota in self._quotas.by_index("namespace", change.key.namespace) if change.key.namespace else ():
            self.controller.enqueue(key_of(quota))

    async def reconcile(self, key: Key) -> float | None:
        quota = self._quotas.get(key)
        if quota is None:
            return None
        spec = quota.get("spec") or {}
        hard = spec.get("hard") or {}
        mine = [
            pod
            for pod in self._bench.pods.by_index("namespace", key.namespace)
            if is_counted(pod) and in_scope(pod, spec)
        ]
        amounts = total(mine)
        used = {name: self._used(name, key.namespace, amounts, str(limit)) for name, limit in hard.items()}
        held = quota.get("status") or {}
        gone = {name: None for name in {**(held.get("hard") or {}), **(held.get("used") or {})} if name not in hard}
        change: Json = {"status": {"hard": {**gone, **hard}, "used": {**gone, **used}}}
        await self._bench.patch(kinds.RESOURCE_QUOTA, quota, change, status=True)
        return None

    def _used(self, name: str, namespace: str, amounts: dict[str, int], limit: str) -> str:
        resource = name.removeprefix("count/")
        if resource != "pods" and (name.startswith("count/") or name in _COUNTED):
            return str(self._bench.census.count(resource, namespace))
        nano = amounts.get(name, 0)
        try:
            style = parse(limit).format
        except BadInput:
            style = "decimal"
        return str(Quantity(nano, style if nano % NANO == 0 else "decimal"))
