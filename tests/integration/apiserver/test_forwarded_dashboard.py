"""`kubectl port-forward` to a Ray dashboard: the API server vouches for a user who may read the cluster's token."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from shoal.api import ray_token
from shoal.api.kinds import POD, SECRET
from shoal.local.apiserver.verbs.subresources import Subresources
from tests.faults import proven
from tests.integration.apiserver.conftest import Embedded
from tests.patience import PATIENCE
from tests.unit.apiserver.test_access import grant

pytestmark = pytest.mark.usefixtures("kubectl_present")


async def tell(request: web.Request) -> web.Response:
    return web.Response(text=request.headers.get("x-ray-authorization", "none") + " " + str(len(await request.read())))


@asynccontextmanager
async def dashboard(embedded: Embedded) -> AsyncIterator[int]:
    """A pod with a server behind its dashboard port, as the operator's pods name their token."""
    runner = web.AppRunner(web.Application())
    runner.app.router.add_route("*", "/{path:.*}", tell)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port: int = runner.addresses[0][1]
    token = base64.b64encode(b"the token").decode()
    await embedded.client.create(SECRET, {"metadata": {"name": "demo"}, "data": {ray_token.KEY: token}}, "default")
    container = {"name": "ray", "image": "none", "ports": [{"name": "dashboard", "containerPort": port}]}
    pod = {"metadata": {"name": "head", "annotations": {ray_token.ANNOTATION: "demo"}},
           "spec": {"nodeName": "n1", "containers": [container]}}  # fmt: skip
    await embedded.client.create(POD, pod, "default")
    running = {"status": {"phase": "Running", "podIP": "127.0.0.1"}}
    await embedded.client.patch(POD, "head", "default", running, subresource="status")
    try:
        yield port
    finally:
        await runner.cleanup()


@asynccontextmanager
async def forwarded(embedded: Embedded, port: int, *flags: str) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        "kubectl", "--kubeconfig", str(embedded.kubeconfig), *flags, "port-forward", "pod/head", f":{port}",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode()  # Forwarding from 127.0.0.1:N
        yield "http://127.0.0.1:" + line.split("127.0.0.1:")[1].split()[0]
    finally:
        process.kill()
        await process.wait()


def for_everyone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Subresources, "_ray_token", lambda *_: "the token")


@proven(without=for_everyone)
async def test_f541_only_a_user_who_may_read_the_token_is_vouched_for(embedded: Embedded) -> None:
    """F541: two users forward the port of a Ray dashboard; one may read the cluster's Secret, the other may not. Holds:
    requests of the first reach it with the token, those of the second without."""
    await grant(embedded.client, "ann", ["get", "create"], ["pods", "pods/portforward"])
    async with dashboard(embedded) as port, aiohttp.ClientSession() as session:
        async with forwarded(embedded, port) as url:
            for size in (0, 5, 300_000):  # one connection
                async with session.post(url, data=b"x" * size) as answer:
                    assert await answer.text() == f"Bearer the token {size}"
        async with forwarded(embedded, port, "--as", "ann") as url, session.get(url) as answer:
            assert await answer.text() == "none 0"
        await embedded.client.patch(POD, "head", "default", {"metadata": {"annotations": {ray_token.ANNOTATION: None}}})
        async with forwarded(embedded, port) as url, session.get(url) as answer:
            assert await answer.text() == "none 0"  # options that the user wrote: the token is asked for
