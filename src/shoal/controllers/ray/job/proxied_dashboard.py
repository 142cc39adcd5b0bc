"""A dashboard reached through the API server, for an operator that the cluster's network does not serve.

The same calls with the same distrust as the direct way; only the road differs: the head Service's proxy, whose address
is made from the cluster's own names. Our credential goes to the API server alone, the cluster's token to its dashboard.
"""

from __future__ import annotations

import asyncio

import msgspec

from shoal.controllers.ray.job.dashboard import LARGEST_ANSWER, DashboardError, DashboardTarget, HttpDashboard
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.kube.transport import Request

_TIMEOUT = 10.0


class ProxiedDashboard(HttpDashboard):
    def __init__(self, client: Client, timeout: float = _TIMEOUT) -> None:
        super().__init__(timeout)
        self._client, self._seconds = client, timeout

    async def call(self, method: str, target: DashboardTarget, path: str, body: bytes = b"") -> tuple[int, bytes]:
        headers = {**self._client.headers, "accept": "application/json"}
        if body:
            headers["content-type"] = "application/json"
        if target.token:
            headers["x-ray-authorization"] = f"Bearer {target.token}"
        request = Request(method=method, path=f"{target.proxy}{path}", headers=headers, body=body)
        try:
            async with asyncio.timeout(self._seconds):
                code, content = await self._answer(request)
        except TimeoutError:
            raise DashboardError(f"the dashboard behind {target.proxy} does not answer: timeout") from None
        except KubeError as error:
            raise DashboardError(f"the dashboard behind {target.proxy} does not answer: {error}") from error
        if 300 <= code < 400:
            raise DashboardError(f"the dashboard behind {target.proxy} redirects, which is refused")
        if code >= 400 and _is_the_servers_own(content):
            raise DashboardError(
                f"the API server does not reach {target.proxy}: {content[:300].decode(errors='replace')}"
            )
        return code, content

    async def _answer(self, request: Request) -> tuple[int, bytes]:
        content = b""
        async with self._client.transport.stream(request, idle_timeout=self._seconds) as stream:
            async for chunk in stream:
                content += chunk
                if len(content) > LARGEST_ANSWER:
                    raise DashboardError(f"{request.path} answers with more than {LARGEST_ANSWER} bytes")
            return stream.status, content


def _is_the_servers_own(content: bytes) -> bool:
    """Not the dashboard but the API server says no; its 404 must not pass for a job that Ray does not know."""
    try:
        return msgspec.json.decode(content, type=dict[str, object]).get("kind") == "Status"
    except msgspec.MsgspecError:
        return False
