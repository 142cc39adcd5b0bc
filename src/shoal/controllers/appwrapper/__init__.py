"""AppWrappers, MCAD's dialect: held until the whole gang can start, then created at once."""

from shoal.controllers.appwrapper.controller import AppWrapperController
from shoal.controllers.appwrapper.settings import AppWrapperSettings
from shoal.kube.client import Client
from shoal.kube.clock import Clock

__all__ = ["AppWrapperController", "AppWrapperSettings", "run"]


async def run(client: Client, settings: AppWrapperSettings | None = None, clock: Clock | None = None) -> None:
    """Run the AppWrapper controller until cancelled."""
    await AppWrapperController(client, settings or AppWrapperSettings(), clock).run()
