"""Plays traces of RayService and RayCronJob: pods, Serve, proxies, Gateway and clock do what the script says.

The controller of the kind under test is called pass by pass, so that a script can ask for exactly one; RayClusters are
run by their own controller as always.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.labels import SERVICE_NAME
from shoal.api.times import parse_time
from shoal.controllers.ray import Operator, RaySettings, names, view
from shoal.controllers.ray.pods import observed
from shoal.kube.client import Client
from shoal.kube.errors import NotFound
from shoal.kube.history import RecordingTransport
from tests.conformance import kuberay_traces
from tests.conformance.kuberay_traces import COUNTED, Stage
from tests.conformance.rayservice_doubles import ScriptedServe

Json = dict[str, Any]

SHOWN = (kinds.RAY_CLUSTER, kinds.POD, kinds.SERVICE, kinds.GATEWAY, kinds.HTTP_ROUTE)


def _gateway_definitions() -> list[bytes]:
    """As far as a route and its controller need them."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
    return [
        msgspec.json.encode(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {
                    "name": f"{kind.plural}.{kind.group}",
                    "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
                },
                "spec": {
                    "group": kind.group,
                    "scope": "Namespaced",
                    "names": {"plural": kind.plural, "kind": kind.kind, "singular": kind.kind.lower()},
                    "versions": [version],
                },
            }
        )
        for kind in (kinds.GATEWAY, kinds.HTTP_ROUTE)
    ]


