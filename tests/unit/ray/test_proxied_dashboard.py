"""Dashboards behind the API server: the right path, the right credentials, and the server's own noes told apart."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shoal.api import kinds
from shoal.controllers.ray import RaySettings
from shoal.controllers.ray.job.dashboard import DashboardError, DashboardTarget, JobInfo
from shoal.controllers.ray.job.proxied_dashboard import ProxiedDashboard
from shoal.kube.client import Client
from shoal.kube.errors import Unsent
from shoal.kube.transport import Request
from tests.conformance.kuberay_traces import Stage
from tests.unit.ray.builders import ray_job

PROXY = "/api/v1/namespaces/default/services/demo-head-svc:dashboard/proxy"


class Answer:
    def __init__(self, status: int, chunks: list[bytes]) -> None:
        self.status, self.chunks, self.headers = status, chunks, {}

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            yield chunk


class Server:
    """Answers every request with the same."""

    def __init__(self, status: int, *chunks: bytes, error: Exception | None = None) -> None:
        self.answer, self.error = Answer(status, [*chunks]), error
        self.asked: list[Request] = []

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None):
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        yield self.answer


def target(**more) -> DashboardTarget:
    return DashboardTarget("host:8265", "train-x", token="secret", proxy=PROXY, **more)


async def test_the_job_api_is_asked_through_the_head_services_proxy():
    server = Server(200, b'{"status": "RUN', b'NING", "message": "fine"}')
    dashboard = ProxiedDashboard(Client(server))
    assert await dashboard.job(target()) == JobInfo("RUNNING", "fine")
    await dashboard.submit(target(body=b'{"entrypoint": "x"}'))
    await dashboard.stop(target())
    assert [(one.method, one.path.removeprefix(PROXY)) for one in server.asked] == [
        ("GET", "/api/jobs/train-x"),
        ("POST", "/api/jobs/"),
        ("POST", "/api/jobs/train-x/stop"),
    ]
    assert server.asked[1].body == b'{"entrypoint": "x"}'
    assert {one.headers["x-ray-authorization"] for one in server.asked} == {"Bearer secret"}


async def test_rays_404_is_an_unknown_job_and_the_api_servers_is_not():
    assert await ProxiedDashboard(Client(Server(404, b"Job train-x does not exist"))).job(target()) is None
    gone = {"kind": "Status", "code": 404, "message": 'services "demo-head-svc" not found'}
    with pytest.raises(DashboardError, match="not found"):
        await ProxiedDashboard(Client(Server(404, json.dumps(gone).encode()))).job(target())


@pytest.mark.parametrize(
    "server, told",
    [
        (Server(200, *[b"x" * (1 << 19)] * 4), "more than"),
        (Server(302, b""), "redirects"),
        (Server(503, b"no endpoints"), "503"),
        (Server(200, error=Unsent("refused")), "does not answer"),
    ],
)
async def test_whatever_goes_wrong_is_an_error_and_no_more(server, told):
    with pytest.raises(DashboardError, match=told):
        await ProxiedDashboard(Client(server)).job(target())


async def test_the_operator_knows_the_way_to_every_jobs_dashboard():
    stage = Stage(RaySettings(kubernetes_proxy=True))
    await stage.start()
    await stage.client.create(kinds.RAY_JOB, ray_job(mode="HTTPMode"), "default")
    await stage.settle()
    await stage.play({"do": "setPods", "phase": "Running", "ready": True})
    asked: list[DashboardTarget] = []
    stage.dashboard.submit = lambda target: asked.append(target) or _done()
    await stage.settle()
    cluster = stage.objects(kinds.RAY_CLUSTER)[0]["metadata"]["name"]
    await stage.stop()
    assert asked[0].proxy == f"/api/v1/namespaces/default/services/{cluster}-head-svc:dashboard/proxy"


async def _done() -> None:
    return None
