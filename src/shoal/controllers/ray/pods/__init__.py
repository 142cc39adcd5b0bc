"""The pods of a Ray cluster: how a head and a worker are built, and what the status of one means. All pure."""

from shoal.controllers.ray.pods.builder import head_pod, worker_pod
from shoal.controllers.ray.pods.observed import is_dead

__all__ = ["head_pod", "is_dead", "worker_pod"]
