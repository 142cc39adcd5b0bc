"""AppWrappers, MCAD's dialect: held until the whole gang can start, then created at once."""

from shoal.controllers.appwrapper.controller import AppWrapperController
from shoal.controllers.appwrapper.settings import AppWrapperSettings
from shoal.controllers.planning import PlanningLoop
from shoal.kube.client import Client
from shoal.kube.clock import Clock

__all__ = ["AppWrapperController", "AppWrapperSettings", "run"]


async def run(client: Client, settings: AppWrapperSettings | None = None, clock: Clock | None = None) -> None:
    """Run the planning loop with AppWrappers alone until cancelled."""
    settings = settings or AppWrapperSettings()
    planning = PlanningLoop(client, settings.planning, clock)
    AppWrapperController(planning, settings)
    await planning.run()
