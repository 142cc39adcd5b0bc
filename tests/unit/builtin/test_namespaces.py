"""Namespaces: furnished at birth, emptied before they go."""

from __future__ import annotations

from shoal.api import kinds
from shoal.local import builtin
from shoal.local.apiserver import Server
from tests.cluster import Cluster
from tests.unit.builtin.objects import container


async def test_a_namespace_gets_its_service_account(cluster):
    await cluster.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    await cluster.until(kinds.SERVICE_ACCOUNT, "default", lambda o: True, "team")
    await cluster.client.delete(kinds.SERVICE_ACCOUNT, "default", "team")
    await cluster.until(kinds.SERVICE_ACCOUNT, "default", lambda o: True, "team")


async def test_a_deleted_namespace_takes_its_content_along(cluster):
    await cluster.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    await cluster.until(kinds.SERVICE_ACCOUNT, "default", lambda o: True, "team")
    for number in range(5):
        await cluster.create(
            kinds.CONFIG_MAP,
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"c{number}", "namespace": "team"}},
        )
    await cluster.client.delete(kinds.NAMESPACE, "team")
    await cluster.until_gone(kinds.NAMESPACE, "team")
    assert await cluster.names(kinds.CONFIG_MAP, "team") == []
    assert await cluster.names(kinds.SERVICE_ACCOUNT, "team") == []


async def test_events_go_with_their_namespace(cluster):
    await cluster.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    about = {"involvedObject": {"kind": "Pod", "name": "p", "namespace": "team"}, "reason": "Told", "message": "once"}
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "told", "namespace": "team"}, **about}
    await cluster.create(kinds.EVENT, event)
    await cluster.client.delete(kinds.NAMESPACE, "team")
    await cluster.until_gone(kinds.NAMESPACE, "team")
    assert await cluster.names(kinds.EVENT, "team") == []


async def test_a_finalizer_holds_the_namespace_and_it_says_so(cluster):
    await cluster.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    await cluster.create(
        kinds.CONFIG_MAP,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "held", "namespace": "team", "finalizers": ["test.example/hold"]},
        },
    )
    await cluster.client.delete(kinds.NAMESPACE, "team")
    namespace = await cluster.until(kinds.NAMESPACE, "team", lambda o: o["status"].get("conditions"))
    said = {one["type"]: one["message"] for one in namespace["status"]["conditions"]}
    assert "configmaps has 1 resource instances" in said["NamespaceContentRemaining"]
    assert "test.example/hold in 1 resource instances" in said["NamespaceFinalizersRemaining"]
    await cluster.client.patch(kinds.CONFIG_MAP, "held", "team", {"metadata": {"finalizers": None}})
    await cluster.until_gone(kinds.NAMESPACE, "team")


async def test_pods_go_before_what_they_use(cluster):
    await cluster.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    where = {"namespace": "team"}
    held = {"name": "held", "finalizers": ["test.example/hold"], **where}
    await cluster.create(
        kinds.POD, {"apiVersion": "v1", "kind": "Pod", "metadata": held, "spec": {"containers": [container()]}}
    )
    await cluster.create(
        kinds.CONFIG_MAP, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "used", **where}}
    )
    await cluster.client.delete(kinds.NAMESPACE, "team")
    await cluster.until(kinds.POD, "held", lambda o: o["metadata"].get("deletionTimestamp"), "team")
    await cluster.settled()
    assert "used" in await cluster.names(kinds.CONFIG_MAP, "team")
    await cluster.client.patch(kinds.POD, "held", "team", {"metadata": {"finalizers": None}})
    await cluster.until_gone(kinds.NAMESPACE, "team")


async def test_no_client_changes_what_pods_trust():
    server = Server(None)
    await server.start()
    cluster = Cluster(server)
    cluster.start(builtin.run_all(cluster.client, root_ca="bundle"))
    try:
        await cluster.until(kinds.CONFIG_MAP, "kube-root-ca.crt", lambda o: True)
        await cluster.client.patch(kinds.CONFIG_MAP, "kube-root-ca.crt", "default", {"data": {"ca.crt": "", "x": "y"}})
        await cluster.until(kinds.CONFIG_MAP, "kube-root-ca.crt", lambda o: o["data"] == {"ca.crt": "bundle"})
    finally:
        await cluster.stop()
        await server.stop()