class ServiceStage(Stage):
    counted = (*COUNTED, kinds.RAY_SERVICE, kinds.RAY_CRON_JOB, kinds.GATEWAY, kinds.HTTP_ROUTE)

    def __init__(self, settings: RaySettings) -> None:
        super().__init__(settings)
        self.scripted = ScriptedServe(self._head_is_ready)
        self._chosen = msgspec.structs.replace(settings, status_delay=0.0, cluster_lost_grace=0.0)
        self.operator = self._new_operator()
        self.known: list[str] = []
        self.gateway_ready = False
        self.told_submissions = 0

    def _new_operator(self) -> Operator:
        recorded = RecordingTransport(self.transport, self.history, clock=self.clock)
        made = Operator(Client(recorded), self._chosen, self.clock, self.dashboard, serve=self.scripted)
        for controller in made.controllers:
            if controller is not made.clusters:
                controller.enqueue = lambda *_: None  # called pass by pass instead
        return made

    async def start(self) -> None:
        await self.server.start(definitions=[*kuberay_traces._ray_crds(), *_gateway_definitions()])
        self._servers_own = {view.uid(obj) for kind in self.counted for obj in self.server.snapshot(kind).values()}
        await self._run_operator()

    async def _run_operator(self) -> None:
        caches = self.operator.caches
        self.tasks = [asyncio.create_task(cache.run()) for cache in caches.all()]
        await asyncio.gather(*(cache.synced.wait() for cache in caches.all()))
        self.tasks.append(asyncio.create_task(self.operator.clusters.run()))

    async def restart_operator(self) -> None:
        for recorder in self.operator.recorders.values():
            await recorder.flush()
            await recorder.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.operator = self._new_operator()
        await self._run_operator()

    # --- time

    async def settle(self) -> None:
        quiet = 0
        for _ in range(300):
            before = self._revision()
            await self._surroundings()
            await self.one_pass()
            await self._surroundings()
            quiet = quiet + 1 if before == self._revision() else 0
            if quiet >= 3:
                await self._flush()
                return
        raise AssertionError("the trace never settles")

    async def one_pass(self) -> None:
        """Exactly one pass of the controllers under test."""
        await self._quiet_caches()
        for controller, cache in (
            (self.operator.ray_services, self.operator.caches.ray_services),
            (self.operator.cron_jobs, self.operator.caches.cron_jobs),
        ):
            for key in list(cache):
                await controller._reconcile(key)
        self._note_clusters()

    async def _surroundings(self) -> None:
        await self._quiet_caches()
        for key in list(self.operator.caches.clusters):
            self.operator.clusters.enqueue(key)
        await self.operator.clusters.until_idle()
        await self._collect_garbage()
        await self._follow_endpoints()
        if self.gateway_ready:
            await self._run_gateways()
        await self._quiet_caches()

    async def _flush(self) -> None:
        for recorder in self.operator.recorders.values():
            await recorder.flush()

    # --- what stands around the operator

    def _head_is_ready(self, pod: str) -> bool:
        found = [one for one in self.objects(kinds.POD) if view.name(one) == pod]
        return bool(found) and observed.is_ready(found[0])

    def _note_clusters(self) -> None:
        fresh = [view.name(one) for one in self.objects(kinds.RAY_CLUSTER) if view.name(one) not in self.known]
        self.known += sorted(fresh)

    async def _follow_endpoints(self) -> None:
        """Every Service with a selector has the matching pods behind it."""
        wanted = {view.name(one): one for one in self.objects(kinds.SERVICE) if view.labels(one).get(names.SERVE)}
        held = {view.name(one): one for one in self.objects(kinds.ENDPOINT_SLICE)}
        for name, service in wanted.items():
            selector = service["spec"].get("selector") or {}
            endpoints = [
                {
                    "addresses": ["10.0.0.1"],
                    "conditions": {"ready": observed.is_ready(pod)},
                    "targetRef": {"kind": "Pod", "name": view.name(pod), "uid": view.uid(pod)},
                }
                for pod in self.objects(kinds.POD)
                if selector.items() <= view.labels(pod).items()
            ]
            if name not in held:
                body = {
                    "apiVersion": kinds.ENDPOINT_SLICE.api_version,
                    "kind": "EndpointSlice",
                    "metadata": {"name": name, "labels": {**view.labels(service), SERVICE_NAME: name}},
                    "addressType": "IPv4",
                    "endpoints": endpoints,
                    "ports": [],
                }
                await self._collector.create(kinds.ENDPOINT_SLICE, body, "default")
            elif (held[name].get("endpoints") or []) != endpoints:
                await self._collector.patch(kinds.ENDPOINT_SLICE, name, "default", {"endpoints": endpoints})
        for name in held.keys() - wanted.keys():
            await self._collector.delete(kinds.ENDPOINT_SLICE, name, "default")

    async def _run_gateways(self) -> None:
        for gateway in self.objects(kinds.GATEWAY):
            await self._set_status(kinds.GATEWAY, gateway, {"conditions": _true("Accepted", "Programmed")})
        for route in self.objects(kinds.HTTP_ROUTE):
            parent = {"parentRef": route["spec"]["parentRefs"][0], "conditions": _true("Accepted", "ResolvedRefs")}
            await self._set_status(kinds.HTTP_ROUTE, route, {"parents": [parent]})

    async def _set_status(self, kind: Kind, obj: Json, status: Json) -> None:
        if obj.get("status") != status:
            await self._collector.patch(kind, view.name(obj), "default", {"status": status}, subresource="status")

    # --- steps

    async def play(self, step: Json) -> Json | None:
        match step["do"]:
            case "createService":
                await self._create(kinds.RAY_SERVICE, step["object"])
            case "patchService":
                await self.client.patch(kinds.RAY_SERVICE, "svc1", "default", step["patch"])
            case "deleteService":
                await self.client.delete(kinds.RAY_SERVICE, "svc1", "default")
            case "patchCluster":
                await self._patch_cluster(step)
            case "deleteCluster":
                await self.client.delete(kinds.RAY_CLUSTER, await self._role(step["cluster"]), "default")
            case "setPods":
                await self._set_some_pods(step)
            case "serveAnswers":
                self.scripted.answers = step["status"]
            case "serve":
                self.scripted.reported[await self._role(step["cluster"])] = {
                    name: {"status": told} if isinstance(told, str) else told
                    for name, told in step["applications"].items()
                }
            case "proxy":
                self.scripted.proxies_healthy = step["healthy"]
            case "dashboard":
                self.scripted.all_down = bool(step["down"])
            case "gatewayController":
                self.gateway_ready = step["ready"]
            case "restartOperator":
                await self.restart_operator()
            case "passTime":
                self.clock.advance(step["seconds"])
            case "pass":
                await self._quiet_caches()
                await self.one_pass()
                await self._collect_garbage()
                await self._flush()
            case "setClock":
                self.clock.moment = parse_time(step["time"])
            case "createCronJob":
                await self._create(kinds.RAY_CRON_JOB, step["object"])
            case "patchCronJob":
                await self.client.patch(kinds.RAY_CRON_JOB, "cron1", "default", step["patch"])
            case "settle":
                await self.settle()
            case "observe":
                return await self._seen(step["as"])
            case other:
                raise AssertionError(f"unknown step {other}")
        return None

    async def _create(self, kind: Kind, obj: Json) -> None:
        await self.client.create(kind, obj, "default")

    async def _patch_cluster(self, step: Json) -> None:
        cluster = await self.client.get(kinds.RAY_CLUSTER, await self._role(step["cluster"]), "default")
        change: Json = {}
        if "suspend" in step:
            change["suspend"] = step["suspend"]
        if "replicas" in step:
            groups = cluster["spec"]["workerGroupSpecs"]
            change["workerGroupSpecs"] = [{**groups[0], "replicas": step["replicas"]}, *groups[1:]]
        await self.client.patch(kinds.RAY_CLUSTER, view.name(cluster), "default", {"spec": change})

    async def _set_some_pods(self, step: Json) -> None:
        match = {names.NODE_TYPE: step["nodeType"]} if "nodeType" in step else {}
        if "cluster" in step:
            match[names.CLUSTER] = await self._role(step["cluster"])
        await self._set_pods({"podIP": "10.0.0.1", **step, "match": match})

    async def _role(self, role: str) -> str:
        """The cluster that has this role now, or the one that was made as such."""
        if role[1:].isdigit():
            return self.known[int(role[1:]) - 1]
        service = await self.client.get(kinds.RAY_SERVICE, "svc1", "default")
        return str(service["status"][f"{role}ServiceStatus"]["rayClusterName"])

    # --- observing

    async def _seen(self, at: str) -> Json:
        self._note_clusters()
        events = self._events()
        cron = self.objects(kinds.RAY_CRON_JOB)
        if cron:
            jobs = sorted(self.objects(kinds.RAY_JOB), key=view.name)
            last = (cron[0].get("status") or {}).get("lastScheduleTime")
            return {"at": at, "events": events, "lastScheduleTime": last, "rayJobs": [_run(job) for job in jobs]}
        counts = {kind.kind: len(self.objects(kind)) for kind in SHOWN if self.objects(kind)}
        built: Json = {"at": at, "exists": True, "objectCounts": counts, "events": events}
        built["submissions"] = self._new_submissions()
        built["clusters"] = {self._short(view.name(one)): self._cluster(one) for one in self.objects(kinds.RAY_CLUSTER)}
        built["services"] = self._services()
        routes = self.objects(kinds.HTTP_ROUTE)
        if routes:
            backends = routes[0]["spec"]["rules"][0]["backendRefs"]
            built["routeWeights"] = {
                self._short(one["name"].removesuffix("-serve-svc")): one["weight"] for one in backends
            }
        try:
            service = await self.client.get(kinds.RAY_SERVICE, "svc1", "default")
        except NotFound:
            return {**built, "exists": False}
        if view.metadata(service).get("finalizers"):
            built["finalizers"] = service["metadata"]["finalizers"]
        return {**built, "status": self._status(service.get("status") or {})}

    def _events(self) -> list[str]:
        """Of the kinds under test only."""
        about = {view.name(one): one["involvedObject"]["kind"] for one in self.objects(kinds.EVENT)}
        fresh = set()
        for event in self.objects(kinds.EVENT):
            count, name = int(event.get("count") or 1), view.name(event)
            if count > self.seen_events[name] and about[name] in ("RayService", "RayCronJob"):
                fresh.add(f"{event['type']} {event['reason']}")
            self.seen_events[name] = count
        return sorted(fresh)

    def _new_submissions(self) -> list[Json]:
        fresh, self.told_submissions = (
            self.scripted.submissions[self.told_submissions :],
            len(self.scripted.submissions),
        )
        found: list[Json] = []
        for cluster, body in fresh:
            told = {"cluster": self._short(cluster), "body": body}
            if told not in found:
                found.append(told)
        return found

    def _short(self, cluster: str) -> str:
        return f"c{self.known.index(cluster) + 1}" if cluster in self.known else cluster

    def _cluster(self, cluster: Json) -> Json:
        heads = [
            pod
            for pod in self.objects(kinds.POD)
            if view.labels(pod).get(names.CLUSTER) == view.name(cluster)
            and view.labels(pod).get(names.NODE_TYPE) == names.HEAD
        ]
        seen: Json = {
            "groups": [f"{view.group_name(one)}:{one.get('replicas') or 0}" for one in view.groups(cluster)],
            "headImage": view.ray_container(view.head(cluster)).get("image"),
            "headServeLabel": view.labels(heads[0]).get(names.SERVE) if heads else None,
        }
        return {**seen, "suspend": True} if view.suspended(cluster) else seen

    def _services(self) -> Json:
        found: Json = {}
        for service in self.objects(kinds.SERVICE):
            if view.labels(service).get(names.ORIGIN_KIND) != "RayService":
                continue
            name = view.name(service)
            for cluster in self.known:
                if name == names.serve_service(cluster):
                    name = f"<{self._short(cluster)}>-serve-svc"
            owner = view.metadata(service)["ownerReferences"][0]["kind"]
            found[name] = {"owner": owner, "pointsTo": self._short(service["spec"]["selector"][names.CLUSTER])}
        return found

    def _status(self, status: Json) -> Json:
        conditions = {
            one["type"]: {"reason": one["reason"], "status": one["status"]} for one in status.get("conditions") or []
        }
        return {
            "active": self._part(status.get("activeServiceStatus") or {}),
            "pending": self._part(status.get("pendingServiceStatus") or {}),
            "conditions": conditions,
            "numServeEndpoints": status.get("numServeEndpoints") or 0,
            "observedGeneration": status.get("observedGeneration") or 0,
            "serviceStatus": status.get("serviceStatus") or "",
        }

    def _part(self, part: Json) -> Json:
        seen: Json = {"cluster": self._short(part.get("rayClusterName") or "")}
        told = part.get("applicationStatuses")
        if told:
            seen["applications"] = {name: one["status"] for name, one in told.items()}
        for field in ("targetCapacity", "trafficRoutedPercent"):
            if part.get(field) is not None:
                seen[field] = part[field]
        return seen


def _run(job: Json) -> Json:
    return {
        "annotations": view.annotations_of(job),
        "labels": view.labels(job),
        "name": view.name(job),
        "owner": view.metadata(job)["ownerReferences"][0]["kind"],
    }


def _true(*types: str) -> list[Json]:
    return [{"type": one, "status": "True"} for one in types]
