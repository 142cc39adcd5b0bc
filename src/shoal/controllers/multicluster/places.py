"""What the hub of several clusters offers to those that decide: one ledger, and what each kind of gang asks of it.

Made once at the entry point, handed to the AppWrapper controller, the queue controller and the hub itself.
"""

from __future__ import annotations

from shoal.controllers.multicluster.placing import ClusterPlacing
from shoal.controllers.multicluster.queued import QueuedPlaces
from shoal.controllers.multicluster.settings import ClusterSettings
from shoal.controllers.multicluster.wrappers import AppWrapperPlaces
from shoal.kube.clock import Clock


class HubPlaces:
    def __init__(self, settings: ClusterSettings, clock: Clock | None = None) -> None:
        self.placing = ClusterPlacing(settings, clock)
        self.wrappers = AppWrapperPlaces(self.placing)
        self.queued = QueuedPlaces(self.placing)

    @property
    def for_wrappers(self) -> AppWrapperPlaces | None:
        """None where AppWrappers stay in this cluster."""
        return self.wrappers if self.placing.settings.app_wrappers else None

    @property
    def for_queues(self) -> QueuedPlaces | None:
        """None where another dispatcher chooses."""
        return self.queued if self.placing.settings.chooses else None
