"""What stands around the operator in a trace: a clock that moves when told, a dashboard with a script, a quota.

Used by the stage that plays traces (kuberay_traces) and by the tests that put an operator of their own together.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

from shoal.controllers.ray.job.dashboard import DashboardError, DashboardTarget, JobInfo
from shoal.kube.transport import Request, Response

Json = dict[str, Any]


class StillClock:
    """Time that moves only when told."""

    def __init__(self) -> None:
        self.moment = time.time_ns() // 1000
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    def now(self) -> int:
        return self.moment

    def monotonic(self) -> float:
        return self.moment / 1_000_000

    async def sleep(self, seconds: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.moment + int(seconds * 1_000_000), waiter))
        await waiter

    def advance(self, seconds: float) -> None:
        self.moment += int(seconds * 1_000_000)
        for due, waiter in self._sleepers:
            if due <= self.moment and not waiter.done():
                waiter.set_result(None)
        self._sleepers = [(due, waiter) for due, waiter in self._sleepers if due > self.moment]


class ScriptedDashboard:
    def __init__(self) -> None:
        self.info: Json = {"notFound": True}
        self.submitted = False
        self.stopped = False

    async def job(self, target: DashboardTarget) -> JobInfo | None:
        if self.info.get("error"):
            raise DashboardError(self.info["error"])
        if self.info.get("notFound"):
            return None
        known = {key: value for key, value in self.info.items() if key in JobInfo.__struct_fields__}
        return JobInfo(**known)

    async def submit(self, target: DashboardTarget) -> None:
        self.submitted = True

    async def stop(self, target: DashboardTarget) -> None:
        self.stopped = True

    async def close(self) -> None:
        return None


class SilentServe:
    """No dashboard answers for Serve, no proxy takes requests."""

    async def applications(self, target: DashboardTarget) -> Json:
        raise DashboardError("the dashboard does not answer")

    async def apply(self, target: DashboardTarget, body: bytes) -> None:
        raise DashboardError("the dashboard does not answer")

    async def release(self, target: DashboardTarget, name: str) -> None:
        raise DashboardError("the dashboard does not answer")

    async def shut_down(self, target: DashboardTarget) -> None:
        raise DashboardError("the dashboard does not answer")

    async def is_healthy(self, target: DashboardTarget) -> bool:
        return False

    async def close(self) -> None:
        return None


class QuotaTransport:
    """The server's transport, refusing new pods while the quota denies; counts writes."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.deny = False
        self.writes: Counter[str] = Counter()

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        if request.method != "GET":
            path = request.path.split("/")
            named = path[-2] if request.method in ("PATCH", "DELETE", "PUT") else path[-1]
            self.writes[f"{request.method} {path[-1] if path[-1] == 'status' else named}"] += 1
        if self.deny and request.method == "POST" and request.path.endswith("/pods"):
            body = b'{"kind":"Status","reason":"Forbidden","code":403,"message":"exceeded quota: compute"}'
            return Response(403, {}, body)
        return await self.inner.send(request, timeout=timeout)

    def stream(self, request: Request, *, idle_timeout: float | None = None) -> Any:
        return self.inner.stream(request, idle_timeout=idle_timeout)

    async def close(self) -> None:
        await self.inner.close()
