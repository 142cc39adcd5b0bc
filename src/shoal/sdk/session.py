"""A way into a running Ray cluster: its dashboard, logged in, and its client port, at addresses of this machine.

kubectl forwards the ports with the user's own rights, so that it works wherever kubectl does. The dashboard goes
through a small server of this process, which adds the cluster's token. Other users of this machine do not get in: the
first request carries a key that is printed once, and a cookie stands for it afterwards.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden, NotFound
from shoal.sdk import alone, gangs, logs
from shoal.sdk.connecting import ClusterChoice

DASHBOARD, RAY_CLIENT = 8265, 10001
COOKIE = "shoal-session"
READY_SECONDS = 30.0
_FORWARDED = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) -> (\d+)")
_HOP = frozenset(
    ("host", "connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "content-length", "cookie")
)
_HOP_BACK = frozenset(("connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding"))


class RaySession(msgspec.Struct, frozen=True, kw_only=True):
    """`dashboard` opens logged in; `token_file` is for Ray's variable RAY_AUTH_TOKEN_PATH, empty without a token."""

    cluster: str
    dashboard: str
    address: str
    token_file: str = ""

    def environment(self) -> dict[str, str]:
        """What a Ray program needs to connect."""
        found = {"RAY_ADDRESS": self.address}
        if self.token_file:
            found |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": self.token_file}
        return found


async def ray_cluster(client: Client, kind: Kind, obj: Json) -> Json:
    """The RayCluster that runs this gang. Raises ShoalError where there is none."""
    namespace = obj["metadata"]["namespace"]
    if gangs.is_wrapper(kind):
        wrapped = await logs.wrapped(client, obj)
        if wrapped is None:
            raise ShoalError(f"AppWrapper {obj['metadata']['name']} has created no Ray job or cluster")
        kind, obj = wrapped
    name = alone.cluster_of(kind, obj) if kind in alone.KINDS else ""
    try:
        found: Json = await client.get(kinds.RAY_CLUSTER, name, namespace) if name else {}
    except NotFound:
        found = {}
    if not found:
        raise ShoalError(f"{kind.kind} {obj['metadata']['name']} has no Ray cluster now; `shoal why` says more")
    return found


async def token_of(client: Client, cluster: Json) -> str:
    """Empty where the cluster has none. Raises ShoalError where it may not be read."""
    from shoal.controllers.ray.cluster_token import read_token

    try:
        return await read_token(client, cluster)
    except Forbidden as error:
        raise ShoalError(f"{error}; the cluster's token is a Secret: ask for the right to read it") from error


@asynccontextmanager
async def opened(client: Client, choice: ClusterChoice, cluster: Json, path: str = "") -> AsyncIterator[RaySession]:
    """For as long as the block lasts. `path`: below which the API server answers for the cluster that has it."""
    name, namespace = cluster["metadata"]["name"], cluster["metadata"]["namespace"]
    heads = [one for one in await logs.sources(client, kinds.RAY_CLUSTER, cluster, "head") if one.began]
    if not heads:
        raise ShoalError(f"the head of RayCluster {name} does not run")
    token = await token_of(client, cluster)
    async with (
        _forwarded(_kubectl(choice, namespace, heads[-1].pod, path)) as ports,
        _front(f"http://127.0.0.1:{ports[DASHBOARD]}", token) as dashboard,
    ):
        with tempfile.TemporaryDirectory(prefix="shoal-session-") as folder:
            file = Path(folder) / "token"
            if token:
                file.touch(mode=0o600)
                file.write_text(token)
            yield RaySession(
                cluster=f"{namespace}/{name}",
                dashboard=dashboard,
                address=f"ray://127.0.0.1:{ports[RAY_CLIENT]}",
                token_file=str(file) if token else "",
            )


def _kubectl(choice: ClusterChoice, namespace: str, pod: str, path: str) -> list[str]:
    program = shutil.which("kubectl")
    if program is None:
        raise ShoalError("kubectl is not on the PATH; it forwards the ports: https://kubernetes.io/docs/tasks/tools")
    words = [program]
    if choice.name is not None:
        from shoal.local.home import Home

        words += ["--kubeconfig", str(Home(choice.name).kubeconfig)]
    elif choice.kubeconfig is not None:
        words += ["--kubeconfig", str(choice.kubeconfig)]
    words += ["--context", choice.context] if choice.context and choice.name is None else []
    words += ["--server", _server(choice) + path] if path else []
    return [*words, "--namespace", namespace, "port-forward", f"pod/{pod}", f":{DASHBOARD}", f":{RAY_CLIENT}"]


def _server(choice: ClusterChoice) -> str:
    """The address of the chosen cluster."""
    from shoal.kube.kubeconfig import resolve
    from shoal.local.home import Home

    if choice.name is not None:
        return resolve(Home(choice.name).kubeconfig).cluster.server
    return resolve(choice.kubeconfig, choice.context).cluster.server


@asynccontextmanager
async def _forwarded(words: list[str]) -> AsyncIterator[dict[int, int]]:
    """The local ports by those of the pod, while kubectl forwards them."""
    running = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "KUBECTL_PORT_FORWARD_WEBSOCKETS": "true"},
    )  # fmt: skip
    ports: dict[int, int] = {}
    assert running.stdout is not None and running.stderr is not None
    try:
        try:
            async with asyncio.timeout(READY_SECONDS):
                while len(ports) < 2 and (line := await running.stdout.readline()):
                    if found := _FORWARDED.search(line.decode()):
                        ports[int(found[2])] = int(found[1])
        except TimeoutError:
            pass
        if len(ports) < 2:
            running.kill()
            said = (await running.stderr.read()).decode(errors="replace").strip().splitlines()
            raise ShoalError(f"kubectl cannot forward the ports: {said[-1] if said else 'it did not answer in time'}")
        yield ports
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


@asynccontextmanager
async def _front(dashboard: str, token: str) -> AsyncIterator[str]:
    """A server of this process before the dashboard; its address, with the key that lets in."""
    from aiohttp import ClientSession, ClientTimeout, web

    key = secrets.token_urlsafe(24)

    async def pass_on(request: web.Request) -> web.StreamResponse:
        given = request.query.get("key", "")
        if request.method == "GET" and given and hmac.compare_digest(given, key):
            answer = web.HTTPFound(request.path)
            answer.set_cookie(COOKIE, key, httponly=True, samesite="Strict")
            raise answer
        if not hmac.compare_digest(request.cookies.get(COOKIE, ""), key):
            return web.Response(status=403, text="open the address that `shoal session` printed\n")
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        if token:
            headers["x-ray-authorization"] = f"Bearer {token}"
        async with session.request(
            request.method, dashboard + request.path_qs, headers=headers, data=await request.read(),
            allow_redirects=False,
        ) as found:  # fmt: skip
            back = {name: value for name, value in found.headers.items() if name.lower() not in _HOP_BACK}
            answer_stream = web.StreamResponse(status=found.status, headers=back)
            await answer_stream.prepare(request)
            async for chunk in found.content.iter_any():
                await answer_stream.write(chunk)
            return answer_stream

    async with ClientSession(timeout=ClientTimeout(total=None, connect=10)) as session:
        application = web.Application(client_max_size=64 << 20)
        application.router.add_route("*", "/{path:.*}", pass_on)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            address: Any = runner.addresses[0]
            yield f"http://127.0.0.1:{address[1]}/?key={key}"
        finally:
            await runner.cleanup()
