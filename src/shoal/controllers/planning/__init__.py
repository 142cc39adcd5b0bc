"""The planning loop, which owns the engine, and the protocol by which workloads of any kind join it.

`PlanningLoop` and `PlanningSettings` for entry points; `WorkloadSource` for a controller that brings gangs.
"""

from shoal.controllers.planning.loop import PlanningLoop
from shoal.controllers.planning.settings import PlanningSettings
from shoal.controllers.planning.source import NodeRequester, WorkloadSource

__all__ = ["NodeRequester", "PlanningLoop", "PlanningSettings", "WorkloadSource"]
