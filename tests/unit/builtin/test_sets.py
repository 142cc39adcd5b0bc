"""StatefulSets in order, DaemonSets on every fitting node, endpoints behind services, and pods that no kubelet ends."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from shoal.api import kinds
from shoal.kube.errors import Forbidden, TooManyRequests
from tests.patience import PATIENCE
from tests.unit.builtin.objects import container, pods_of, report, template, workload


async def names(cluster):
    return [pod["metadata"]["name"] for pod in await pods_of(cluster, app="x")]


async def make_ready(cluster, name):
    pod = await cluster.until(kinds.POD, name, lambda o: not o["metadata"].get("deletionTimestamp"))
    await report(cluster, pod)


async def test_a_stateful_set_fills_in_order_and_empties_backwards(cluster):
    await cluster.create(kinds.STATEFUL_SET, workload(kinds.STATEFUL_SET, replicas=3, serviceName="s"))
    await cluster.until(kinds.POD, "x-0", lambda o: True)
    await cluster.settled()
    assert await names(cluster) == ["x-0"], "the next waits until the first is ready"
    for number in range(3):
        await make_ready(cluster, f"x-{number}")
    full = await cluster.until(kinds.STATEFUL_SET, "x", lambda o: o["status"].get("readyReplicas") == 3)
    assert full["status"]["currentRevision"] == full["status"]["updateRevision"]
    [pod] = [p for p in await pods_of(cluster, app="x") if p["metadata"]["name"] == "x-1"]
    assert pod["spec"]["hostname"] == "x-1"
    assert pod["spec"]["subdomain"] == "s"
    assert pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "1"
    await cluster.client.patch(kinds.STATEFUL_SET, "x", "default", {"spec": {"replicas": 1}})
    await cluster.until(kinds.STATEFUL_SET, "x", lambda o: o["status"].get("replicas") == 1)
    assert await names(cluster) == ["x-0"]


async def test_a_stateful_set_is_updated_from_the_last_to_the_first(cluster):
    await cluster.create(
        kinds.STATEFUL_SET, workload(kinds.STATEFUL_SET, replicas=2, serviceName="s", podManagementPolicy="Parallel")
    )
    for number in range(2):
        await make_ready(cluster, f"x-{number}")
    await cluster.until(kinds.STATEFUL_SET, "x", lambda o: o["status"].get("readyReplicas") == 2)
    fresh = {**template(), "spec": {"containers": [container(image="i:2")]}}
    await cluster.client.patch(kinds.STATEFUL_SET, "x", "default", {"spec": {"template": fresh}})
    new = await cluster.until(kinds.POD, "x-1", lambda o: o["spec"]["containers"][0]["image"] == "i:2")
    assert (await cluster.get(kinds.POD, "x-0"))["spec"]["containers"][0]["image"] == "i:1"
    await report(cluster, new)
    await cluster.until(kinds.POD, "x-0", lambda o: o["spec"]["containers"][0]["image"] == "i:2")


async def test_a_stateful_set_makes_claims_and_leaves_them(cluster):
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    await cluster.create(
        kinds.STATEFUL_SET, workload(kinds.STATEFUL_SET, replicas=1, serviceName="s", volumeClaimTemplates=[claim])
    )
    pod = await cluster.until(kinds.POD, "x-0", lambda o: True)
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "data-x-0"}} in pod["spec"]["volumes"]
    assert await cluster.names(kinds.PERSISTENT_VOLUME_CLAIM) == ["data-x-0"]
    await cluster.client.delete(kinds.STATEFUL_SET, "x", "default")
    await cluster.until_gone(kinds.POD, "x-0")
    assert await cluster.names(kinds.PERSISTENT_VOLUME_CLAIM) == ["data-x-0"]


async def test_a_daemon_set_is_on_every_fitting_node(cluster):
    await cluster.add_node("a", labels={"zone": "1"})
    await cluster.add_node("b", labels={"zone": "1"})
    await cluster.add_node("c", labels={"zone": "2"})
    await cluster.create(kinds.DAEMON_SET, workload(kinds.DAEMON_SET, template=template(nodeSelector={"zone": "1"})))
    found = await cluster.until(kinds.DAEMON_SET, "x", lambda o: o["status"].get("currentNumberScheduled") == 2)
    assert found["status"]["desiredNumberScheduled"] == 2
    assert {pod["spec"]["nodeName"] for pod in await pods_of(cluster, app="x")} == {"a", "b"}
    await cluster.client.patch(kinds.NODE, "c", None, {"metadata": {"labels": {"zone": "1"}}})
    await cluster.until(kinds.DAEMON_SET, "x", lambda o: o["status"].get("currentNumberScheduled") == 3)


async def test_the_templates_of_a_daemon_set_are_kept_for_its_history(cluster):
    await cluster.create(kinds.DAEMON_SET, workload(kinds.DAEMON_SET))
    await cluster.until(kinds.DAEMON_SET, "x", lambda o: o["status"].get("observedGeneration") == 1)
    [first] = await cluster.client.list(kinds.CONTROLLER_REVISION, "default")
    assert first["data"]["spec"]["template"]["spec"]["containers"][0]["image"] == "i:1"
    assert first["metadata"]["ownerReferences"][0]["kind"] == "DaemonSet"
    fresh = {**template(), "spec": {"containers": [container(image="i:2")]}}
    await cluster.client.patch(kinds.DAEMON_SET, "x", "default", {"spec": {"template": fresh}})
    await cluster.until(kinds.DAEMON_SET, "x", lambda o: o["status"].get("observedGeneration") == 2)
    found = await cluster.client.list(kinds.CONTROLLER_REVISION, "default")
    assert sorted(one["revision"] for one in found) == [1, 2]


def service(**spec):
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"selector": {"app": "x"}, "ports": [{"port": 80, "targetPort": "web"}], **spec},
    }


async def filled_slice(cluster):
    """The slice of the service, once it shows a ready pod."""
    async with asyncio.timeout(PATIENCE):
        selector = "kubernetes.io/service-name=s"
        async for event in cluster.client.watch(
            kinds.ENDPOINT_SLICE, "default", label_selector=selector, send_initial_events=True
        ):
            if event.type in ("ADDED", "MODIFIED"):
                found = msgspec.json.decode(event.object)
                if any(endpoint["conditions"]["ready"] for endpoint in found.get("endpoints") or ()):
                    return found


async def test_endpoints_follow_pods(cluster):
    await cluster.add_node("n")
    await cluster.create(kinds.SERVICE, service())
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {"app": "x"}},
        "spec": {"nodeName": "n", "containers": [container(ports=[{"name": "web", "containerPort": 8080}])]},
    }
    made = await cluster.create(kinds.POD, pod)
    await report(cluster, made, "Running", ready=False, podIP="10.1.0.1", podIPs=[{"ip": "10.1.0.1"}])
    waiting = await cluster.until(kinds.ENDPOINTS, "s", lambda o: o.get("subsets"))
    assert waiting["subsets"][0]["notReadyAddresses"][0]["ip"] == "10.1.0.1"
    assert waiting["subsets"][0]["ports"] == [{"port": 8080, "protocol": "TCP"}]
    await report(cluster, made, "Running", podIP="10.1.0.1", podIPs=[{"ip": "10.1.0.1"}])
    await cluster.until(kinds.ENDPOINTS, "s", lambda o: "addresses" in (o.get("subsets") or [{}])[0])
    slice_ = await filled_slice(cluster)
    assert slice_["endpoints"][0]["addresses"] == ["10.1.0.1"]
    assert slice_["endpoints"][0]["conditions"] == {"ready": True, "serving": True, "terminating": False}
    assert slice_["metadata"]["labels"]["kubernetes.io/service-name"] == "s"
    await cluster.client.delete(kinds.POD, "p", "default", grace_seconds=0)
    await cluster.until(kinds.ENDPOINTS, "s", lambda o: not o.get("subsets"))
    await cluster.client.delete(kinds.SERVICE, "s", "default")
    await cluster.until_gone(kinds.ENDPOINTS, "s")
    await cluster.settled()
    assert (
        await cluster.client.list(kinds.ENDPOINT_SLICE, "default", label_selector="kubernetes.io/service-name=s") == []
    )


async def test_nothing_is_written_when_nothing_changes(cluster):
    await cluster.create(kinds.DEPLOYMENT, workload(kinds.DEPLOYMENT, replicas=2))
    await cluster.create(kinds.STATEFUL_SET, workload(kinds.STATEFUL_SET, "y", replicas=1, serviceName="s"))
    await cluster.create(kinds.SERVICE, service())
    await cluster.settled()
    before = (await cluster.client.list_raw(kinds.NAMESPACE, limit=1)).metadata.resource_version
    await cluster.client.patch(kinds.DEPLOYMENT, "x", "default", {"metadata": {"annotations": {"note": "1"}}})
    await cluster.settled()
    after = (await cluster.client.list_raw(kinds.NAMESPACE, limit=1)).metadata.resource_version
    assert int(after) - int(before) <= 3, "our note, its copy on the set, and the generation that it is"


async def test_a_quota_shows_what_is_used(cluster):
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q"},
        "spec": {
            "hard": {
                "pods": "4",
                "requests.cpu": "4",
                "requests.memory": "4Gi",
                "count/jobs.batch": "9",
                "configmaps": "9",
            }
        },
    }
    await cluster.create(kinds.RESOURCE_QUOTA, quota)
    await cluster.until(kinds.RESOURCE_QUOTA, "q", lambda o: o.get("status", {}).get("used", {}).get("pods") == "0")
    needs = {"requests": {"cpu": "500m", "memory": "1Gi"}}
    made = await cluster.create(
        kinds.POD,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p"},
            "spec": {"containers": [container(resources=needs)]},
        },
    )
    await cluster.create(kinds.CONFIG_MAP, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}})
    found = await cluster.until(kinds.RESOURCE_QUOTA, "q", lambda o: o["status"]["used"].get("configmaps") == "1")
    assert found["status"]["hard"] == quota["spec"]["hard"]
    assert found["status"]["used"] == {
        "pods": "1",
        "requests.cpu": "500m",
        "requests.memory": "1Gi",
        "count/jobs.batch": "0",
        "configmaps": "1",
    }
    await report(cluster, made, "Succeeded")
    await cluster.until(kinds.RESOURCE_QUOTA, "q", lambda o: o["status"]["used"].get("pods") == "0")
    await cluster.settled()  # no other controller writes it


async def test_a_quota_refuses_what_would_be_one_too_many(cluster):
    hard = {"configmaps": "1", "count/deployments.apps": "0", "services.nodeports": "1", "requests.storage": "1Gi"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
    await cluster.create(kinds.RESOURCE_QUOTA, quota)
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    await cluster.create(kinds.CONFIG_MAP, settings)
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "v"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}},
    }
    two_ports = [{"name": "a", "port": 80}, {"name": "b", "port": 81}]
    for kind, body, line in (
        (kinds.CONFIG_MAP, settings, "configmaps"),
        (kinds.DEPLOYMENT, workload(kinds.DEPLOYMENT), "count/deployments.apps"),
        (kinds.SERVICE, service(type="NodePort", ports=two_ports), "services.nodeports"),
        (kinds.PERSISTENT_VOLUME_CLAIM, claim, "requests.storage"),
    ):
        with pytest.raises(Forbidden, match=f"exceeded quota: q, requested: {line}="):
            await cluster.create(kind, {**body, "metadata": {"name": "more"}})


async def test_a_budget_allows_as_many_evictions_as_it_can_spare(cluster):
    await cluster.create(kinds.REPLICA_SET, workload(kinds.REPLICA_SET, replicas=3))
    await cluster.until(kinds.REPLICA_SET, "x", lambda o: o["status"].get("replicas") == 3)
    spec = {"minAvailable": 2, "selector": {"matchLabels": {"app": "x"}}}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": spec}
    await cluster.create(kinds.POD_DISRUPTION_BUDGET, budget)
    found = await cluster.until(kinds.POD_DISRUPTION_BUDGET, "b", lambda o: o["status"].get("observedGeneration") == 1)
    assert (found["status"]["expectedPods"], found["status"]["currentHealthy"]) == (3, 0)
    for pod in await pods_of(cluster, app="x"):
        await report(cluster, pod)
    found = await cluster.until(kinds.POD_DISRUPTION_BUDGET, "b", lambda o: o["status"]["disruptionsAllowed"] == 1)
    assert found["status"]["conditions"][0]["reason"] == "SufficientPods"
    first, second, _ = await pods_of(cluster, app="x")
    await evict(cluster, first)
    with pytest.raises(TooManyRequests, match="disruption budget"):
        await evict(cluster, second)
    await cluster.until(kinds.POD_DISRUPTION_BUDGET, "b", lambda o: o["status"]["currentHealthy"] == 2)
    change = {"spec": {"minAvailable": None, "maxUnavailable": "70%"}}
    await cluster.client.patch(kinds.POD_DISRUPTION_BUDGET, "b", "default", change)
    await cluster.until(kinds.POD_DISRUPTION_BUDGET, "b", lambda o: o["status"]["desiredHealthy"] == 0)
    await evict(cluster, second)


async def evict(cluster, pod):
    name = pod["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    await cluster.client.request("POST", f"{kinds.POD.path('default')}/{name}/eviction", body=json.dumps(body).encode())
