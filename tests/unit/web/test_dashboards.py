"""Ray's dashboard through the API server's proxy, as a visitor of a real cluster reaches it."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from shoal.kube.client import Client
from shoal.kube.transport import Request, Response
from shoal.local.apiserver.http.inprocess import LocalStream
from tests.unit.web.visiting import served, tab

CLUSTER = {"metadata": {"name": "train", "namespace": "default", "uid": "1"}, "spec": {"headGroupSpec": {"template": {"spec": {"containers": [{"name": "h"}]}}}}}  # fmt: skip  # noqa: E501
SECRET = {"metadata": {"name": "train"}, "data": {"auth_token": base64.b64encode(b"of-the-cluster").decode()}}
INDEX = b"<!doctype html><html><head><title>Ray</title></head></html>"


class ProxyingServer:
    """The API server's side: one Ray cluster, its Secret, and the proxy of its Service."""

    def __init__(self) -> None:
        self.asked: list[Request] = []

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        found = SECRET if "/secrets/" in request.path else CLUSTER
        return Response(200, {}, msgspec.json.encode(found))

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[LocalStream]:
        self.asked.append(request)
        kind = "text/html" if request.path.endswith("/proxy/") else "application/json"
        headers = {"content-type": kind, "set-cookie": "shoal_page=taken", "access-control-allow-origin": "evil"}
        yield LocalStream(200, headers, _once(INDEX if kind == "text/html" else b"{}"))

    async def close(self) -> None:
        """Nothing is open."""


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def test_requests_go_through_the_services_proxy_with_the_clusters_token() -> None:
    behind = ProxyingServer()
    async with served() as page, tab(page, Client(behind)) as browser:
        status, told = await browser.post("/data/dashboard", {"namespace": "default", "name": "train"})
        assert status == 200, told
        async with browser.http.get(page.address + told["path"]) as answer:
            text, headers = await answer.text(), answer.headers
        assert "<title>Ray</title>" in text and text.index("sessionStorage") < text.index("<title>")
        assert headers["Content-Security-Policy"].startswith("sandbox allow-scripts")
        assert "allow-same-origin" not in headers["Content-Security-Policy"] and "Set-Cookie" not in headers
        path = f"{page.address}{told['path']}api/jobs/?limit=1"
        async with browser.http.get(path, headers={"X-Shoal-Key": "mine", "Origin": "null"}) as answer:
            assert answer.status == 200 and answer.headers["Access-Control-Allow-Origin"] == "*"
        first, second = behind.asked
        assert first.path.startswith("/api/v1/namespaces/default/services/train-head-svc:8265/proxy/")
        assert second.path.endswith("/proxy/api/jobs/?limit=1")
        assert second.headers["x-ray-authorization"] == "Bearer of-the-cluster"
        assert not {"cookie", "x-shoal-key", "origin", "authorization"} & {name.lower() for name in second.headers}


async def test_a_path_that_was_not_made_for_the_visitor_leads_nowhere() -> None:
    async with served() as page, tab(page, Client(ProxyingServer())) as browser:
        for path in ("/ray/guess/", "/ray//", "/ray/guess/../data/me"):
            async with browser.http.get(page.address + path) as answer:
                assert answer.status in (401, 404)
