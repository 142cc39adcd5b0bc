"""From `apiVersion` and `kind` to the path of any kind."""

from __future__ import annotations

import asyncio

import msgspec

from shoal.api.kind import Kind
from shoal.kube.client import Client
from shoal.kube.discovery import Discovery
from shoal.kube.transport import Request, Response


class Serving:
    """A server that offers one group version and counts how often it is asked."""

    def __init__(self) -> None:
        self.resources: list[dict[str, object]] = []
        self.asked = 0

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        self.asked += 1
        await asyncio.sleep(0)
        if request.path != "/apis/example.test/v1":
            return Response(404, {}, b'{"kind":"Status","reason":"NotFound","code":404}')
        return Response(200, {}, msgspec.json.encode({"kind": "APIResourceList", "resources": self.resources}))


async def test_a_kind_is_found_once_and_remembered() -> None:
    server = Serving()
    server.resources = [
        {"name": "widgets", "kind": "Widget", "namespaced": True},
        {"name": "widgets/status", "kind": "Widget", "namespaced": True},
        {"name": "zones", "kind": "Zone", "namespaced": False},
    ]
    kinds = Discovery(Client(server))
    widget = Kind("example.test", "v1", "Widget", "widgets")
    assert await asyncio.gather(*(kinds.kind_of("example.test/v1", "Widget") for _ in range(5))) == [widget] * 5
    zone = await kinds.kind_of("example.test/v1", "Zone")
    assert zone is not None and not zone.namespaced
    assert server.asked == 1


async def test_a_kind_that_is_missing_is_asked_for_again() -> None:
    server = Serving()
    kinds = Discovery(Client(server))
    assert await kinds.kind_of("example.test/v1", "Widget") is None
    assert await kinds.kind_of("example.test/v9", "Widget") is None
    server.resources = [{"name": "widgets", "kind": "Widget", "namespaced": True}]
    found = await kinds.kind_of("example.test/v1", "Widget")
    assert found is not None
    kinds.forget(found)
    server.resources = []
    assert await kinds.kind_of("example.test/v1", "Widget") is None
