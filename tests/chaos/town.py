"""A small cluster on a virtual clock: an API server in a dictionary, and the people who live on it.

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
from shoal.kube.transport import Request, Response
from tests.checker.gang_world import Change, gang_of, over, requests_of, sums, usable
from tests.memory_server import MemoryServer, _Place, _Record

KUBELET = "town/kubelet"
SERVED = {
    "v1": (("pods", "Pod"), ("configmaps", "ConfigMap")),
    "batch/v1": (("jobs", "Job"),),
    "workload.codeflare.dev/v1beta1": (("appwrappers", "AppWrapper"), ("appwrappers/status", "AppWrapper")),
}
KEPT = ("pods", "configmaps", "jobs", "appwrappers", "quotasubtrees", "nodes")


class Town(MemoryServer):
    def __init__(self, clock: VirtualClock, seed: int) -> None:
        super().__init__(clock=clock)
        self.random = Random(seed)
        self.changes: list[Change] = []
        self._number = 0
        self._since: dict[str, int] = {}
        self._delays: dict[str, float] = {}

    # --- as a server

    def handle(self, request: Request) -> Response:
        parts = request.path.strip("/").split("/")
        if request.method == "GET" and len(parts) == (2 if parts[0] == "api" else 3):
            version = "/".join(parts[1:])
            listed = [{"name": name, "kind": kind, "namespaced": True} for name, kind in SERVED.get(version, ())]
            return Response(200, {}, msgspec.json.encode({"groupVersion": version, "resources": listed}))
        return super().handle(request)

    def _create(self, place: _Place, body: Json) -> Json:
        if place.collection == "api/v1/pods" and not place.subresource:
            body["metadata"]["finalizers"] = [KUBELET]  # a pod ends when its kubelet says so
        made = super()._create(place, body)
        return made

    def _store(self, place: _Place, obj: Json, *, fresh: bool = False) -> Json:
        if fresh:
            self._number += 1
            obj["metadata"]["uid"] = f"{self.random.getrandbits(32):08x}-{self._number:06}"
        return super()._store(place, self._copy(obj), fresh=fresh)

    def _tell(self, record: _Record) -> None:
        plural = record.collection.rsplit("/", 1)[-1]
        if plural in KEPT:
            self.changes.append(Change(record.revision, plural, record.old, record.new, self.clock.now()))
        super()._tell(record)

    # --- as a user, by name

    def ask(self, method: str, kind: Kind, name: str = "", body: Any = None, subresource: str | None = None) -> Json:
        namespace = "default" if kind.namespaced else None
        headers = {"content-type": "application/merge-patch+json"} if method == "PATCH" else {}
        data = msgspec.json.encode(body) if body is not None else b""
        path = kind.path(namespace, name or None, subresource)
        answer = self.handle(Request(method=method, path=path, query={}, headers=headers, body=data))
        found: Json = msgspec.json.decode(answer.body)
        return found

    def names(self, kind: Kind) -> list[str]:
        return sorted(obj["metadata"]["name"] for obj in self.ask("GET", kind)["items"])

    def objects(self, kind: Kind) -> list[Json]:
        found: list[Json] = self.ask("GET", kind)["items"]
        return found

    def add_node(self, name: str, cpu: int, pods: int = 20) -> None:
        sizes = {"cpu": str(cpu), "memory": "64Gi", "pods": str(pods)}
        status = {"allocatable": sizes, "capacity": sizes, "conditions": [{"type": "Ready", "status": "True"}]}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}, "status": status}
        self.ask("POST", kinds.NODE, body=node)

    # --- as the people who live here

    def tick(self) -> None:
        """One look at everything."""
        known = {obj["metadata"]["uid"] for obj in self.objects(kinds.APP_WRAPPER)}
        for kind in (kinds.POD, kinds.CONFIG_MAP):
            for obj in self.objects(kind):
                references = obj["metadata"].get("ownerReferences") or ()
                orphaned = references and not any(one["uid"] in known for one in references)
                if orphaned and not obj["metadata"].get("deletionTimestamp") and self._after(obj, "collected", 2.0):
                    self.ask("DELETE", kind, obj["metadata"]["name"], {})
        for pod in self.objects(kinds.POD):
            self._kubelet(pod)
        self._bind()

    def _kubelet(self, pod: Json) -> None:
        name, phase = pod["metadata"]["name"], pod.get("status", {}).get("phase", "Pending")
        nodes = {node["metadata"]["name"] for node in self.objects(kinds.NODE)}
        bound = pod["spec"].get("nodeName")
        if bound and bound not in nodes:  # as the pod garbage collector does
            if not pod["metadata"].get("deletionTimestamp"):
                self.ask("DELETE", kinds.POD, name, {})
            self.ask("PATCH", kinds.POD, name, {"metadata": {"finalizers": None}})
        elif pod["metadata"].get("deletionTimestamp"):
            if not bound or self._after(pod, "ends", 8.0):
                self.ask("PATCH", kinds.POD, name, {"metadata": {"finalizers": None}})
        elif bound and phase == "Pending" and self._after(pod, "starts", 6.0):
            self.ask("PATCH", kinds.POD, name, {"status": {"phase": "Running"}}, "status")
        elif phase == "Running":
            fate = (pod["metadata"].get("labels") or {}).get("fate")
            if fate and self._after(pod, "runs", 40.0):
                self.ask("PATCH", kinds.POD, name, {"status": {"phase": fate}}, "status")

    def _after(self, obj: Json, what: str, longest: float) -> bool:
        """True once a random time since the first asking has passed."""
        key = f"{obj['metadata']['uid']}/{what}"
        since = self._since.setdefault(key, self.clock.now())
        delay = self._delays.setdefault(key, self.random.uniform(0.0, longest))
        return self.clock.now() - since >= delay * 1_000_000

    def _bind(self) -> None:
        """As the gang scheduler: the pods of a gang are bound whole or not at all, tightest node first."""
        free = {
            node["metadata"]["name"]: sums(node["status"]["allocatable"])
            for node in self.objects(kinds.NODE)
            if usable(node)
        }
        waiting: dict[str, list[Json]] = {}
        for pod in self.objects(kinds.POD):
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
                self.ask("POST", kinds.POD, pod["metadata"]["name"], {"target": {"name": node}}, "binding")


def _take(room: dict[str, int], pod: Json) -> None:
    for name, value in {**requests_of(pod), "pods": 1}.items():
        room[name] = room.get(name, 0) - value
