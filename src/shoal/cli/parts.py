"""What runs while a replica of `shoal controller` leads: the controllers that were asked for, and what each needs.

Gangs of every kind share one planning loop; the Ray operator and the hub run beside it. Called by `cli/controller.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from shoal.cli.readiness import REQUIRED, Readiness, RunningPart
from shoal.errors import BadInput
from shoal.kube.cache import Cache
from shoal.kube.collector import spare_collector
from shoal.kube.health import HealthServer, cache_samples, write_samples
from shoal.kube.rate import RequestRate, rate_limited
from shoal.kube.writes import Writes

if TYPE_CHECKING:
    from shoal.cli.visibility import Visibility
    from shoal.controllers.appwrapper import AppWrapperSettings
    from shoal.controllers.multicluster import HubPlaces
    from shoal.controllers.planning import PlanningLoop
    from shoal.controllers.planning.history.notices import NoticeSettings
    from shoal.controllers.planning.history.store import HistoryStore
    from shoal.controllers.queues import QueueSettings
    from shoal.controllers.ray import RaySettings
    from shoal.kube.lease import Leadership, Term

log = logging.getLogger("shoal")

PARTS = ("appwrapper", "queues", "ray")
ON_REQUEST = ("clusters",)
"""Run only where they are named: the hub of several clusters reads the kubeconfigs of the others."""
Part = Callable[[Writes], Coroutine[Any, Any, None]]


def chosen_parts(only: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in only.split(",") if name.strip())
    known = (*PARTS, *ON_REQUEST)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise BadInput(
            f"--only {only}: there is no controller {', '.join(unknown) or 'named'}; choose from {', '.join(known)}"
        )
    return names


def parts_named(
    names: tuple[str, ...],
    settings: AppWrapperSettings,
    of_queues: QueueSettings,
    ray_settings: RaySettings,
    health: HealthServer,
    readiness: Readiness,
    history: HistoryStore | None = None,
    places: HubPlaces | None = None,
    notices: NoticeSettings | None = None,
    visible: Visibility | None = None,
) -> dict[str, Part]:
    """What runs while a replica leads. `health` serves their metrics, `readiness` is told how they stand, `visible`
    tells the order of the queues."""
    from msgspec import structs

    parts: dict[str, Part] = {}
    if "ray" in names:  # what our operator adds to its pods counts in every gang
        from shoal.controllers import ray

        settings = structs.replace(settings, ray_sidecars=ray_settings.sidecars)
        of_queues = structs.replace(of_queues, ray_sidecars=ray_settings.sidecars)
    with_ray_gangs = "ray" in names and ray_settings.gang == "on"
    if "appwrapper" in names or "queues" in names or with_ray_gangs:
        from shoal.controllers import appwrapper, queues, ray_gangs
        from shoal.controllers.planning import PlanningLoop
        from shoal.controllers.queues.visibility import PendingWorkloads
        from shoal.controllers.ray.job import HttpDashboard, ProxiedDashboard
        from shoal.controllers.ray.nodes import DashboardNodes

        leading: list[PlanningLoop] = []
        health.add_families(lambda: [family for one in leading for family in one.metrics.collect()])
        health.add_metrics(
            lambda: [sample for one in leading for cache in watched_by(one) for sample in cache_samples(cache)]
        )
        health.add_metrics(lambda: [sample for one in leading for sample in write_samples(one.writes)])
        required = tuple(kind for name in ("gangs", *names) if name != "ray" for kind in REQUIRED.get(name, ()))
        planned = structs.replace(settings.planning, queues=of_queues.decisions if "queues" in names else None)

        async def run_gangs(writes: Writes) -> None:
            leading[:] = [PlanningLoop(writes.client, planned, writes=writes, history=history, notices=notices)]
            if places is not None:
                places.placing.keeper_for = leading[0].keeper_for
            if "appwrapper" in names:
                appwrapper.AppWrapperController(leading[0], settings, places.for_wrappers if places else None)
            if with_ray_gangs:
                ray_gangs.RayGangController(leading[0], ray_settings.sidecars, ray_settings.namespaces)
            if "queues" in names:
                asked = ProxiedDashboard(writes.client) if ray_settings.kubernetes_proxy else HttpDashboard()
                nodes = DashboardNodes(writes.client, ray_settings, asked)
                queued = queues.QueueController(leading[0], of_queues, nodes, places.for_queues if places else None)
                if visible is not None:
                    visible.follow(PendingWorkloads(queued.caches, leading[0].engine))
            loop = leading[0]
            sparing = asyncio.create_task(_spare_collector_after(loop.ready))
            readiness.runs("gangs", RunningPart(loop.ready.is_set, lambda: watched_by(loop), required))
            try:
                await loop.run()
            finally:
                sparing.cancel()
                leading.clear()
                if visible is not None:
                    visible.follow(None)
                readiness.ended("gangs")

        readiness.require("gangs")
        parts["gangs"] = run_gangs
    if "ray" in names:
        operators: list[ray.Operator] = []
        health.add_families(lambda: operators[0].collect() if operators else ())
        health.add_metrics(
            lambda: [one for op in operators for cache in op.caches.all() for one in cache_samples(cache)]
        )

        async def run_ray(writes: Writes) -> None:
            operator = ray.Operator(writes.client, await ray.as_served(writes.client, ray_settings), writes=writes)
            operators[:] = [operator]
            readiness.runs("ray", RunningPart(operator.ready.is_set, operator.caches.all, REQUIRED["ray"]))
            try:
                await operator.run_until_cancelled()
            finally:
                operators.clear()
                readiness.ended("ray")

        readiness.require("ray")
        parts["ray"] = run_ray
    return parts


def watched_by(loop: PlanningLoop) -> list[Cache[Any]]:
    """Everything that its decisions depend on."""
    return [*loop.caches.all, *(cache for source in loop.sources for cache in source.watched())]


async def _spare_collector_after(ready: asyncio.Event) -> None:
    await ready.wait()
    spare_collector()


async def lead_with(parts: dict[str, Part], leadership: Leadership, rate: RequestRate | None = None) -> None:
    """Stand by, and run every part whenever this replica leads, until cancelled."""

    async def lead(term: Term) -> None:
        fenced = leadership.fenced(term)
        writes = Writes(rate_limited(fenced, rate) if rate else fenced)  # one for all parts
        async with asyncio.TaskGroup() as tasks:
            for name, part in parts.items():
                log.info("%s starts", name)
                tasks.create_task(part(writes), name=name)

    await leadership.run(lead)
