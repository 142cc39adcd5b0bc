"""The parts of rbac.authorization.k8s.io/v1 that Shoal reads and writes: who may do what."""

from __future__ import annotations

import msgspec

from shoal.api.fields import ABSENT
from shoal.api.meta import Object, Part


class PolicyRule(Part):
    verbs: tuple[str, ...] = ()
    api_groups: tuple[str, ...] | None = None
    resources: tuple[str, ...] | None = None
    resource_names: tuple[str, ...] | None = None
    non_resource_urls: tuple[str, ...] | None = msgspec.field(default=None, name="nonResourceURLs")


class Role(Object):
    """A Role or a ClusterRole."""

    rules: tuple[PolicyRule, ...] | None = None
    aggregation_rule: msgspec.Raw = ABSENT


class Subject(Part):
    kind: str = ""
    api_group: str = ""
    name: str = ""
    namespace: str = ""


class RoleRef(Part):
    api_group: str = ""
    kind: str = ""
    name: str = ""


class RoleBinding(Object):
    """A RoleBinding or a ClusterRoleBinding."""

    subjects: tuple[Subject, ...] | None = None
    role_ref: RoleRef = RoleRef()
