"""Metrics are for users that may get them; probes are for all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from shoal.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, NAMESPACE, SERVICE_ACCOUNT
from shoal.api.meta import Json
from shoal.cli import installation
from shoal.cli.install_values import Values
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from shoal.kube.errors import Unsent
from shoal.kube.health import HealthServer
from shoal.kube.scraping import KEPT, ScrapeReview
from shoal.kube.transport import Request, Response
from shoal.local.apiserver import Server
from tests.faults import proven

RBAC = "rbac.authorization.k8s.io"


class Counted:
    """The server's own transport; counts what is asked, and can be cut."""

    def __init__(self, server: Server) -> None:
        self._inner = server.transport()
        self.asked: list[str] = []
        self.is_cut = False

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        if self.is_cut:
            raise Unsent("cut")
        self.asked.append(request.path)
        return await self._inner.send(request, timeout=timeout)

    def stream(self, request: Request, *, idle_timeout: float | None = None) -> Any:
        return self._inner.stream(request, idle_timeout=idle_timeout)

    async def close(self) -> None:
        await self._inner.close()


class Scraped:
    def __init__(self, server: Server, clock: VirtualClock) -> None:
        self.server, self.clock = server, clock
        self.admin = Client(server.transport())
        self.wire = Counted(server)
        self.health = HealthServer()
        self.health.review = ScrapeReview(Client(self.wire), clock=clock)
        self.port = 0

    async def token_of(self, account: str) -> str:
        await self.admin.create(SERVICE_ACCOUNT, {"metadata": {"name": account}}, "monitoring")
        path = f"/api/v1/namespaces/monitoring/serviceaccounts/{account}/token"
        answer = await self.server.transport().send(Request(method="POST", path=path, body=b'{"spec":{}}'))
        return str(msgspec.json.decode(answer.body)["status"]["token"])

    async def get(self, path: str, token: str = "", scheme: str = "Bearer") -> tuple[int, str]:
        headers = {"Authorization": f"{scheme} {token}"} if token else {}
        url = f"http://127.0.0.1:{self.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
            return answer.status, await answer.text()


@pytest.fixture
async def scraped() -> AsyncIterator[Scraped]:
    server = Server(None)
    await server.start()
    found = Scraped(server, VirtualClock())
    found.port = await found.health.start(port=0)
    await found.admin.create(NAMESPACE, {"metadata": {"name": "monitoring"}})
    await found.admin.create(CLUSTER_ROLE, installation.metrics_role())
    try:
        yield found
    finally:
        await found.health.stop()
        await server.stop()


def binding(account: str) -> Json:
    return {
        "metadata": {"name": "scrapes"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": installation.METRICS_READER},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "monitoring"}],
    }


async def open_to_all(self: ScrapeReview, authorization: str, path: str) -> None:
    return None


def reviews_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScrapeReview, "refusal", open_to_all)


@proven(without=reviews_none)
async def test_f209_metrics_are_for_users_that_may_get_them(scraped: Scraped) -> None:
    """F209: a pod, or any client that reaches the controller's port, reads its metrics, which name queues and tenants.
    Holds: answered to a token whose user may get the path; probes are answered to all."""
    token, stranger = await scraped.token_of("prometheus"), await scraped.token_of("mallory")
    await scraped.admin.create(CLUSTER_ROLE_BINDING, binding("prometheus"))
    assert (await scraped.get("/metrics"))[0] == 401
    assert (await scraped.get("/metrics", "made-up"))[0] == 401
    assert (await scraped.get("/metrics", token, "Basic"))[0] == 401
    assert (await scraped.get("/metrics", token[:-2]))[0] == 401
    assert (await scraped.get("/metrics", "x" * 5000))[0] == 401
    status, text = await scraped.get("/metrics", stranger)
    assert status == 403 and "shoal-metrics" in text
    assert (await scraped.get("/metrics", token))[0] == 200
    assert (await scraped.get("/healthz"))[0] == (await scraped.get("/readyz"))[0] == 200


async def test_a_review_holds_for_a_minute(scraped: Scraped) -> None:
    token = await scraped.token_of("prometheus")
    await scraped.admin.create(CLUSTER_ROLE_BINDING, binding("prometheus"))
    assert (await scraped.get("/metrics", token))[0] == 200
    asked = len(scraped.wire.asked)
    assert (await scraped.get("/metrics", token))[0] == 200
    assert len(scraped.wire.asked) == asked == 2
    await scraped.admin.delete(CLUSTER_ROLE_BINDING, "scrapes")
    await scraped.clock.advance(KEPT + 1)
    assert (await scraped.get("/metrics", token))[0] == 403


async def test_without_an_answer_nothing_is_shown(scraped: Scraped) -> None:
    token = await scraped.token_of("prometheus")
    scraped.wire.is_cut = True
    status, text = await scraped.get("/metrics", token)
    assert status == 503 and "shoal" not in text
    scraped.wire.is_cut = False
    scraped.health.review = None
    assert (await scraped.get("/metrics"))[0] == 200  # --open-metrics


def test_the_installation_grants_what_reviews_need() -> None:
    made = installation.objects(Values(image="shoal:1"))
    names = {(one["kind"], one["metadata"]["name"]) for one in made}
    assert ("ClusterRole", installation.METRICS_READER) in names
    reviewed = [rule for rule in installation.rules() if "tokenreviews" in rule["resources"]]
    assert [rule["verbs"] for rule in reviewed] == [["create"]]
    opened = installation.objects(Values(image="shoal:1", open_metrics=True))
    assert "tokenreviews" not in str(opened) and "--open-metrics" in str(opened)
    assert ("ClusterRole", installation.METRICS_READER) not in {
        (one["kind"], one["metadata"]["name"]) for one in opened
    }
