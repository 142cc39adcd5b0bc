"""What a manifest will ask for, before anything of it exists: pod templates, their counts and their amounts.

Asked by every controller that decides about gangs, so that all of them mean the same pods. Pure.
"""

from shoal.controllers.demand.devices import tolerating, tolerating_template
from shoal.controllers.demand.pod_defaults import NOTHING, Defaults, completed, defaults_of
from shoal.controllers.demand.ray import Workers
from shoal.controllers.demand.templates import Template, as_made, pods_at_start, templates
from shoal.controllers.ray.settings import RaySidecars

__all__ = [
    "NOTHING",
    "Defaults",
    "RaySidecars",
    "Template",
    "Workers",
    "as_made",
    "completed",
    "defaults_of",
    "pods_at_start",
    "templates",
    "tolerating",
    "tolerating_template",
]
