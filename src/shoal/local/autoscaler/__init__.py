"""The node autoscaler of the one-machine cluster: pools grow for requests and pending pods, and shrink when idle."""

from shoal.local.autoscaler.autoscaler import Autoscaler, run

__all__ = ["Autoscaler", "run"]
