"""Shoal's Ray operator: RayCluster, RayJob and Ray. `run(client, settings)` runs it until cancelled."""

from typing import TYPE_CHECKING

from shoal.controllers.ray.token_default import token_default
from shoal.lazy import lazily

if TYPE_CHECKING:
    from shoal.controllers.ray.operator import Operator, as_served, run
    from shoal.controllers.ray.settings import RaySettings, from_environment
    from shoal.controllers.ray.webhook import validator

__all__ = ["Operator", "RaySettings", "as_served", "from_environment", "run", "token_default", "validator"]

__getattr__ = lazily(
    __name__,
    {
        "Operator": "shoal.controllers.ray.operator",
        "as_served": "shoal.controllers.ray.operator",
        "run": "shoal.controllers.ray.operator",
        "RaySettings": "shoal.controllers.ray.settings",
        "from_environment": "shoal.controllers.ray.settings",
        "validator": "shoal.controllers.ray.webhook",
    },
)
