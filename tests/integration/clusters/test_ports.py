"""`kubectl port-forward` and `kubectl logs` through a hub, to a pod of a gang that runs in a member."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from shoal.api import kinds, ray_token
from shoal.kube import kubeconfig
from shoal.local.apiserver.auth import gate
from tests.cluster import Cluster
from tests.controlplane import build
from tests.faults import proven
from tests.integration.apiserver.test_forwarded_dashboard import tell
from tests.patience import PATIENCE
from tests.unit.apiserver.test_access import grant
from tests.unit.clusters.test_commands import served
from tests.unit.clusters.test_reading import reads
from tests.unit.clusters.wrappers import SendingTown, sending_town

FORWARDS = ["pods", "pods/portforward"]


@asynccontextmanager
async def dashboard(there: Cluster) -> AsyncIterator[None]:
    """What answers at any port of any pod in this member."""
    runner = web.AppRunner(web.Application())
    runner.app.router.add_route("*", "/{path:.*}", tell)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]

    async def connect(pod: Any, asked: int) -> Any:
        return await asyncio.open_connection("127.0.0.1", port)

    there.server.set_port_forward(connect)
    try:
        yield
    finally:
        await runner.cleanup()


@asynccontextmanager
async def hub_with_ports(folder: Path) -> AsyncIterator[tuple[SendingTown, str, list[str]]]:
    """A gang runs in a member that is reached over the network. Its pod, and kubectl at the hub for that member."""
    async with sending_town("a") as t, dashboard(t.members["a"]):
        theirs, ours = await served(t.members["a"], folder / "a"), await served(t.hub, folder / "hub")
        t.connect = lambda content, source: kubeconfig.load(Path(theirs))  # type: ignore[method-assign]
        pod = await reads(t)
        server = kubeconfig.resolve(Path(ours)).cluster.server
        kubectl = shutil.which("kubectl") or str(build.binaries("kubectl")["kubectl"])
        yield t, pod, [kubectl, "--kubeconfig", ours, "--server", f"{server}/clusters/a"]


async def answer_of(kubectl: list[str], pod: str, *flags: str) -> str:
    """What the pod's port 8265 answers, or kubectl's complaint."""
    process = await asyncio.create_subprocess_exec(
        *kubectl, *flags, "port-forward", f"pod/{pod}", ":8265",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode()  # Forwarding from 127.0.0.1:N
        if not line:
            return (await process.stderr.read()).decode()
        address = "http://127.0.0.1:" + line.split("127.0.0.1:")[1].split()[0]
        async with aiohttp.ClientSession() as session:
            try:
                async with session.post(address, data=b"x" * 300_000) as answer:
                    return await answer.text()
            except aiohttp.ClientError:
                process.terminate()
                return (await process.stderr.read()).decode()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def asks_no_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "require", lambda *asked: None)


@pytest.mark.not_at_rest("what is where is asserted")
@proven(without=asks_no_rights)
async def test_f738_ports_in_a_member_are_forwarded_under_the_rights_at_the_hub(tmp_path: Path) -> None:
    """F738: users of the hub forward a port of a pod in a member: one without the right to do so, one who may not read
    the Secret of the Ray cluster, whose token the member would add, and one who may both. Holds: only the last one is
    answered, and with the right alone where there is no token; pods that are not the hub's are not there at all."""
    async with hub_with_ports(tmp_path) as (t, pod, kubectl):
        there = t.members["a"].client
        assert await answer_of(kubectl, pod) == "none 300000"
        await grant(t.hub.client, "bob", ["get"], ["pods"])
        assert "forbidden" in (await answer_of(kubectl, pod, "--as", "bob")).lower()
        await grant(t.hub.client, "ann", ["get", "create"], FORWARDS)
        assert await answer_of(kubectl, pod, "--as", "ann") == "none 300000"
        secret = {"metadata": {"name": "demo"}, "stringData": {ray_token.KEY: "abc"}}
        await there.create(kinds.SECRET, secret, "default")
        await there.patch(kinds.POD, pod, "default", {"metadata": {"annotations": {ray_token.ANNOTATION: "demo"}}})
        assert "forbidden" in (await answer_of(kubectl, pod, "--as", "ann")).lower()
        assert await answer_of(kubectl, pod) == "Bearer abc 300000"
        spec = {"containers": [{"name": "main", "image": "busybox"}], "nodeName": "node-1"}
        await there.create(kinds.POD, {"metadata": {"name": "theirs"}, "spec": spec}, "default")
        assert "not found" in await answer_of(kubectl, "theirs")
