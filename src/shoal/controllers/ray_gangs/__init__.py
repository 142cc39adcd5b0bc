"""RayJobs and RayClusters that no queue and no AppWrapper holds, as gangs of the planning loop.

`RayGangController` joins the loop; the Ray operator makes nothing of a gang before its start is stored here.
"""

from shoal.controllers.ray_gangs.controller import RayGangController

__all__ = ["RayGangController"]
