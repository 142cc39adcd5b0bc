"""HTTP: the HTTPS front and the transport without sockets, connections, fairness, audit, and how answers look."""

from shoal.local.apiserver.http.audit import AuditLog
from shoal.local.apiserver.http.fairness import Fairness
from shoal.local.apiserver.http.front import Front
from shoal.local.apiserver.http.inprocess import LocalTransport
from shoal.local.apiserver.http.presentation import Presenter

__all__ = ["AuditLog", "Fairness", "Front", "LocalTransport", "Presenter"]
