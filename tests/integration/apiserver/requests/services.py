"""Services, secrets, accounts, leases, nodes, priorities, events and other small kinds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.integration.apiserver.requests.step import NS, STRATEGIC, Step, delete, get, patch, post, put


def services() -> Iterator[Step]:
    where = f"{NS}/services"

    def service(name: str, **spec: Any) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}

    yield post(where, service("s", ports=[{"port": 80}], selector={"a": "b"}))
    yield post(where, service("headless", clusterIP="None", ports=[{"port": 80}]))
    yield post(where, service("np", type="NodePort", ports=[{"port": 80}]))
    yield post(where, service("noports", selector={"a": "b"}))
    yield post(where, service("twoports", ports=[{"port": 80}, {"port": 81}]))
    yield post(where, service("badport", ports=[{"port": 0}]))
    yield post(where, service("BadName", ports=[{"port": 80}]))
    yield post(where, service("ext", type="ExternalName", externalName="example.com"))
    yield post(where, service("badtype", type="Bogus", ports=[{"port": 80}]))
    yield post(where, service("badip", clusterIP="1.2.3.4", ports=[{"port": 80}]))
    yield patch(f"{where}/s", {"spec": {"clusterIP": "10.0.0.99"}})
    yield patch(f"{where}/s", {"spec": {"ports": [{"port": 8080}]}}, STRATEGIC)
    yield patch(f"{where}/s", {"spec": {"selector": {"c": "d"}}})
    yield delete(f"{where}/s")
    yield post(
        f"{NS}/secrets", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "sec"}, "stringData": {"a": "b"}}
    )
    yield post(
        f"{NS}/secrets",
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "sec2"}, "data": {"a": "not base64!"}},
    )
    yield patch(f"{NS}/secrets/sec", {"type": "other"})
    yield delete(f"{NS}/secrets/sec")
    yield post(f"{NS}/serviceaccounts", {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa"}})
    yield post(
        f"{NS}/serviceaccounts/sa/token", {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    )
    yield post(
        f"{NS}/serviceaccounts/sa/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 5}},
    )
    yield post(
        f"{NS}/serviceaccounts/none/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
    )
    lease = "/apis/coordination.k8s.io/v1/namespaces/diff/leases"
    yield post(
        lease,
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "l"},
            "spec": {"holderIdentity": "x", "leaseDurationSeconds": 15, "renewTime": "2023-01-01T00:00:00.000000Z"},
        },
    )
    yield put(
        f"{lease}/l", {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {}}
    )
    yield put(
        f"{lease}/m", {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "m"}, "spec": {}}
    )
    yield post(
        lease,
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "n"},
            "spec": {"leaseDurationSeconds": 0},
        },
    )
    yield post(
        lease,
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "n"},
            "spec": {"renewTime": "soon"},
        },
    )
    yield post(
        "/api/v1/nodes",
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "4"}}},
    )
    yield patch(
        "/api/v1/nodes/n1/status",
        {"status": {"allocatable": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}},
        STRATEGIC,
    )
    yield patch("/api/v1/nodes/n1", {"spec": {"unschedulable": True}})
    yield patch("/api/v1/nodes/n1", {"spec": {"taints": [{"key": "a", "effect": "Bogus"}]}})
    yield delete("/api/v1/nodes/n1")
    yield post(
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "pc"}, "value": 10},
    )
    yield patch("/apis/scheduling.k8s.io/v1/priorityclasses/pc", {"value": 11})
    yield post(
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "system-x"}, "value": 10},
    )
    yield post(
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "big"},
            "value": 2000000000,
        },
    )
    yield post(
        f"{NS}/events",
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "e"},
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": "diff"},
            "reason": "R",
            "message": "m",
            "type": "Normal",
        },
    )
    yield get("/apis/events.k8s.io/v1/namespaces/diff/events/e")
    yield post(
        f"{NS}/events",
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "e2"},
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": "other"},
        },
    )
    yield post(
        f"{NS}/resourcequotas",
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "x"}}},
    )
    yield post(
        f"{NS}/limitranges",
        {
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": "lr"},
            "spec": {"limits": [{"type": "Container", "default": {"cpu": "1"}}]},
        },
    )
    yield delete(f"{NS}/limitranges/lr")
    yield post(
        "/apis/networking.k8s.io/v1/namespaces/diff/networkpolicies",
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "np"},
            "spec": {"podSelector": {}},
        },
    )
    yield post(
        "/apis/policy/v1/namespaces/diff/poddisruptionbudgets",
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "b"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}},
        },
    )
