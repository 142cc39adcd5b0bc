"""A small cluster on a virtual clock: the embedded API server in memory, and the people who live on it.

Garbage collector, pod scheduler and kubelet act once per `tick`, without faults of their own; every revision is kept
with its time, so that a checker can replay it. The same seed gives the same names, UIDs and delays.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.kube.clock import VirtualClock
from shoal.kube.transport import Request
from tests.checker.gang_world import Change, gang_of, over, requests_of, sums, usable
from tests.cluster import rendered_crds
from tests.embedded import Embedded

KEPT = (kinds.POD, kinds.CONFIG_MAP, kinds.JOB, kinds.APP_WRAPPER, kinds.QUOTA_SUBTREE, kinds.NODE)
AT_ONCE = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}


class Town(Embedded):
    def __init__(self, clock: VirtualClock, seed: int) -> None:
        super().__init__(clock, Random(seed))
        self.random = Random(seed)
        self.changes: list[Change] = []
        self._since: dict[str, int] = {}
        self._delays: dict[str, float] = {}

    async def start(self, *namespaces: str) -> Town:
        await super().start(*namespaces)
        for crd in rendered_crds():
            await self.server.transport().send(Request(method="POST", path=kinds.CRD.path(), body=crd))
        for kind in KEPT:
            self._keep(kind)
        return self

    def _keep(self, kind: Kind) -> None:
        last: dict[str, Json] = {}

        def changed(what: str, obj: Json) -> None:
            old = last.pop(obj["metadata"]["uid"], None)
            revision = int(obj["metadata"]["resourceVersion"])
            if what == "DELETED":
                self.changes.append(Change(revision, kind.plural, obj, None, self.clock.now()))
            else:
                last[obj["metadata"]["uid"]] = obj
                self.changes.append(Change(revision, kind.plural, old, obj, self.clock.now()))

        self.on_change(kind, changed)

    @property
    def revision(self) -> int:
        return self.server.storage.committed

    # --- as a user, by name

    async def ask(
        self, method: str, kind: Kind, name: str = "", body: Any = None, subresource: str | None = None
    ) -> Json:
        """What is not there, or there already, is no news to anybody here; whatever else is refused is a mistake."""
        namespace = "default" if kind.namespaced else None
        headers = {"content-type": "application/merge-patch+json" if method == "PATCH" else "application/json"}
        data = msgspec.json.encode(body) if body is not None else b""
        path = kind.path(namespace, name or None, subresource)
        answer = await self.server.transport().send(Request(method=method, path=path, headers=headers, body=data))
        assert answer.status < 300 or answer.status in (404, 409), answer.body
        found: Json = msgspec.json.decode(answer.body)
        return found

    async def names(self, kind: Kind) -> list[str]:
        return sorted(obj["metadata"]["name"] for obj in await self.objects(kind))

    async def objects(self, kind: Kind) -> list[Json]:
        found: list[Json] = (await self.ask("GET", kind))["items"]
        return found

    async def add_node(self, name: str, cpu: int, pods: int = 20) -> None:
        sizes = {"cpu": str(cpu), "memory": "64Gi", "pods": str(pods)}
        status = {"allocatable": sizes, "capacity": sizes, "conditions": [{"type": "Ready", "status": "True"}]}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}, "status": status}
        await self.ask("POST", kinds.NODE, body=node)

    # --- as the people who live here

    async def tick(self) -> None:
        """One look at everything."""
        known = {obj["metadata"]["uid"] for obj in await self.objects(kinds.APP_WRAPPER)}
        for kind in (kinds.POD, kinds.CONFIG_MAP):
            for obj in await self.objects(kind):
                references = obj["metadata"].get("ownerReferences") or ()
                orphaned = references and not any(one["uid"] in known for one in references)
                if orphaned and not obj["metadata"].get("deletionTimestamp") and self._after(obj, "collected", 2.0):
                    await self.ask("DELETE", kind, obj["metadata"]["name"], {})
        for pod in await self.objects(kinds.POD):
            await self._kubelet(pod)
        await self._bind()

    async def _kubelet(self, pod: Json) -> None:
        name, phase = pod["metadata"]["name"], pod.get("status", {}).get("phase", "Pending")
        nodes = {node["metadata"]["name"] for node in await self.objects(kinds.NODE)}
        bound = pod["spec"].get("nodeName")
        if bound and bound not in nodes:  # as the pod garbage collector does
            await self.ask("DELETE", kinds.POD, name, AT_ONCE)
        elif pod["metadata"].get("deletionTimestamp"):
            if self._after(pod, "ends", 8.0):
                await self.ask("DELETE", kinds.POD, name, AT_ONCE)
        elif bound and phase == "Pending" and self._after(pod, "starts", 6.0):
            await self.ask("PATCH", kinds.POD, name, {"status": {"phase": "Running"}}, "status")
        elif phase == "Running":
            fate = (pod["metadata"].get("labels") or {}).get("fate")
            if fate and self._after(pod, "runs", 40.0):
                await self.ask("PATCH", kinds.POD, name, {"status": {"phase": fate}}, "status")

    def _after(self, obj: Json, what: str, longest: float) -> bool:
        """True once a random time since the first asking has passed."""
        key = f"{obj['metadata']['uid']}/{what}"
        since = self._since.setdefault(key, self.clock.now())
        delay = self._delays.setdefault(key, self.random.uniform(0.0, longest))
        return self.clock.now() - since >= delay * 1_000_000

    async def _bind(self) -> None:
        """As the gang scheduler: the pods of a gang are bound whole or not at all, tightest node first."""
        free = {
            node["metadata"]["name"]: sums(node["status"]["allocatable"])
            for node in await self.objects(kinds.NODE)
            if usable(node)
        }
        waiting: dict[str, list[Json]] = {}
        for pod in await self.objects(kinds.POD):
            if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                continue
            node = pod["spec"].get("nodeName")
            if node in free:
                _take(free[node], pod)
            elif not node and not pod["metadata"].get("deletionTimestamp"):
                waiting.setdefault(gang_of(pod), []).append(pod)
        for pods in waiting.values():
            left = {name: dict(room) for name, room in free.items()}
            chosen: list[tuple[Json, str]] = []
            for pod in sorted(pods, key=lambda one: -requests_of(one).get("cpu", 0)):
                asks = {**requests_of(pod), "pods": 1}
                fitting = [name for name, room in left.items() if not over(asks, room, set(asks))]
                if not fitting:
                    break
                node = min(fitting, key=lambda name: (left[name].get("cpu", 0), name))
                _take(left[node], pod)
                chosen.append((pod, node))
            if len(chosen) < len(pods):
                continue
            free = left
            for pod, node in chosen:
                await self.ask("POST", kinds.POD, pod["metadata"]["name"], _binding(node), "binding")


def _take(room: dict[str, int], pod: Json) -> None:
    for name, value in {**requests_of(pod), "pods": 1}.items():
        room[name] = room.get(name, 0) - value


def _binding(node: str) -> Json:
    return {"apiVersion": "v1", "kind": "Binding", "target": {"apiVersion": "v1", "kind": "Node", "name": node}}
