"""Several clusters: one holds the queue, others take gangs, each whole and in one place; status flows back."""

from shoal.controllers.multicluster.controller import ClusterController
from shoal.controllers.multicluster.settings import ClusterSettings
from shoal.controllers.multicluster.wrappers import AppWrapperPlaces

__all__ = ["AppWrapperPlaces", "ClusterController", "ClusterSettings"]
