"""Shoal's Ray operator: RayCluster, RayJob and Ray. `run(client, settings)` runs it until cancelled."""

from shoal.controllers.ray.operator import Operator, as_served, run
from shoal.controllers.ray.settings import RaySettings, from_environment
from shoal.controllers.ray.token_default import token_default
from shoal.controllers.ray.webhook import validator

__all__ = ["Operator", "RaySettings", "as_served", "from_environment", "run", "token_default", "validator"]
