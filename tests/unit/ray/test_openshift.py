"""OpenShift: the dashboard's Route where that API is served, and the Ingress where it is not or is preferred."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.ray import RaySettings, from_environment, services, view
from tests.conformance.kuberay_traces import Stage
from tests.faults import proven
from tests.unit.ray.builders import ray_cluster

ROUTES: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "routes.route.openshift.io"},
    "spec": {
        "group": "route.openshift.io",
        "scope": "Namespaced",
        "names": {"plural": "routes", "singular": "route", "kind": "Route", "listKind": "RouteList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}


async def staged(settings: RaySettings, **head: Any) -> Stage:
    stage = Stage(settings)
    await stage.start()
    await stage.client.create(kinds.CRD, ROUTES)
    body = ray_cluster(head={"enableIngress": True, **head}, metadata={"annotations": {"team": "pond"}})
    await stage.client.create(kinds.RAY_CLUSTER, body, "default")
    await stage.settle()
    return stage


async def test_a_route_leads_to_the_dashboard_and_goes_when_it_is_no_longer_asked_for():
    stage = await staged(RaySettings(), ingressOptions={"host": "ray.pond.example"})
    (route,) = await stage.client.list(kinds.ROUTE, "default")
    ingresses = stage.objects(kinds.INGRESS)
    events = dict(stage.seen_events)
    change = {"spec": {"headGroupSpec": {"enableIngress": False}}}
    await stage.client.patch(kinds.RAY_CLUSTER, "demo", "default", change)
    await stage.settle()
    left = await stage.client.list(kinds.ROUTE, "default")
    await stage.stop()
    assert view.name(route) == "demo-head-route"
    assert view.annotations_of(route)["team"] == "pond"
    assert route["spec"] == {
        "to": {"kind": "Service", "name": "demo-head-svc", "weight": 100},
        "port": {"targetPort": 8265},
        "wildcardPolicy": "None",
        "host": "ray.pond.example",
    }
    assert ingresses == []
    assert left == [], events


async def test_a_host_that_the_router_chose_is_left_alone():
    stage = await staged(RaySettings())
    await stage.client.patch(kinds.ROUTE, "demo-head-route", "default", {"spec": {"host": "chosen.apps.example"}})
    await stage.client.patch(kinds.RAY_CLUSTER, "demo", "default", {"spec": {"headServiceAnnotations": {"a": "b"}}})
    await stage.settle()
    (route,) = await stage.client.list(kinds.ROUTE, "default")
    await stage.stop()
    assert route["spec"]["host"] == "chosen.apps.example"


async def test_an_ingress_is_made_on_openshift_where_kuberays_switch_says_so():
    stage = await staged(from_environment({"USE_INGRESS_ON_OPENSHIFT": "true"}))
    routes, ingresses = await stage.client.list(kinds.ROUTE, "default"), stage.objects(kinds.INGRESS)
    await stage.stop()
    assert routes == []
    assert [view.name(one) for one in ingresses] == ["demo-head-ingress"]


def copies_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_entrance_annotations", lambda cluster: dict(view.annotations_of(cluster)))


@proven(without=copies_all)
def test_f786_an_entrance_does_not_say_that_it_was_applied_as_the_cluster() -> None:
    """F786: a RayCluster that `kubectl apply` created asks for a Route or an Ingress, to which its annotations are
    copied. Holds: what kubectl and Shoal note of the cluster itself is not among them, the user's own are."""
    body = ray_cluster()
    noted = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "shoal.dev/submitted-by": "anna"}
    body["metadata"]["annotations"] = {**noted, "haproxy.router.openshift.io/timeout": "5m"}
    for entrance in (services.route(body), services.ingress(body)):
        assert view.annotations_of(entrance) == {"haproxy.router.openshift.io/timeout": "5m"}
