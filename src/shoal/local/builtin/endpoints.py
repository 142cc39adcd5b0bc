"""Endpoints and EndpointSlices: which pods stand behind a service, and which of them are ready.

One Endpoints object and one slice per set of ports follow each service that selects pods. Only a change that shows in
them (an address, readiness, labels, an end) makes anyone look.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.labels import SERVICE_NAME
from shoal.api.meta import Json
from shoal.kube.cache import Change
from shoal.kube.errors import AlreadyExists, Forbidden, NotFound
from shoal.kube.runtime import Controller
from shoal.local.builtin import pods
from shoal.local.builtin.context import WorkloadContext, key_of, reference_to

MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MANAGER = "endpointslice-controller.k8s.io"
_HEADLESS = {"service.kubernetes.io/headless": ""}


class EndpointsController:
    def __init__(self, context: WorkloadContext) -> None:
        self._context = context
        self._services = context.cache(kinds.SERVICE)
        self._endpoints = context.cache(kinds.ENDPOINTS)
        self._slices = context.cache(kinds.ENDPOINT_SLICE)
        self.controller: Controller[Key] = Controller("endpoints", self.reconcile, workers=4, clock=context.clock)

    async def run(self) -> None:
        self._services.subscribe(lambda change: self.controller.enqueue(change.key))
        self._context.pods.subscribe(self._on_pod)
        self._endpoints.subscribe(self._on_gone)
        self._slices.subscribe(self._on_gone)
        await self._context.caches.ready.wait()
        await self.controller.run()

    def _on_pod(self, change: Change) -> None:
        if change.kind == "changed" and _shown(change.old) == _shown(change.new):
            return
        for service in self._services.by_index("namespace", change.key.namespace):
            if any(obj is not None and _selects(service, obj) for obj in (change.old, change.new)):
                self.controller.enqueue(key_of(service))

    def _on_gone(self, change: Change) -> None:
        """Put back what a client removed."""
        if change.kind == "removed":
            name = (change.old["metadata"].get("labels") or {}).get(SERVICE_NAME, change.key.name)
            self.controller.enqueue(Key(change.key.namespace, name))

    async def reconcile(self, key: Key) -> float | None:
        service = self._services.get(key)
        if service is None or pods.is_deleting(service):
            await self._forget(key)
            return None
        if not (service.get("spec") or {}).get("selector") or service["spec"].get("type") == "ExternalName":
            return None
        behind = [
            pod for pod in self._context.pods.by_index("namespace", key.namespace) if _stands_behind(service, pod)
        ]
        behind.sort(key=lambda pod: pod["metadata"]["name"])
        groups: dict[str, tuple[list[Json], list[Json]]] = {}
        for pod in behind:
            ports = _ports(service, pod)
            groups.setdefault(json.dumps(ports), (ports, []))[1].append(pod)
        try:
            await self._keep_endpoints(service, list(groups.values()))
            await self._keep_slices(service, list(groups.values()))
        except (Forbidden, NotFound) as error:
            if "being terminated" not in error.message and not isinstance(error, NotFound):
                raise
        return None

    async def _keep_endpoints(self, service: Json, groups: list[tuple[list[Json], list[Json]]]) -> None:
        eager = bool(service["spec"].get("publishNotReadyAddresses"))
        subsets = []
        for ports, members in groups:
            alive = [pod for pod in members if not pods.is_deleting(pod)]
            ready = [_address(pod) for pod in alive if eager or pods.is_ready(pod)]
            waiting = [_address(pod) for pod in alive if not eager and not pods.is_ready(pod)]
            if ready or waiting:
                subset: Json = {"addresses": ready} if ready else {}
                subset.update({"notReadyAddresses": waiting} if waiting else {})
                named = [{k: v for k, v in port.items() if v != ""} for port in ports]
                subsets.append({**subset, "ports": named} if ports else subset)
        metadata = service["metadata"]
        labels = {**(metadata.get("labels") or {}), **(_HEADLESS if service["spec"].get("clusterIP") == "None" else {})}
        held = self._endpoints.get(key_of(service))
        if held is None:
            body: Json = {"apiVersion": "v1", "kind": "Endpoints", "metadata": {
                "name": metadata["name"], "namespace": metadata["namespace"], "labels": labels}}  # fmt: skip
            if subsets:
                body["subsets"] = subsets
            await self._create(kinds.ENDPOINTS, body)
        elif (held.get("subsets") or []) != subsets or (held["metadata"].get("labels") or {}) != labels:
            change = {"subsets": subsets or None, "metadata": {"labels": _replaced(held, labels)}}
            await self._context.patch(kinds.ENDPOINTS, held, change)

    async def _keep_slices(self, service: Json, groups: list[tuple[list[Json], list[Json]]]) -> None:
        metadata = service["metadata"]
        labels = {**(metadata.get("labels") or {}), SERVICE_NAME: metadata["name"], MANAGED_BY: MANAGER,
                  **(_HEADLESS if service["spec"].get("clusterIP") == "None" else {})}  # fmt: skip
        eager = bool(service["spec"].get("publishNotReadyAddresses"))
        wanted: dict[str, Json] = {}
        for ports, members in groups or [([], [])]:
            name = f"{metadata['name']}-{_digest(metadata['uid'] + json.dumps(ports))}"
            wanted[name] = {"ports": ports, "endpoints": [_endpoint(pod, eager) for pod in members]}
        held = {one["metadata"]["name"]: one for one in self._slices.by_index("owner", metadata["uid"])}
        for name, content in wanted.items():
            if name not in held:
                await self._create(kinds.ENDPOINT_SLICE, {
                    "apiVersion": kinds.ENDPOINT_SLICE.api_version, "kind": "EndpointSlice", "addressType": "IPv4",
                    "metadata": {"name": name, "namespace": metadata["namespace"], "labels": labels,
                                 "ownerReferences": [reference_to(kinds.SERVICE, service)]}, **content})  # fmt: skip
            else:
                old = held[name]
                if (old.get("endpoints") or [], old["metadata"].get("labels")) != (content["endpoints"], labels):
                    change = {**content, "metadata": {"labels": _replaced(old, labels)}}
                    await self._context.patch(kinds.ENDPOINT_SLICE, old, change)
        for name, old in held.items():
            if name not in wanted:
                await self._context.delete(kinds.ENDPOINT_SLICE, old)

    async def _create(self, kind: Any, body: Json) -> None:
        try:
            await self._context.create(kind, body)
        except AlreadyExists:
            return  # the watch brings it, and us back to it

    async def _forget(self, key: Key) -> None:
        held = self._endpoints.get(key)
        if held is not None and self._services.get(key) is None:
            await self._context.delete(kinds.ENDPOINTS, held)


def _selects(service: Json, pod: Json) -> bool:
    wanted = (service.get("spec") or {}).get("selector") or {}
    return bool(wanted) and wanted.items() <= (pod["metadata"].get("labels") or {}).items()


def _stands_behind(service: Json, pod: Json) -> bool:
    return _selects(service, pod) and bool((pod.get("status") or {}).get("podIP")) and not pods.is_terminal(pod)


def _shown(pod: Json) -> tuple[Any, ...]:
    return ((pod.get("status") or {}).get("podIP"), pods.is_ready(pod), pods.is_deleting(pod), pods.is_terminal(pod),
            pod["metadata"].get("labels"), (pod.get("spec") or {}).get("nodeName"))  # fmt: skip


def _ports(service: Json, pod: Json) -> list[Json]:
    """The service's ports as this pod has them: a target may be the name of a container port."""
    found = []
    for port in service["spec"].get("ports") or ():
        target = port.get("targetPort", port["port"])
        if isinstance(target, str):
            protocol = port.get("protocol", "TCP")
            offered = [p for c in pod["spec"].get("containers") or () for p in c.get("ports") or ()]
            named = [
                p["containerPort"] for p in offered if (p.get("name"), p.get("protocol", "TCP")) == (target, protocol)
            ]
            if not named:
                continue
            target = named[0]
        entry = {"name": port.get("name") or "", "port": target, "protocol": port.get("protocol", "TCP")}
        if port.get("appProtocol"):
            entry["appProtocol"] = port["appProtocol"]
        found.append(entry)
    return found


