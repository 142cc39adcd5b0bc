"""A Kubernetes API server in one process, for one machine: `Server` is all that others need.

The folders, from the bottom: `primitives`, `patch`, `storage`, `cel`, `schema`, `kinds`, `requests`, `auth`, `crd`,
`validation`, `admission`, `streams`, `verbs`, `openapi`, `tables`, `http`. Each imports only those before it.
"""

from shoal.local.apiserver.server import Server

__all__ = ["Server"]
