"""The CRDs and samples on the embedded server, which judges by the same schemas as a real one."""

from __future__ import annotations

from pathlib import Path

import msgspec

from shoal.api import kinds, manifests
from shoal.api.crds import load_crds
from shoal.api.registry import lookup
from shoal.kube.client import Client
from shoal.local.apiserver import Server

SAMPLES = sorted((Path(__file__).parents[3] / "samples").rglob("*.yaml"))


async def install(client: Client) -> None:
    for crd in load_crds():
        await client.create(kinds.CRD, crd)


async def test_every_crd_and_every_sample_is_accepted() -> None:
    server = Server(None)
    await server.start()
    try:
        client = Client(server.transport())
        await install(client)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "research"}}
        await client.create(kinds.NAMESPACE, namespace)
        for obj in (obj for path in SAMPLES for obj in manifests.read(path.read_bytes(), path.name)):
            entry = lookup(obj["apiVersion"], obj["kind"])
            assert entry is not None
            where = obj["metadata"].get("namespace", "default") if entry.kind.namespaced else None
            # samples for several clusters share names: none is kept
            stored = await client.create(entry.kind, obj, where, dry_run=True)
            assert stored["spec" if "spec" in obj else "metadata"] and stored["metadata"]["uid"]
    finally:
        await server.stop()


async def test_a_queue_reads_in_the_spelling_of_the_version_asked_for() -> None:
    server = Server(None)
    await server.start()
    try:
        client = Client(server.transport())
        await install(client)
        old = msgspec.structs.replace(kinds.CLUSTER_QUEUE, version="v1beta1")
        body = {
            "apiVersion": old.api_version,
            "kind": "ClusterQueue",
            "metadata": {"name": "q"},
            "spec": {"cohort": "team"},
        }
        assert (await client.create(old, body))["spec"]["cohort"] == "team"
        assert (await client.get(kinds.CLUSTER_QUEUE, "q"))["spec"]["cohortName"] == "team"
        (listed,) = await client.list(kinds.CLUSTER_QUEUE)
        assert "cohort" not in listed["spec"] and listed["spec"]["cohortName"] == "team"
        await client.patch(old, "q", None, {"spec": {"cohort": "other", "admissionChecks": ["gpu"]}})
        stored = await client.get(kinds.CLUSTER_QUEUE, "q")
        assert stored["spec"]["cohortName"] == "other"
        assert stored["spec"]["admissionChecksStrategy"] == {"admissionChecks": [{"name": "gpu"}]}
    finally:
        await server.stop()


async def test_a_bare_app_wrapper_means_the_current_group(tmp_path: Path) -> None:
    """kubectl takes the first group that lists a kind of that name; a restart must not change which one that is."""
    server = Server(tmp_path)
    await server.start()
    try:
        await install(Client(server.transport()))
        await server.stop()
        server = Server(tmp_path)
        await server.start()
        answer = await Client(server.transport()).request("GET", "/apis")
        groups = [group["name"] for group in msgspec.json.decode(answer.body)["groups"]]
        assert groups.index("workload.codeflare.dev") < groups.index("mcad.ibm.com")
        assert groups.index("quota.codeflare.dev") < groups.index("ibm.com")
    finally:
        await server.stop()
