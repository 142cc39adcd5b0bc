"""Which type holds which kind, found by apiVersion and kind.

Custom kinds come from the CRD catalogue, so that a kind cannot have a CRD and no type or the other way round. Built-in
kinds are typed only as far as they are read: their types are views and say nothing about unknown fields.
"""

from __future__ import annotations

import msgspec

from shoal.api import apps, batch, coordination, core, kinds, rbac, scheduling
from shoal.api.crds.catalogue import DEFINITIONS
from shoal.api.kind import Kind
from shoal.api.meta import Object


class RegisteredKind(msgspec.Struct, frozen=True):
    """`complete` says that the type lists every field of the kind."""

    kind: Kind
    type: type[Object]
    complete: bool


_BUILT_IN: dict[Kind, type[Object]] = {
    kinds.NAMESPACE: core.Namespace,
    kinds.NODE: core.Node,
    kinds.POD: core.Pod,
    kinds.SERVICE: core.Service,
    kinds.ENDPOINTS: core.Endpoints,
    kinds.CONFIG_MAP: core.ConfigMap,
    kinds.SECRET: core.Secret,
    kinds.SERVICE_ACCOUNT: core.ServiceAccount,
    kinds.EVENT: core.Event,
    kinds.POD_TEMPLATE: core.PodTemplateObject,
    kinds.PERSISTENT_VOLUME_CLAIM: core.PersistentVolumeClaim,
    kinds.LIMIT_RANGE: core.LimitRange,
    kinds.RESOURCE_QUOTA: core.ResourceQuota,
    kinds.DEPLOYMENT: apps.Deployment,
    kinds.REPLICA_SET: apps.ReplicaSet,
    kinds.STATEFUL_SET: apps.StatefulSet,
    kinds.DAEMON_SET: apps.DaemonSet,
    kinds.JOB: batch.Job,
    kinds.ROLE: rbac.Role,
    kinds.CLUSTER_ROLE: rbac.Role,
    kinds.ROLE_BINDING: rbac.RoleBinding,
    kinds.CLUSTER_ROLE_BINDING: rbac.RoleBinding,
    kinds.LEASE: coordination.Lease,
    kinds.PRIORITY_CLASS: scheduling.PriorityClass,
}


def _custom() -> list[RegisteredKind]:
    return [
        RegisteredKind(
            Kind(definition.group, version.name, definition.kind, definition.plural, definition.namespaced),
            version.type,
            complete=True,
        )
        for definition in DEFINITIONS
        for version in definition.versions
    ]


ENTRIES: tuple[RegisteredKind, ...] = (
    *(RegisteredKind(kind, type_, complete=False) for kind, type_ in _BUILT_IN.items()),
    *_custom(),
)
_BY_NAME = {(entry.kind.api_version, entry.kind.kind): entry for entry in ENTRIES}


def lookup(api_version: str, kind: str) -> RegisteredKind | None:
    """The entry of a kind at a version, or None for kinds that Shoal does not type."""
    return _BY_NAME.get((api_version, kind))


def type_of(kind: Kind) -> type[Object]:
    """The type of one of our kinds; any other kind decodes as far as its metadata."""
    entry = _BY_NAME.get((kind.api_version, kind.kind))
    return entry.type if entry else Object
