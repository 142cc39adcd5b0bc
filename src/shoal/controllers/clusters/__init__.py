"""Several clusters: one holds the queue, others take gangs, each whole and in one place; status flows back."""

from shoal.controllers.clusters.controller import ClusterController
from shoal.controllers.clusters.settings import ClusterSettings

__all__ = ["ClusterController", "ClusterSettings"]
