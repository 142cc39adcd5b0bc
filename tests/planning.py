"""The planning loop put together for a test: AppWrappers, queues, or both, as the entry points do it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from shoal.controllers.appwrapper import AppWrapperController, AppWrapperSettings
from shoal.controllers.multicluster import HubPlaces
from shoal.controllers.planning import PlanningLoop
from shoal.controllers.planning.history.store import HistoryStore
from shoal.controllers.planning.ray_nodes import RayNodes
from shoal.controllers.queues import QueueController, QueueSettings
from shoal.kube.client import Client
from shoal.kube.clock import Clock


@dataclass
class Planned:
    """The loop and its sources, for a look inside."""

    loop: PlanningLoop
    wrappers: AppWrapperController
    queues: QueueController

    async def run(self) -> None:
        await self.loop.run()


def planned(
    client: Client,
    settings: AppWrapperSettings | None = None,
    clock: Clock | None = None,
    *,
    queues: QueueSettings | None = None,
    wrappers: bool = True,
    ray: RayNodes | None = None,
    places: HubPlaces | None = None,
    history: HistoryStore | None = None,
) -> Planned:
    """`queues`: with queued jobs, under these settings; without `wrappers` there are no AppWrappers. `ray`: how Ray is
    asked before its workers are taken. `places`: other clusters, to which gangs may go. `history`: with logs."""
    settings = settings or AppWrapperSettings()
    decisions = queues.decisions if queues is not None else None
    loop = PlanningLoop(client, msgspec.structs.replace(settings.planning, queues=decisions), clock, history=history)
    if places is not None:
        places.placing.keeper_for = loop.keeper_for
    made = AppWrapperController(loop, settings) if wrappers else None
    elsewhere = places.for_queues if places is not None else None
    queued = QueueController(loop, queues, ray, elsewhere) if queues is not None else None
    return Planned(loop, made, queued)  # type: ignore[arg-type]
