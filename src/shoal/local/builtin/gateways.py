"""Gateways of one machine: a Service per Gateway whose connections go to the backends of its route by weight.

This is what an incremental upgrade of a RayService moves its traffic with where no Gateway controller is installed. A
Gateway whose class names another controller is left alone. One route per Gateway, one rule for every path: anything
else is refused in the route's status. The relay counts connections, not requests: a client that keeps one open stays
where it is until it opens another.
"""

from __future__ import annotations

import asyncio
from typing import Any

from shoal.api import kinds, weighted_backends
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.api.weighted_backends import WeightedBackend
from shoal.kube.cache import Cache, Change
from shoal.kube.errors import AlreadyExists, NotFound
from shoal.kube.runtime import Controller
from shoal.kube.writes import Writer
from shoal.local.builtin import pods
from shoal.local.builtin.context import WorkloadContext, controller_of, key_of, number, reference_to
from shoal.local.gateway_kinds import GROUP

CONTROLLER = "shoal.dev/relay"
"""`controllerName` of a GatewayClass that means this controller; without such a class it takes every Gateway."""
GATEWAY_CLASS = Kind(GROUP, "v1", "GatewayClass", "gatewayclasses", False)
_WATCHED = (kinds.GATEWAY, kinds.HTTP_ROUTE, GATEWAY_CLASS)


