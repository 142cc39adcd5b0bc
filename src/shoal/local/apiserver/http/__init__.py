"""HTTP: the HTTPS front and the transport without sockets, connections, fairness, audit, and how answers look."""

from typing import TYPE_CHECKING

from shoal.lazy import lazily
from shoal.local.apiserver.http.audit import AuditLog
from shoal.local.apiserver.http.fairness import Fairness
from shoal.local.apiserver.http.inprocess import LocalTransport
from shoal.local.apiserver.http.presentation import Presenter

if TYPE_CHECKING:
    from shoal.local.apiserver.http.front import Front

__all__ = ["AuditLog", "Fairness", "Front", "LocalTransport", "Presenter"]

__getattr__ = lazily(__name__, {"Front": "shoal.local.apiserver.http.front"})
