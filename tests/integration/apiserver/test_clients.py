"""Other people's clients work against the embedded server, unchanged."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shoal.api.kinds import POD
from shoal.kube.client import Client
from shoal.kube.kubeconfig import load
from tests.integration.apiserver.conftest import Embedded
from tests.integration.apiserver.test_kubectl import Running
from tests.patience import PATIENCE

BOATS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "boats.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "boats", "singular": "boat", "kind": "Boat"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
POD_BODY: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "labels": {"app": "x"}},
    "spec": {"containers": [{"name": "c", "image": "none"}]},
}


async def test_our_client_over_https(embedded: Embedded) -> None:
    transport = load(embedded.kubeconfig)
    client = Client(transport)
    events = client.watch(POD, "default", send_initial_events=True)
    assert (await anext(events)).type == "BOOKMARK"
    await client.create(POD, POD_BODY, "default")
    assert (await asyncio.wait_for(anext(events), PATIENCE)).type == "ADDED"
    await client.delete(POD, "p", "default")
    assert (await asyncio.wait_for(anext(events), PATIENCE)).type == "MODIFIED"  # marked
    assert (await asyncio.wait_for(anext(events), PATIENCE)).type == "DELETED"
    await events.aclose()  # type: ignore[attr-defined]
    await transport.close()


async def test_a_quiet_watch_is_seen_to_have_begun(embedded: Embedded) -> None:
    """The headers come at once, not with the first event."""
    tls = embedded.server.identity.client_context()
    headers = {"Authorization": f"Bearer {embedded.server.identity.admin_token}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        asyncio.timeout(PATIENCE),
        session.get(f"{embedded.url}/api/v1/pods?watch=1&resourceVersion=1", ssl=tls) as answer,
    ):
        assert answer.status == 200


async def test_the_official_python_client(embedded: Embedded) -> None:
    kubernetes = pytest.importorskip("kubernetes")

    def walk() -> None:
        kubernetes.config.load_kube_config(str(embedded.kubeconfig))
        core, batch, extensions = (
            kubernetes.client.CoreV1Api(),
            kubernetes.client.BatchV1Api(),
            kubernetes.client.ApiextensionsV1Api(),
        )
        custom = kubernetes.client.CustomObjectsApi()
        assert kubernetes.client.VersionApi().get_code().minor == "36"
        core.create_namespaced_pod("default", POD_BODY)
        watch = kubernetes.watch.Watch()
        for event in watch.stream(core.list_namespaced_pod, "default", timeout_seconds=60):
            assert event["type"] == "ADDED" and event["object"].metadata.name == "p"
            watch.stop()
        core.patch_namespaced_pod("p", "default", {"metadata": {"labels": {"more": "1"}}})
        assert core.list_namespaced_pod("default", label_selector="more=1").items[0].status.phase == "Pending"
        core.patch_namespaced_pod_status("p", "default", {"status": {"phase": "Running"}})
        with pytest.raises(kubernetes.client.ApiException) as caught:
            core.create_namespaced_pod("default", POD_BODY)
        assert caught.value.status == 409
        batch.create_namespaced_job(
            "default",
            {
                "metadata": {"name": "j"},
                "spec": {
                    "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}}
                },
            },
        )
        assert batch.read_namespaced_job("j", "default").spec.parallelism == 1
        extensions.create_custom_resource_definition(BOATS)
        custom.create_namespaced_custom_object(
            "example.com",
            "v1",
            "default",
            "boats",
            {"apiVersion": "example.com/v1", "kind": "Boat", "metadata": {"name": "b"}, "spec": {"crew": 1}},
        )
        patched = custom.patch_namespaced_custom_object_status(
            "example.com", "v1", "default", "boats", "b", {"status": {"afloat": True}}
        )
        assert patched["status"] == {"afloat": True}
        lease = kubernetes.client.CoordinationV1Api().create_namespaced_lease(
            "default",
            {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me", "renewTime": "2024-01-01T00:00:00.000000Z"}},
        )
        assert lease.spec.renew_time.year == 2024
        dynamic = kubernetes.dynamic.DynamicClient(kubernetes.client.ApiClient())
        boats = dynamic.resources.get(api_version="example.com/v1", kind="Boat")
        assert boats.get(namespace="default", name="b").spec.crew == 1
        core.delete_namespaced_pod("p", "default", grace_period_seconds=0)

    await asyncio.to_thread(walk)


async def test_kubernetes_asyncio(embedded: Embedded) -> None:
    library = pytest.importorskip("kubernetes_asyncio")
    await library.config.load_kube_config(str(embedded.kubeconfig))
    async with library.client.ApiClient() as api:
        core = library.client.CoreV1Api(api)
        await core.create_namespaced_pod("default", POD_BODY)
        async with library.watch.Watch().stream(core.list_namespaced_pod, "default", timeout_seconds=60) as stream:
            async for event in stream:
                assert event["object"].metadata.name == "p"
                break
        await core.delete_namespaced_pod("p", "default")


async def test_lightkube(embedded: Embedded) -> None:
    lightkube = pytest.importorskip("lightkube")
    from lightkube.resources.core_v1 import Pod

    client = lightkube.AsyncClient(config=lightkube.KubeConfig.from_file(str(embedded.kubeconfig)))
    await client.create(Pod.from_dict(POD_BODY), namespace="default")
    assert [pod.metadata.name async for pod in client.list(Pod, namespace="default", labels={"app": "x"})] == ["p"]
    async for kind, pod in client.watch(Pod, namespace="default"):
        assert (kind, pod.metadata.name) == ("ADDED", "p")
        break
    await client.delete(Pod, "p", namespace="default")


async def test_kr8s(embedded: Embedded) -> None:
    kr8s = pytest.importorskip("kr8s")
    from kr8s.asyncio.objects import Pod

    api = await kr8s.asyncio.api(kubeconfig=str(embedded.kubeconfig))
    pod = await Pod(POD_BODY, api=api)
    await pod.create()
    assert [one.name async for one in api.get("pods", namespace="default")] == ["p"]
    await pod.label({"more": "1"})
    await pod.delete()


async def test_requests_as_rays_autoscaler_sends_them(embedded: Embedded, tmp_path: Path) -> None:
    """Mutual TLS with no token, one GET each on a fresh connection, and JSON patches that replace what is not there."""
    client = embedded.client
    await client.request(
        "POST",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        body=_encoded(
            {
                **BOATS,
                "metadata": {"name": "rayclusters.ray.io"},
                "spec": {
                    **BOATS["spec"],
                    "group": "ray.io",
                    "names": {  # type: ignore[dict-item]
                        "plural": "rayclusters",
                        "singular": "raycluster",
                        "kind": "RayCluster",
                    },
                },
            }
        ),
    )
    where = "/apis/ray.io/v1/namespaces/default/rayclusters"
    await client.request(
        "POST",
        where,
        body=_encoded(
            {
                "apiVersion": "ray.io/v1",
                "kind": "RayCluster",
                "metadata": {"name": "c"},
                "spec": {"workerGroupSpecs": [{"groupName": "g", "replicas": 0, "minReplicas": 0, "maxReplicas": 3}]},
            }
        ),
    )
    pair = embedded.server.identity.client("autoscaler", ("system:masters",))
    for name, data in (("crt", pair.certificate), ("key", pair.key), ("ca", embedded.server.identity.ca.certificate)):
        (tmp_path / name).write_bytes(data)
    tls = ssl.create_default_context(cafile=tmp_path / "ca")
    tls.load_cert_chain(tmp_path / "crt", tmp_path / "key")

    async def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with aiohttp.ClientSession() as session:
            headers = {"Content-type": "application/json-patch+json"} if method == "PATCH" else {}
            async with session.request(
                method, embedded.url + path, json=None if body is None else body, headers=headers, ssl=tls
            ) as answer:
                return answer.status, await answer.json()

    group = "/spec/workerGroupSpecs/0"
    status, cluster = await ask("GET", f"{where}/c")
    assert status == 200 and cluster["spec"]["workerGroupSpecs"][0]["replicas"] == 0
    status, pods = await ask("GET", "/api/v1/namespaces/default/pods?labelSelector=ray.io%2Fcluster%3Dc")
    assert status == 200 and pods["metadata"]["resourceVersion"]
    revision = pods["metadata"]["resourceVersion"]
    query = f"labelSelector=ray.io%2Fcluster%3Dc&resourceVersion={revision}&resourceVersionMatch=NotOlderThan"
    assert (await ask("GET", f"/api/v1/namespaces/default/pods?{query}"))[0] == 200
    status, scaled = await ask("PATCH", f"{where}/c", [{"op": "replace", "path": f"{group}/replicas", "value": 2}])
    assert status == 200 and scaled["spec"]["workerGroupSpecs"][0]["replicas"] == 2
    victims = {"workersToDelete": ["pod-a", "pod-b"]}
    status, shrunk = await ask(
        "PATCH",
        f"{where}/c",
        [
            {"op": "replace", "path": f"{group}/replicas", "value": 0},
            {"op": "replace", "path": f"{group}/scaleStrategy", "value": victims},
        ],
    )
    assert status == 200 and shrunk["spec"]["workerGroupSpecs"][0]["scaleStrategy"] == victims
    stale = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "1"},
        {"op": "add", "path": "/metadata/finalizers", "value": ["ray.io/x"]},
    ]
    assert (await ask("PATCH", f"{where}/c", stale))[0] == 422


def _encoded(body: Any) -> bytes:
    import msgspec

    return msgspec.json.encode(body)


async def test_exec_as_the_official_python_client_does_it(embedded: Embedded) -> None:
    kubernetes = pytest.importorskip("kubernetes")
    streaming = pytest.importorskip("kubernetes.stream")

    async def start(pod: Any, options: Any) -> Running:
        pipe = asyncio.subprocess.PIPE
        return Running(await asyncio.create_subprocess_exec(*options.command, stdin=pipe, stdout=pipe, stderr=pipe))

    embedded.server.set_exec(start)
    await embedded.client.create(POD, POD_BODY, "default")

    def walk() -> str:
        kubernetes.config.load_kube_config(str(embedded.kubeconfig))
        core = kubernetes.client.CoreV1Api()
        said: str = streaming.stream(
            *(core.connect_get_namespaced_pod_exec, "p", "default"),
            command=["echo", "a b", "c"],
            stdout=True,
            stderr=True,
        )
        return said

    assert await asyncio.to_thread(walk) == "a b c\n"