class GatewayController:
    def __init__(self, context: WorkloadContext, writer: Writer) -> None:
        self._context, self._writer = context, writer
        self._services = context.cache(kinds.SERVICE)
        self._caches: dict[Kind, Cache[Json]] = {
            kind: Cache(context.client, kind, clock=context.clock) for kind in _WATCHED
        }
        self.controller: Controller[Key] = Controller("gateways", self.reconcile, workers=1, clock=context.clock)

    async def run(self) -> None:
        """Waits until the kinds are served: a server without them costs nothing."""
        await self._context.caches.ready.wait()
        served = asyncio.Event()

        def look(change: Change | None = None) -> None:
            definitions = self._context.cache(kinds.CRD)
            if all(definitions.get(Key("", kind.resource)) is not None for kind in _WATCHED):
                served.set()

        self._context.cache(kinds.CRD).subscribe(look)
        look()
        await served.wait()
        self._caches[kinds.GATEWAY].subscribe(lambda change: self.controller.enqueue(change.key))
        self._caches[kinds.HTTP_ROUTE].subscribe(self._on_route)
        self._caches[GATEWAY_CLASS].subscribe(lambda change: self._all())
        self._services.subscribe(self._on_service)
        async with asyncio.TaskGroup() as group:
            for cache in self._caches.values():
                group.create_task(cache.run())
            for cache in self._caches.values():
                await cache.synced.wait()
            self._all()
            group.create_task(self.controller.run())

    def _all(self) -> None:
        for key in self._caches[kinds.GATEWAY]:
            self.controller.enqueue(key)

    def _on_route(self, change: Change) -> None:
        for route in (change.old, change.new):
            for parent in _parents(route) if route is not None else ():
                self.controller.enqueue(_parent_key(route, parent))

    def _on_service(self, change: Change) -> None:
        """Ours was changed or deleted, or a backend came or went."""
        owner = next((controller_of(one) for one in (change.new, change.old) if one is not None), None)
        if owner is not None and owner.get("kind") == "Gateway":
            self.controller.enqueue(Key(change.key.namespace, owner["name"]))
        elif change.kind != "changed":
            for key in self._caches[kinds.GATEWAY]:
                if key.namespace == change.key.namespace:
                    self.controller.enqueue(key)

    async def reconcile(self, key: Key) -> float | None:
        gateway = self._caches[kinds.GATEWAY].get(key)
        if gateway is None or pods.is_deleting(gateway) or not self._is_ours(gateway):
            return None
        routes = [route for route in self._routes_of(key) if not pods.is_deleting(route)]
        backends: tuple[WeightedBackend, ...] = ()
        for place, route in enumerate(routes):
            problem = "this Gateway has a route already; delete the other one" if place else _problem(route, key)
            missing = [] if problem else self._missing(route)
            if not problem:
                backends = _backends(route)
            await self._tell_route(route, gateway, problem, missing)
        refused = await self._serve(gateway, backends)
        await self._tell_gateway(gateway, refused, len(routes))
        return None

    def _is_ours(self, gateway: Json) -> bool:
        found = self._caches[GATEWAY_CLASS].get(Key("", str((gateway.get("spec") or {}).get("gatewayClassName") or "")))
        return found is None or (found.get("spec") or {}).get("controllerName") == CONTROLLER

    def _routes_of(self, key: Key) -> list[Json]:
        found = [
            route
            for route in self._caches[kinds.HTTP_ROUTE].list()
            if any(_parent_key(route, parent) == key for parent in _parents(route))
        ]
        return sorted(found, key=lambda one: (one["metadata"].get("creationTimestamp") or "", one["metadata"]["name"]))

    def _missing(self, route: Json) -> list[str]:
        namespace = route["metadata"]["namespace"]
        return [one.service for one in _backends(route) if self._services.get(Key(namespace, one.service)) is None]

    async def _serve(self, gateway: Json, backends: tuple[WeightedBackend, ...]) -> str:
        """The Service that leads to the backends. Returns why there is none."""
        key, marks = key_of(gateway), {weighted_backends.ANNOTATION: weighted_backends.written(backends)}
        ports = [
            {"name": str(one.get("name") or f"port-{one['port']}"), "port": one["port"], "protocol": "TCP"}
            for one in _listeners(gateway)
            if one.get("protocol") == "HTTP" and number(one.get("port"))
        ]
        if not ports:
            return "no listener with protocol HTTP; others are not served on one machine"
        held = self._services.get(key)
        if held is None:
            metadata = {
                "name": key.name,
                "namespace": key.namespace,
                "annotations": marks,
                "ownerReferences": [reference_to(kinds.GATEWAY, gateway)],
            }
            body = {"apiVersion": "v1", "kind": "Service", "metadata": metadata}
            try:
                await self._context.create(kinds.SERVICE, {**body, "spec": {"type": "NodePort", "ports": ports}})
            except AlreadyExists:
                return ""  # the watch brings it, and us back to it
            return ""
        owner = controller_of(held)
        if owner is None or owner.get("uid") != gateway["metadata"]["uid"]:
            return f"Service {key.name} exists and belongs to another owner; delete or rename it"
        change: Json = {}
        if (held["metadata"].get("annotations") or {}).get(weighted_backends.ANNOTATION) != next(iter(marks.values())):
            change["metadata"] = {"annotations": marks}
        if [(one["name"], one["port"]) for one in held["spec"].get("ports") or ()] != [
            (one["name"], one["port"]) for one in ports
        ]:
            change["spec"] = {"ports": ports}
        if change:
            await self._context.patch(kinds.SERVICE, held, change)
        return ""

    async def _tell_gateway(self, gateway: Json, refused: str, routes: int) -> None:
        held = self._services.get(key_of(gateway))
        address = ((held or {}).get("spec") or {}).get("clusterIP") if not refused else None
        both = {kind: (kind, "") for kind in ("Accepted", "Programmed")}
        listeners = [
            {
                "name": one.get("name"),
                "attachedRoutes": min(routes, 1),
                "supportedKinds": [{"group": GROUP, "kind": "HTTPRoute"}],
                "conditions": self._conditions(gateway, both),
            }
            for one in _listeners(gateway)
        ]
        lacks = refused or "its Service has no address yet"
        told = {
            "Accepted": ("Invalid", refused) if refused else ("Accepted", ""),
            "Programmed": ("Programmed", "") if address else ("AddressNotUsable", lacks),
        }
        status: Json = {
            "addresses": [{"type": "IPAddress", "value": address}] if address else [],
            "listeners": listeners,
            "conditions": self._conditions(gateway, told),
        }
        await self._write(kinds.GATEWAY, gateway, status)

    async def _tell_route(self, route: Json, gateway: Json, problem: str, missing: list[str]) -> None:
        lacks = f"there is no Service {', '.join(missing)}" if missing else ""
        told = {
            "Accepted": ("UnsupportedValue", problem) if problem else ("Accepted", ""),
            "ResolvedRefs": ("BackendNotFound", lacks) if lacks else ("ResolvedRefs", ""),
        }
        parent = next(one for one in _parents(route) if _parent_key(route, one) == key_of(gateway))
        before = [
            one
            for one in (route.get("status") or {}).get("parents") or []
            if one.get("controllerName") != CONTROLLER or one.get("parentRef") != parent
        ]
        ours = {
            "parentRef": parent,
            "controllerName": CONTROLLER,
            "conditions": self._conditions(route, told, "parents"),
        }
        await self._write(kinds.HTTP_ROUTE, route, {"parents": [*before, ours]})

    def _conditions(self, obj: Json, told: dict[str, tuple[str, str]], under: str = "") -> list[Json]:
        """As they should be; one that says the same as before keeps its time."""
        status = obj.get("status") or {}
        held = status.get("conditions") or []
        if under:
            held = [one for parent in status.get(under) or [] for one in parent.get("conditions") or []]
        before = {(one.get("type"), one.get("status")): one.get("lastTransitionTime") for one in held}
        made = []
        for kind, (reason, message) in told.items():
            truth = "True" if reason == kind else "False"
            made.append(
                {
                    "type": kind,
                    "status": truth,
                    "reason": reason,
                    "message": message,
                    "observedGeneration": obj["metadata"].get("generation", 1),
                    "lastTransitionTime": before.get((kind, truth)) or self._context.now(),
                }
            )
        return made

    async def _write(self, kind: Kind, obj: Json, status: Json) -> None:
        try:
            stored = await self._writer.patch(kind, obj, {"status": status}, subresource="status")
        except NotFound:
            return
        self._caches[kind].note_write(stored)


