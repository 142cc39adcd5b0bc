"""`shoal cluster` as an administrator uses it, against servers that are reached over the network."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import msgspec
from click.testing import CliRunner, Result

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.cli.main import shoal
from shoal.controllers.multicluster import ClusterController, ClusterSettings
from shoal.kube import kubeconfig
from tests.cluster import Cluster, running
from tests.unit.clusters.build import condition, decide, is_on, make_queues
from tests.unit.queues.build import make, name_of, ray_job, true


async def call(*arguments: str) -> Result:
    """In a thread: the servers that it asks are in this one."""
    return await asyncio.to_thread(CliRunner().invoke, shoal, list(arguments))


async def served(cluster: Cluster, path: Path) -> str:
    await cluster.server.serve()
    cluster.server.write_kubeconfig(path)
    return str(path)


async def test_a_cluster_is_added_shown_and_taken_away(tmp_path: Path) -> None:
    async with running() as there, running() as hub:
        ours, theirs = await served(hub, tmp_path / "hub"), await served(there, tmp_path / "there")
        await there.add_node("node-1")
        await make_queues(there, quota="8")
        await make_queues(hub, quota="8", checks=["everywhere"])
        decide(there)
        decide(hub)
        where = ("--kubeconfig", ours)
        hub.start(ClusterController(hub.client, ClusterSettings(probe_seconds=0.2)).run())

        assert (await call("cluster", "list", *where)).stdout == ""
        add = ("cluster", "add", "west", "--from", theirs, "--check", "everywhere", "--accept", "default", *where)
        for _ in range(2):  # the second time it gets the credential again
            done = await call(*add)
            assert done.exit_code == 0, done.output
        await hub.until(kinds.MULTIKUEUE_CLUSTER, "west", true("Active"))
        await hub.until(kinds.ADMISSION_CHECK, "everywhere", true("Active"))
        accepted = (await there.get(kinds.NAMESPACE, "default"))["metadata"]["annotations"]["shoal.dev/hub-namespace"]
        assert accepted == (await hub.get(kinds.NAMESPACE, "default"))["metadata"]["uid"]

        (made,) = await make(hub, ray_job("tune", 2))
        name = name_of(made, "RayJob", "ray.io")
        await hub.until(kinds.WORKLOAD, name, lambda one: is_on("west")(one) and true("Admitted")(one))
        shown = msgspec.json.decode((await call("cluster", "list", "-o", "json", *where)).stdout)
        assert [(one["name"], one["connected"], one["gangs"]) for one in shown] == [("west", "True", 1)]
        table = (await call("get", *where)).stdout.splitlines()
        assert table[0].split()[:4] == ["NAMESPACE", "KIND", "NAME", "CLUSTER"]
        assert table[1].split()[:4] == ["default", "RayJob", "tune", "west"]
        assert "in cluster west" in (await call("why", "rayjob/tune", *where)).stdout

        refused = await call("cluster", "remove", "west", *where)
        assert "west still has gangs (1)" in str(refused.exception)
        done = await call("cluster", "remove", "west", "--force", *where)
        assert done.exit_code == 0, done.output
        assert await there.names(kinds.RAY_JOB) == await hub.names(kinds.MULTIKUEUE_CLUSTER) == []
        back = await hub.get(kinds.WORKLOAD, name)
        assert 'cluster "west" is taken away' in condition(back, "Evicted")["message"]


async def test_a_kubeconfig_that_runs_commands_is_refused_at_once(tmp_path: Path) -> None:
    runs: Json = {
        "current-context": "m",
        "contexts": [{"name": "m", "context": {"cluster": "m", "user": "m"}}],
        "clusters": [{"name": "m", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "m", "user": {"exec": {"apiVersion": "v1", "command": "get-token"}}}],
    }
    (tmp_path / "runs").write_bytes(msgspec.json.encode(runs))
    done = await call("cluster", "add", "west", "--from", str(tmp_path / "runs"), "--kubeconfig", "none")
    assert done.exit_code == 2
    assert "runs a command for its credential" in done.output


def test_files_that_a_kubeconfig_names_travel_inside_it(tmp_path: Path) -> None:
    for name in ("ca.crt", "token"):
        (tmp_path / name).write_text(f"content of {name}")
    (tmp_path / "config").write_bytes(
        msgspec.json.encode(
            {
                "current-context": "m",
                "contexts": [{"name": "m", "context": {"cluster": "m", "user": "m"}}],
                "clusters": [
                    {"name": "m", "cluster": {"server": "https://member:6443", "certificate-authority": "ca.crt"}}
                ],
                "users": [{"name": "m", "user": {"tokenFile": "token"}}],
            }
        )
    )
    made = kubeconfig.parse(kubeconfig.inlined(kubeconfig.resolve(tmp_path / "config")), "Secret")
    assert (made.cluster.certificate_authority, made.user.token_file) == ("", "")
    assert base64.b64decode(made.cluster.certificate_authority_data) == b"content of ca.crt"
    assert made.user.token == "content of token"
