"""The controllers that Kubernetes itself brings, for the one-machine cluster.

`run_all(client)` runs them until cancelled: garbage collection, namespaces, ReplicaSets, Deployments, StatefulSets,
DaemonSets, Jobs, endpoints and pod clean-up. They speak to the server as anyone else does and work just as well against
a real one.
"""

from shoal.local.builtin.runner import run_all

__all__ = ["run_all"]
