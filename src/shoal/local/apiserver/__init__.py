"""A Kubernetes API server in one process, for one machine: `Server` is all that others need."""

from shoal.local.apiserver.server import Server

__all__ = ["Server"]
