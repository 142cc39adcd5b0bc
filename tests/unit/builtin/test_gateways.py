"""Gateways on one machine: a Service that hands connections on by weight, and a status that says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from shoal.api import kinds, weighted_backends
from shoal.api.meta import Json
from shoal.local.builtin.gateways import GATEWAY_CLASS
from shoal.local.gateway_kinds import gateway_crds
from shoal.local.nodes.runtime.services import in_proportion, service_views
from tests.cluster import Cluster

API = "gateway.networking.k8s.io/v1"


@pytest.fixture
async def gateways(cluster: Cluster) -> AsyncIterator[Cluster]:
    for definition in gateway_crds():
        await cluster.client.create(kinds.CRD, definition)
    yield cluster


def gateway(name: str = "api-gateway", kind: str = "any") -> Json:
    listeners = [{"name": "http", "protocol": "HTTP", "port": 80}]
    spec = {"gatewayClassName": kind, "listeners": listeners}
    return {"apiVersion": API, "kind": "Gateway", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def route(weights: dict[str, int], name: str = "api-httproute", **rule: object) -> Json:
    backends = [
        {"name": one, "namespace": "default", "port": 8000, "weight": weight} for one, weight in weights.items()
    ]
    match = {"path": {"type": "PathPrefix", "value": "/"}}
    spec = {
        "parentRefs": [{"name": "api-gateway", "namespace": "default"}],
        "rules": [{"matches": [match], "backendRefs": backends, **rule}],
    }
    return {"apiVersion": API, "kind": "HTTPRoute", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def service(name: str) -> Json:
    spec = {"selector": {"app": name}, "ports": [{"name": "serve", "port": 8000}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def holds(obj: Json, *wanted: str) -> bool:
    status = obj.get("status") or {}
    listed = status.get("conditions") or [one for parent in status.get("parents") or [] for one in parent["conditions"]]
    return {one["type"] for one in listed if one["status"] == "True"} >= set(wanted)


async def test_a_gateway_leads_to_its_backends_by_weight(gateways: Cluster) -> None:
    for name in ("one", "two"):
        await gateways.client.create(kinds.SERVICE, service(name), "default")
    await gateways.client.create(kinds.GATEWAY, gateway(), "default")
    await gateways.client.create(kinds.HTTP_ROUTE, route({"one": 75, "two": 25}), "default")
    made = await gateways.until(kinds.GATEWAY, "api-gateway", lambda one: holds(one, "Accepted", "Programmed"))
    await gateways.until(kinds.HTTP_ROUTE, "api-httproute", lambda one: holds(one, "Accepted", "ResolvedRefs"))
    relay = await gateways.until(kinds.SERVICE, "api-gateway", lambda one: len(weighted_backends.read(one) or ()) == 2)
    assert made["status"]["addresses"] == [{"type": "IPAddress", "value": relay["spec"]["clusterIP"]}]
    assert relay["spec"]["ports"][0]["port"] == 80
    await gateways.client.patch(
        kinds.HTTP_ROUTE, "api-httproute", "default", {"spec": route({"one": 0, "two": 100})["spec"]}
    )
    moved = await gateways.until(
        kinds.SERVICE, "api-gateway", lambda one: [b.weight for b in weighted_backends.read(one) or ()] == [0, 100]
    )
    assert moved["metadata"]["uid"] == relay["metadata"]["uid"]


async def test_what_is_not_served_is_said_in_the_status(gateways: Cluster) -> None:
    await gateways.client.create(kinds.GATEWAY, gateway(), "default")
    await gateways.client.create(kinds.HTTP_ROUTE, route({"one": 1}, filters=[{"type": "RequestMirror"}]), "default")

    def conditions(one: Json) -> Json:
        parents = (one.get("status") or {}).get("parents") or [{}]
        return {c["type"]: c for c in parents[0].get("conditions") or []}

    refused = await gateways.until(kinds.HTTP_ROUTE, "api-httproute", lambda one: bool(conditions(one)))
    assert conditions(refused)["Accepted"]["status"] == "False"
    assert "filters" in conditions(refused)["Accepted"]["message"]
    await gateways.client.patch(kinds.HTTP_ROUTE, "api-httproute", "default", {"spec": route({"one": 1})["spec"]})
    lacking = await gateways.until(
        kinds.HTTP_ROUTE, "api-httproute", lambda one: conditions(one).get("Accepted", {}).get("status") == "True"
    )
    assert conditions(lacking)["ResolvedRefs"]["reason"] == "BackendNotFound"
    await gateways.client.create(kinds.SERVICE, service("one"), "default")
    await gateways.until(kinds.HTTP_ROUTE, "api-httproute", lambda one: holds(one, "ResolvedRefs"))


async def test_a_gateway_of_another_controller_is_left_alone(gateways: Cluster) -> None:
    other = {"apiVersion": API, "kind": "GatewayClass", "metadata": {"name": "istio"}}
    await gateways.client.create(GATEWAY_CLASS, {**other, "spec": {"controllerName": "istio.io/gateway"}})
    await gateways.settled()
    await gateways.client.create(kinds.GATEWAY, gateway("theirs", "istio"), "default")
    await gateways.client.create(kinds.GATEWAY, gateway("ours"), "default")
    await gateways.until(kinds.GATEWAY, "ours", lambda one: holds(one, "Programmed"))
    assert "status" not in await gateways.client.get(kinds.GATEWAY, "theirs", "default")


def pod(name: str, ip: str) -> Json:
    status = {"podIP": ip, "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": ip, "namespace": "default", "labels": {"app": name}}
    return {"metadata": metadata, "spec": {"containers": []}, "status": status}


def test_connections_go_where_the_weights_say_and_past_what_has_no_pods() -> None:
    backends = (
        weighted_backends.WeightedBackend("one", 8000, 75),
        weighted_backends.WeightedBackend("two", 8000, 25),
        weighted_backends.WeightedBackend("empty", 8000, 50),
    )
    marks = {weighted_backends.ANNOTATION: weighted_backends.written(backends)}
    relay = {
        "metadata": {"name": "api-gateway", "namespace": "default", "annotations": marks},
        "spec": {"clusterIP": "10.0.0.9", "ports": [{"name": "http", "port": 80, "nodePort": 30080}]},
    }
    pods = [pod("one", "10.1.0.1"), pod("one", "10.1.0.2"), pod("two", "10.1.0.3")]
    views = service_views([service("one"), service("two"), service("empty"), relay], pods)
    found = next(view for view in views if view.name == "api-gateway")
    counted = Counter(ip for ip, _ in found.ports[0].targets)
    share = {ip: count / sum(counted.values()) for ip, count in counted.items()}
    assert share == {"10.1.0.1": 0.375, "10.1.0.2": 0.375, "10.1.0.3": 0.25}
    assert found.weighted and not found.direct and found.relayed[0].node_port == 30080
    odd = {**relay, "metadata": {**relay["metadata"], "annotations": {weighted_backends.ANNOTATION: "broken"}}}
    assert service_views([odd], pods) == []


def test_the_order_is_spread_evenly() -> None:
    order = in_proportion([(99, (("a", 1),)), (1, (("b", 1),))])
    assert (len(order), order.count(("b", 1))) == (100, 1)
    assert in_proportion([(2, (("a", 1),)), (1, (("b", 1),))]) == (("a", 1), ("b", 1), ("a", 1))
    assert in_proportion([]) == ()


def test_kubectl_shows_of_them_what_it_shows_of_the_published_kinds() -> None:
    shown = {
        one["spec"]["names"]["kind"]: [
            column["name"] for column in one["spec"]["versions"][0]["additionalPrinterColumns"]
        ]
        for one in gateway_crds()
    }
    assert shown["Gateway"] == ["Class", "Address", "Programmed", "Age"]
    assert shown["HTTPRoute"] == ["Hostnames", "Age"]
    assert shown["GatewayClass"] == ["Controller", "Accepted", "Age"]