def _parents(route: Json) -> list[Json]:
    found: Any = (route.get("spec") or {}).get("parentRefs")
    return [one for one in found if isinstance(one, dict) and one.get("name")] if isinstance(found, list) else []


def _parent_key(route: Json, parent: Json) -> Key:
    return Key(str(parent.get("namespace") or route["metadata"].get("namespace", "")), str(parent["name"]))


def _rules(route: Json) -> list[Json]:
    found: Any = (route.get("spec") or {}).get("rules")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _problem(route: Json, gateway: Key) -> str:
    """Why this route cannot be served here; empty where it can."""
    rules, namespace = _rules(route), route["metadata"].get("namespace", "")
    if namespace != gateway.namespace:
        return "the route must be in the namespace of its Gateway"
    if len(rules) != 1:
        return "one rule is served on one machine"
    plain: tuple[Json, ...] = ({}, {"path": {"type": "PathPrefix", "value": "/"}})
    if any(match not in plain for match in rules[0].get("matches") or []):
        return "only the path prefix / is served on one machine"
    if rules[0].get("filters"):
        return "filters are not served on one machine"
    backends = rules[0].get("backendRefs") or []
    if any(not isinstance(one, dict) or one.get("namespace") not in (None, "", namespace) for one in backends):
        return "backends must be in the namespace of the route"
    return ""


def _backends(route: Json) -> tuple[WeightedBackend, ...]:
    listed = _rules(route)[0].get("backendRefs") or [] if _rules(route) else []
    return tuple(
        WeightedBackend(str(one["name"]), number(one.get("port"), 80), max(0, number(one.get("weight"), 1)))
        for one in listed
        if isinstance(one, dict) and one.get("name")
    )


def _listeners(gateway: Json) -> list[Json]:
    found: Any = (gateway.get("spec") or {}).get("listeners")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
