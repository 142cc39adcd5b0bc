"""coordination.k8s.io/v1 Lease: who leads, and until when."""

from __future__ import annotations

from shoal.api.meta import Object, Part


class LeaseSpec(Part):
    """Times are MicroTime text; `lease_transitions` grows by one each time the holder changes."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None
    strategy: str | None = None
    preferred_holder: str | None = None


class Lease(Object):
    spec: LeaseSpec = LeaseSpec()