def _target(pod: Json) -> Json:
    metadata = pod["metadata"]
    return {"kind": "Pod", "namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]}


def _address(pod: Json) -> Json:
    address: Json = {"ip": pod["status"]["podIP"], "targetRef": _target(pod)}
    if pod["spec"].get("nodeName"):
        address["nodeName"] = pod["spec"]["nodeName"]
    if pod["spec"].get("hostname") and pod["spec"].get("subdomain"):
        address["hostname"] = pod["spec"]["hostname"]
    return address


def _endpoint(pod: Json, eager: bool) -> Json:
    serving, ending = pods.is_ready(pod), pods.is_deleting(pod)
    conditions = {"ready": eager or (serving and not ending), "serving": serving, "terminating": ending}
    endpoint: Json = {"addresses": [pod["status"]["podIP"]], "targetRef": _target(pod), "conditions": conditions}
    if pod["spec"].get("nodeName"):
        endpoint["nodeName"] = pod["spec"]["nodeName"]
    if pod["spec"].get("hostname") and pod["spec"].get("subdomain"):
        endpoint["hostname"] = pod["spec"]["hostname"]
    return endpoint


def _replaced(held: Json, labels: Json) -> Json:
    """A merge patch that leaves exactly these labels."""
    return {**{key: None for key in held["metadata"].get("labels") or {} if key not in labels}, **labels}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:5]
