"""What is wrong with a RayCluster or a RayJob: asked by the reconcilers always, and by the admission webhook."""

from shoal.controllers.ray.validation.cluster_rules import problems_of_cluster
from shoal.controllers.ray.validation.job_rules import problems_of_job

__all__ = ["problems_of_cluster", "problems_of_job"]
