"""Ray Serve in a trace: dashboards that report what the script says, and proxies on head pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from shoal.controllers.ray.job.dashboard import DashboardError, DashboardTarget

Json = dict[str, Any]


class ScriptedServe:
    """A dashboard that gets a configuration reports its applications with `answers`, once that is set."""

    def __init__(self, head_is_ready: Callable[[str], bool]) -> None:
        """`head_is_ready` says it of a head pod by its name."""
        self._head_is_ready = head_is_ready
        self.answers: str | None = None
        self.proxies_healthy = False
        self.down: set[str] = set()
        self.all_down = False
        self.reported: dict[str, Json] = {}
        self.submissions: list[tuple[str, Json]] = []
        self.released: list[str] = []
        self.ended: list[str] = []

    async def applications(self, target: DashboardTarget) -> Json:
        return dict(self.reported.get(self._cluster(target), {}))

    async def apply(self, target: DashboardTarget, body: bytes) -> None:
        cluster, config = self._cluster(target), msgspec.json.decode(body)
        self.submissions.append((cluster, config))
        if self.answers is not None:
            named = [str(one.get("name") or "") for one in config.get("applications") or []]
            self.reported[cluster] = {name: {"status": self.answers} for name in named}

    async def release(self, target: DashboardTarget, name: str) -> None:
        self.released.append(self._cluster(target))

    async def shut_down(self, target: DashboardTarget) -> None:
        self.ended.append(self._cluster(target))

    async def is_healthy(self, target: DashboardTarget) -> bool:
        pod = target.proxy.split("/pods/")[1].split(":")[0]
        return self.proxies_healthy and self._head_is_ready(pod)

    async def close(self) -> None:
        return None

    def _cluster(self, target: DashboardTarget) -> str:
        cluster = target.address.split("-head-svc.")[0]
        if self.all_down or cluster in self.down:
            raise DashboardError(f"the dashboard of {cluster} does not answer")
        return cluster
