"""Plays a trace against the operator: scripted steps over an in-memory API server, and what is seen of it then.

Pods, submitters and dashboards do only what the script says; owners that are gone take what they own with them, as
garbage collection would; time stands still but for what the script shifts. Used by the runner and by the unit tests.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import lru_cache
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.crds import load_crds
from shoal.api.kind import Kind
from shoal.api.times import parse_time, seconds_text
from shoal.controllers.ray import Operator, RaySettings, names, view
from shoal.kube.client import Client
from shoal.kube.errors import NotFound
from shoal.kube.history import History, RecordingTransport
from tests.conformance.kuberay_doubles import QuotaTransport, ScriptedDashboard, SilentServe, StillClock
from tests.conformance.kuberay_observed import cluster_seen, job_seen
from tests.conformance.kuberay_projection import defaulted
from tests.embedded import Embedded

Json = dict[str, Any]

COUNTED = (
    kinds.POD,
    kinds.SERVICE,
    kinds.JOB,
    kinds.SECRET,
    kinds.SERVICE_ACCOUNT,
    kinds.ROLE,
    kinds.ROLE_BINDING,
    kinds.INGRESS,
    kinds.PERSISTENT_VOLUME_CLAIM,
    kinds.RAY_CLUSTER,
    kinds.RAY_JOB,
    kinds.RAY,
    kinds.CONFIG_MAP,
    kinds.NETWORK_POLICY,
)


@lru_cache
def _ray_crds() -> list[bytes]:
    groups = ("ray.io", "ray.k8s.io", "scheduling.x-k8s.io")
    return [msgspec.json.encode(crd) for crd in load_crds() if crd["spec"]["group"] in groups]


class Stage:
    """The operator on its in-memory server, and the steps a script may take."""

    counted: tuple[Kind, ...] = COUNTED

    def __init__(self, settings: RaySettings, *, status_delay: float = 0.0) -> None:
        self.clock = StillClock()
        self.server = Embedded(self.clock)
        self.transport = QuotaTransport(self.server.transport())
        self.client = Client(self.transport)
        self._collector = Client(self.server.transport())
        self.dashboard = ScriptedDashboard()
        quick = msgspec.structs.replace(settings, status_delay=status_delay, cluster_lost_grace=0.0)
        self.history = History()
        recorded = RecordingTransport(self.transport, self.history, clock=self.clock)
        self.operator = Operator(Client(recorded), quick, self.clock, self.dashboard, serve=SilentServe())
        self.seen_events: Counter[str] = Counter()
        self._servers_own: set[str] = set()
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.server.start(definitions=_ray_crds())
        self._servers_own = {view.uid(obj) for kind in self.counted for obj in self.server.snapshot(kind).values()}
        self.tasks = [asyncio.create_task(cache.run()) for cache in self.operator.caches.all()]
        await self.operator.caches.synced()
        for controller in self.operator.controllers:
            self.tasks.append(asyncio.create_task(controller.run()))

    async def stop(self) -> None:
        for recorder in self.operator.recorders.values():
            await recorder.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.server.stop()

    async def settle(self) -> None:
        quiet = 0
        for _ in range(200):
            before = self._revision()
            await self._quiet_caches()
            for controller, cache in self.operator.watched:
                for key in list(cache):
                    controller.enqueue(key)
            for controller in self.operator.controllers:
                await controller.until_idle()
            await self.operator.poller.poll_once()
            await asyncio.sleep(0)
            for controller in self.operator.controllers:
                await controller.until_idle()
            await self._collect_garbage()
            quiet = quiet + 1 if before == self._revision() else 0
            if quiet >= 3:
                for recorder in self.operator.recorders.values():
                    await recorder.flush()
                return
        raise AssertionError("the trace never settles")

    def _revision(self) -> int:
        """Changes that matter; events come and go."""
        return sum(sum(self.server.revisions(kind)) for kind in self.counted)

    async def _quiet_caches(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    def objects(self, kind: Kind) -> list[Json]:
        """All but what a server has of its own, such as the Service that leads to itself."""
        return [obj for obj in self.server.snapshot(kind).values() if view.uid(obj) not in self._servers_own]

    async def _collect_garbage(self) -> None:
        there = [(kind, obj) for kind in self.counted for obj in self.objects(kind)]
        alive = {view.uid(obj) for _, obj in there}
        collected = {kind.kind for kind in self.counted}
        for kind, obj in there:
            owners = [one for one in view.metadata(obj).get("ownerReferences") or [] if one["kind"] in collected]
            if owners and not any(owner["uid"] in alive for owner in owners) and not view.deleting(obj):
                await self._collector.delete(kind, view.name(obj), view.namespace(obj), propagation="Background")

    # --- steps

    async def play(self, step: Json) -> Json | None:
        match step["do"]:
            case "createCluster":
                await self.client.create(kinds.RAY_CLUSTER, defaulted(step["object"]), "default")
            case "createJob":
                await self.client.create(kinds.RAY_JOB, defaulted(step["object"]), "default")
            case "patchCluster":
                await self.client.patch(kinds.RAY_CLUSTER, step["name"], "default", step["patch"])
            case "patchJob":
                await self.client.patch(kinds.RAY_JOB, step["name"], "default", step["patch"])
            case "deleteObject":
                kind = next(kind for kind in COUNTED if kind.kind == step["kind"])
                await self.client.delete(kind, step["name"], "default")
            case "deleteClusterOf":
                job = await self.client.get(kinds.RAY_JOB, step["name"], "default")
                await self.client.delete(kinds.RAY_CLUSTER, job["status"]["rayClusterName"], "default")
            case "setPods":
                await self._set_pods(step)
            case "workersToDelete":
                await self._name_workers(step)
            case "dupHead":
                await self._second_head()
            case "quota":
                self.transport.deny = step["deny"]
            case "setSubmitter":
                await self._set_submitter(step)
            case "dashboard":
                self.dashboard.info = {key: self._moment(value) for key, value in step["info"].items()}
            case "shift":
                await self._shift(step)
            case "settle":
                await self.settle()
            case "observe":
                return await self._observe(step)
            case other:
                raise AssertionError(f"unknown step {other}")
        return None

    def _moment(self, value: Any) -> Any:
        if isinstance(value, dict) and "nowOffsetMs" in value:
            return self.clock.now() // 1000 + value["nowOffsetMs"]
        return value

    async def _set_pods(self, step: Json) -> None:
        chosen = [
            pod
            for pod in sorted(self.objects(kinds.POD), key=_in_order)
            if all(view.labels(pod).get(key) == value for key, value in (step.get("match") or {}).items())
        ]
        for pod in chosen[: step.get("count") or len(chosen)]:
            if step.get("delete"):
                await self.client.delete(kinds.POD, view.name(pod), view.namespace(pod))
                continue
            ready = "True" if step.get("ready") else "False"
            condition = {"type": "Ready", "status": ready}
            for field in ("reason", "message"):
                said = step.get(f"ready{field.title()}") or step.get(field)
                if said:
                    condition[field] = said
            status: Json = {"phase": step["phase"], "conditions": [condition]}
            for copied in ("containerStatuses", "initContainerStatuses", "conditions", "podIP", "reason", "message"):
                if copied in step:
                    status[copied] = step[copied]
            await self.client.patch(
                kinds.POD, view.name(pod), view.namespace(pod), {"status": status}, subresource="status"
            )

    async def _name_workers(self, step: Json) -> None:
        cluster = await self.client.get(kinds.RAY_CLUSTER, step["name"], "default")
        group = cluster["spec"]["workerGroupSpecs"][step["groupIndex"]]
        members = [pod for pod in self.objects(kinds.POD) if view.labels(pod).get(names.GROUP) == group["groupName"]]
        members.sort(key=lambda pod: int(view.labels(pod)[names.REPLICA_INDEX]))
        chosen = step.get("names") or [view.name(pod) for pod in members[: step.get("count", 0)]]
        group["scaleStrategy"] = {"workersToDelete": chosen}
        if "replicas" in step:
            group["replicas"] = step["replicas"]
        change = {"spec": {"workerGroupSpecs": cluster["spec"]["workerGroupSpecs"]}}
        await self.client.patch(kinds.RAY_CLUSTER, step["name"], "default", change)

    async def _second_head(self) -> None:
        head = next(pod for pod in self.objects(kinds.POD) if view.labels(pod).get(names.NODE_TYPE) == names.HEAD)
        status = head.pop("status", {})
        head["metadata"] = {
            **{key: head["metadata"][key] for key in ("labels", "annotations", "ownerReferences", "namespace")},
            "name": view.name(head) + "-two",
        }
        await self.client.create(kinds.POD, head, "default")
        await self.client.patch(kinds.POD, view.name(head), "default", {"status": status}, subresource="status")

    async def _set_submitter(self, step: Json) -> None:
        at = seconds_text(self.clock.now() - int(step.get("ageSeconds") or 0) * 1_000_000)
        condition = {"type": step["condition"], "status": "True", "lastTransitionTime": at}
        await self.client.patch(
            kinds.JOB, step["name"], "default", {"status": {"conditions": [condition]}}, subresource="status"
        )

    async def _shift(self, step: Json) -> None:
        job = await self.client.get(kinds.RAY_JOB, step["name"], "default")
        earlier = {
            field: seconds_text(parse_time(job["status"][field]) - step["seconds"] * 1_000_000)
            for field in step["fields"]
            if job["status"].get(field)
        }
        await self.client.patch(kinds.RAY_JOB, step["name"], "default", {"status": earlier}, subresource="status")

    # --- observing

    async def _observe(self, step: Json) -> Json:
        kind = kinds.RAY_JOB if step["kind"] == "RayJob" else kinds.RAY_CLUSTER
        counts = {kind.kind: len(self.objects(kind)) for kind in COUNTED if self.objects(kind)}
        built: Json = {"at": step["as"], "exists": True, "objectCounts": counts, "events": self._new_events()}
        try:
            found = await self.client.get(kind, step["name"], "default")
        except NotFound:
            found = None
            built["exists"] = False
        if found is not None and view.metadata(found).get("finalizers"):
            built["finalizers"] = found["metadata"]["finalizers"]
        if kind is kinds.RAY_CLUSTER:
            built.update(cluster_seen(found, self.objects(kinds.POD)))
        else:
            built.update(httpSubmitted=self.dashboard.submitted, stopCalled=self.dashboard.stopped)
            built.update(job_seen(found, self.objects(kinds.RAY_CLUSTER), self.objects(kinds.JOB)))
        return built

    def _new_events(self) -> list[str]:
        fresh = set()
        for event in self.objects(kinds.EVENT):
            text = f"{event['type']} {event['reason']}"
            count = int(event.get("count") or 1)
            if count > self.seen_events[event["metadata"]["name"]]:
                fresh.add(text)
            self.seen_events[event["metadata"]["name"]] = count
        return sorted(fresh)


def _in_order(pod: Json) -> tuple[int, str, int, int, str]:
    """As they were made: the head, then each group by its indices."""
    labels = view.labels(pod)
    replica, host = (int(labels.get(name) or 0) for name in (names.REPLICA_INDEX, names.HOST_INDEX))
    is_worker = labels.get(names.NODE_TYPE) != names.HEAD
    return int(is_worker), labels.get(names.GROUP, ""), replica, host, view.name(pod)
