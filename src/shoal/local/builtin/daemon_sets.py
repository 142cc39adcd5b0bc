"""DaemonSets: one pod on every node that it may run on.

The pod is bound to its node when it is made: the node is chosen by what a DaemonSet is, not by a scheduler.
"""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.labels import (
    NODE_DISK_PRESSURE,
    NODE_MEMORY_PRESSURE,
    NODE_NOT_READY,
    NODE_PID_PRESSURE,
    NODE_UNREACHABLE,
    NODE_UNSCHEDULABLE,
)
from shoal.api.meta import Json
from shoal.kube.cache import Change
from shoal.kube.errors import AlreadyExists
from shoal.kube.runtime import Controller
from shoal.local.builtin import pods, revisions
from shoal.local.builtin.context import WorkloadContext, run_sets
from shoal.local.builtin.deployments import template_hash

REVISION = revisions.HASH
_TOLERATED = (
    (NODE_NOT_READY, "NoExecute"),
    (NODE_UNREACHABLE, "NoExecute"),
    (NODE_DISK_PRESSURE, "NoSchedule"),
    (NODE_MEMORY_PRESSURE, "NoSchedule"),
    (NODE_PID_PRESSURE, "NoSchedule"),
    (NODE_UNSCHEDULABLE, "NoSchedule"),
)


class DaemonSetController:
    def __init__(self, context: WorkloadContext) -> None:
        self._context = context
        self._sets = context.cache(kinds.DAEMON_SET)
        self._nodes = context.cache(kinds.NODE)
        self._kept: dict[str, str] = {}  # by UID: the template whose revision is stored
        self.controller: Controller[Key] = Controller("daemonsets", self.reconcile, workers=2, clock=context.clock)

    async def run(self) -> None:
        self._nodes.subscribe(self._on_node)
        self._sets.subscribe(self._on_own)
        await run_sets(self._context, self.controller, kinds.DAEMON_SET, self._sets, pods.matches)

    def _on_own(self, change: Change) -> None:
        if change.kind == "removed":
            self._kept.pop(change.old["metadata"]["uid"], None)

    def _on_node(self, change: Change) -> None:
        if change.kind == "changed" and _place(change.old) == _place(change.new):
            return
        for key in self._sets:
            self.controller.enqueue(key)

    async def reconcile(self, key: Key) -> float | None:
        owner = self._sets.get(key)
        if owner is None:
            return None
        revision = template_hash(owner["spec"].get("template") or {})
        mine: dict[str, list[Json]] = {}
        for pod in await pods.claim(self._context, kinds.DAEMON_SET, owner):
            mine.setdefault(str((pod.get("spec") or {}).get("nodeName") or ""), []).append(pod)
        fitting = [node["metadata"]["name"] for node in self._nodes.list() if fits(owner, node)]
        if not pods.is_deleting(owner):
            if self._kept.get(owner["metadata"]["uid"]) != revision:
                await revisions.keep(self._context, kinds.DAEMON_SET, owner, revision)
                self._kept[owner["metadata"]["uid"]] = revision
            await self._fill(owner, mine, fitting, revision)
            await self._exchange(owner, mine, fitting, revision)
        await self._publish(owner, fitting, revision)
        return None

    async def _fill(self, owner: Json, mine: dict[str, list[Json]], fitting: list[str], revision: str) -> None:
        doomed = [pod for node, found in mine.items() for pod in found
                  if not pods.is_deleting(pod) and (node not in fitting or pods.is_terminal(pod))]  # fmt: skip
        for node in fitting:
            active = sorted(filter(pods.is_active, mine.get(node, ())), key=pods.least_wanted)
            doomed += active[:-1]
        await self._context.delete_pods(owner, doomed)
        bodies = [self._body(owner, node, revision) for node in fitting if not mine.get(node)]
        try:
            await self._context.create_pods(owner, bodies)
        except AlreadyExists:
            return

    def _body(self, owner: Json, node: str, revision: str) -> Json:
        name = self._context.fresh(f"{owner['metadata']['name']}-")
        body = pods.from_template(kinds.DAEMON_SET, owner, owner["spec"].get("template") or {}, name)
        body["metadata"]["labels"][REVISION] = revision
        spec = body["spec"]
        spec["nodeName"] = node
        known = {(t.get("key"), t.get("effect")) for t in spec.get("tolerations") or ()}
        more = [{"key": key, "operator": "Exists", "effect": effect}
                for key, effect in _TOLERATED if (key, effect) not in known]  # fmt: skip
        spec["tolerations"] = [*(spec.get("tolerations") or ()), *more]
        return body

    async def _exchange(self, owner: Json, mine: dict[str, list[Json]], fitting: list[str], revision: str) -> None:
        """Replace old pods, a few at a time: while some are missing, no more are taken away."""
        strategy = owner["spec"].get("updateStrategy") or {}
        if strategy.get("type") == "OnDelete":
            return
        most = (strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1)
        allowed = most if isinstance(most, int) else max(1, -(-len(fitting) * int(str(most).rstrip("%") or 0) // 100))
        current = [pod for node in fitting for pod in mine.get(node, ()) if pods.is_active(pod)]
        missing = len(fitting) - sum(map(pods.is_ready, current))
        old = [pod for pod in current if (pod["metadata"].get("labels") or {}).get(REVISION) != revision]
        old.sort(key=lambda pod: (pods.is_ready(pod), pod["metadata"]["name"]))
        broken = [pod for pod in old if not pods.is_ready(pod)]
        room = max(0, allowed - missing)
        await self._context.delete_pods(owner, [*broken, *old[len(broken) : len(broken) + room]])

    async def _publish(self, owner: Json, fitting: list[str], revision: str) -> None:
        active = [pod for pod in self._context.owned_pods(owner) if pods.is_active(pod)]
        there = [pod for pod in active if pod["spec"].get("nodeName") in fitting]
        ready = sum(map(pods.is_ready, there))
        updated = sum((pod["metadata"].get("labels") or {}).get(REVISION) == revision for pod in there)
        status = {
            "observedGeneration": owner["metadata"]["generation"], "desiredNumberScheduled": len(fitting),
            "currentNumberScheduled": len({pod["spec"]["nodeName"] for pod in there}),
            "numberMisscheduled": len(active) - len(there), "numberReady": ready, "numberAvailable": ready or None,
            "numberUnavailable": len(fitting) - ready or None, "updatedNumberScheduled": updated or None,
        }  # fmt: skip
        await self._context.patch(kinds.DAEMON_SET, owner, {"status": status}, status=True)


def fits(owner: Json, node: Json) -> bool:
    """Whether a node is one of those that the set means: by name, labels and taints."""
    spec = ((owner["spec"].get("template") or {}).get("spec")) or {}
    labels = node["metadata"].get("labels") or {}
    if not (spec.get("nodeSelector") or {}).items() <= labels.items() or pods.is_deleting(node):
        return False
    tolerations = [
        *(spec.get("tolerations") or ()),
        *({"key": k, "operator": "Exists", "effect": e} for k, e in _TOLERATED),
    ]
    for taint in (node.get("spec") or {}).get("taints") or ():
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not any(_tolerates(t, taint) for t in tolerations):
            return False
    return True


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint.get("key"):
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")


def _place(node: Json) -> tuple[object, ...]:
    spec = node.get("spec") or {}
    return (node["metadata"].get("labels"), spec.get("taints"), spec.get("unschedulable"), pods.is_deleting(node))
