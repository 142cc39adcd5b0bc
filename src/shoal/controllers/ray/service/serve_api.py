"""How the operator talks to Ray Serve: the dashboard's application API, and the proxies' own health.

The same distrust as for jobs (time and size limits, no redirects, only the cluster's own token). A dashboard that does
not answer is an error of one RayService alone; what it costs is bounded by the time limit.
"""

from __future__ import annotations

import shlex
from typing import Protocol

import msgspec

from shoal.api.meta import Json
from shoal.controllers.ray.job.dashboard import DashboardError, DashboardTarget, HttpDashboard
from shoal.controllers.ray.job.proxied_dashboard import ProxiedDashboard
from shoal.kube.client import Client

_READ = "/api/serve/applications/?api_type=declarative"
_WRITE = "/api/serve/applications/"
_HEALTH = "/-/healthz"
PATIENT = 10.0
"""Seconds for a configuration, of which the first one starts Serve itself, and for its end."""
RELEASE = """\
import ray

def close_after_answers(proxy):
    import gc
    import uvicorn
    servers = [one for one in gc.get_objects() if issubclass(type(one), uvicorn.Server)]
    for server in servers:
        if (b"connection", b"close") not in server.config.encoded_headers:
            server.config.encoded_headers.append((b"connection", b"close"))
    return len(servers)

ray.init()
actors = ray.util.list_named_actors(all_namespaces=True)
named = [(one["name"], one["namespace"]) for one in actors if one["name"].startswith("SERVE_PROXY_ACTOR")]
proxies = [ray.get_actor(*one) for one in named]
print(ray.get([proxy.__ray_call__.remote(close_after_answers) for proxy in proxies], timeout=60))
"""
"""Has every HTTP proxy of a cluster send `Connection: close` with its answers. Serve itself has no way to say it: its
proxies keep a connection for as long as requests come, and cut it off when they are ended."""


class ServeApi(Protocol):
    async def applications(self, target: DashboardTarget) -> Json:
        """By name, as Ray has them; none where Serve does not run. Raises DashboardError."""
        ...

    async def apply(self, target: DashboardTarget, body: bytes) -> None:
        """Make this the configuration of the cluster. Raises DashboardError."""
        ...

    async def release(self, target: DashboardTarget, name: str) -> None:
        """Have the proxies close each connection after its next answer; a name counts once. Raises DashboardError."""
        ...

    async def shut_down(self, target: DashboardTarget) -> None:
        """End Serve on the cluster, its proxies first. Raises DashboardError."""
        ...

    async def is_healthy(self, target: DashboardTarget) -> bool:
        """Does the Serve proxy at this address take requests?"""
        ...

    async def close(self) -> None: ...


class HttpServeApi:
    """Over HTTP, straight or through the API server."""

    def __init__(self, client: Client | None = None) -> None:
        """`client` where dashboards and pods are reached through the API server only."""
        self._quick = ProxiedDashboard(client) if client else HttpDashboard()
        self._patient = ProxiedDashboard(client) if client else HttpDashboard(PATIENT)

    async def applications(self, target: DashboardTarget) -> Json:
        code, body = await self._quick.call("GET", target, _READ)
        if code != 200:
            raise DashboardError(f"the dashboard at {target.address} answered {code} when asked for Serve applications")
        try:
            found = msgspec.json.decode(body, type=dict[str, msgspec.Raw]).get("applications", b"{}")
            return msgspec.json.decode(found, type=dict[str, dict[str, object]])
        except msgspec.MsgspecError as error:
            raise DashboardError(f"the dashboard at {target.address} sent no Serve applications: {error}") from error

    async def apply(self, target: DashboardTarget, body: bytes) -> None:
        code, answer = await self._patient.call("PUT", target, _WRITE, body)
        if not 200 <= code < 300:
            raise DashboardError(
                f"Serve refused the configuration with {code}: {answer[:300].decode(errors='replace')}"
            )

    async def release(self, target: DashboardTarget, name: str) -> None:
        body = {"entrypoint": shlex.join(["python", "-c", RELEASE]), "submission_id": name}
        await self._patient.submit(msgspec.structs.replace(target, body=msgspec.json.encode(body)))

    async def shut_down(self, target: DashboardTarget) -> None:
        code, _ = await self._patient.call("DELETE", target, _WRITE)
        if not 200 <= code < 300:
            raise DashboardError(f"the dashboard at {target.address} answered {code} when asked to end Serve")

    async def is_healthy(self, target: DashboardTarget) -> bool:
        try:
            code, _ = await self._quick.call("GET", target, _HEALTH)
        except DashboardError:
            return False
        return code == 200

    async def close(self) -> None:
        await self._quick.close()
        await self._patient.close()
