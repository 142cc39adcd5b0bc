"""Several clusters: one holds the queue, others take gangs, each whole and in one place; status flows back."""

from shoal.controllers.multicluster.agent import HubLeases
from shoal.controllers.multicluster.controller import ClusterController
from shoal.controllers.multicluster.places import HubPlaces
from shoal.controllers.multicluster.settings import ClusterSettings

__all__ = ["ClusterController", "ClusterSettings", "HubLeases", "HubPlaces"]
