"""The kinds that the server knows without being told, as data, and the registry that CRDs add to.

Discovery, routing, printing and the generic verbs all read this; a kind's particular behaviour lives in admission and
validation, never here.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from shoal.api.kind import Kind
from shoal.api.kinds import LEGACY_GROUPS
from shoal.api.meta import Json
from shoal.local.apiserver.patch.field_shapes import GUESSED, FieldShape, of_kind, of_schema
from shoal.local.apiserver.storage.collection import Collection
from shoal.local.apiserver.storage.store import Storage

if TYPE_CHECKING:
    from shoal.local.apiserver.schema.structural import Structural

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
ONLY_CREATE = ("create",)
SPOKEN_GROUP = {
    "Scale": ("autoscaling", "v1"),
    "Eviction": ("policy", "v1"),
    "TokenRequest": ("authentication.k8s.io", "v1"),
}
"""Where the kinds belong that only subresources speak."""


class PrinterColumn(msgspec.Struct, frozen=True):
    """A printer column of a custom kind."""

    name: str
    type: str
    path: str
    description: str = ""
    format: str = ""
    priority: int = 0


class ServedVersion:
    """One version of a resource. `schema` is None for built-in kinds (their own validation applies)."""

    def __init__(
        self,
        kind: Kind,
        *,
        served: bool = True,
        raw_schema: Json | None = None,
        columns: tuple[PrinterColumn, ...] | None = None,
        scale: Json | None = None,
        status: bool = False,
        selectable: tuple[str, ...] = (),
        warning: str = "",
    ) -> None:
        self.kind = kind
        self.name = kind.version
        self.served = served
        self.raw_schema = raw_schema
        self.columns = columns
        self.scale = scale  # specReplicasPath, statusReplicasPath, labelSelectorPath
        self.status = status
        self.selectable = selectable
        self.warning = warning

    @cached_property
    def schema(self) -> Structural | None:
        """The compiled schema of a custom kind; compiled on first use, so that a start with many CRDs stays quick."""
        if self.raw_schema is None:
            return None
        from shoal.local.apiserver.schema.structural import (
            compiled,  # brings CEL, which a server without CRDs need not load
        )

        return compiled(self.raw_schema)

    @cached_property
    def shape(self) -> FieldShape:
        """How server-side apply divides objects of this version."""
        return of_schema(self.raw_schema) if self.raw_schema is not None else of_kind(self.kind) or GUESSED


class Resource:
    """One resource in all its versions, with its objects."""

    def __init__(
        self,
        versions: dict[str, ServedVersion],
        storage_version: str,
        collection: Collection,
        *,
        singular: str,
        short_names: tuple[str, ...] = (),
        categories: tuple[str, ...] = (),
        verbs: tuple[str, ...] = ALL_VERBS,
        subresources: dict[str, str] | None = None,
        generation: bool = False,
        returns_deleted: bool = False,
        custom: bool = False,
        list_kind: str = "",
        conversion: Json | None = None,
        mixed: bool = False,
    ) -> None:
        self.versions = versions
        self.storage_version = storage_version
        first = versions[storage_version].kind
        self.group = first.group
        self.kind = first.kind
        self.plural = first.plural
        self.namespaced = first.namespaced
        self.collection = collection
        self.singular = singular
        self.short_names = short_names
        self.categories = categories
        self.verbs = verbs
        self.subresources = subresources or {}
        self.generation = generation
        self.returns_deleted = returns_deleted
        self.custom = custom
        self.list_kind = list_kind or self.kind + "List"
        self.conversion = conversion or {}
        self.mixed = mixed  # some objects may be stored in another version or shape than the storage version's
        self.since = 0  # objects of a revision before this one were written under another schema

    @property
    def name(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def stored_schema(self) -> tuple[str, Json | None]:
        return self.storage_version, self.versions[self.storage_version].raw_schema

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources or any(version.status for version in self.versions.values())

    def subresources_of(self, version: ServedVersion) -> dict[str, str]:
        """Subresource name to the kind it speaks, for one version."""
        if not self.custom:
            return self.subresources
        found = {}
        if version.status:
            found["status"] = self.kind
        if version.scale:
            found["scale"] = "Scale"
        return found


class Registry:
    """Every resource, by group and plural."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._resources: dict[tuple[str, str], Resource] = {}
        self.generation = 0  # changes with every addition: what discovery and OpenAPI cache by
        self._groups: tuple[int, dict[str, list[str]]] = (-1, {})
        for line in BUILT_IN:
            self.add(line.resource(storage))
        self._alias_events()

    def _alias_events(self) -> None:
        """events.k8s.io shows the very objects of core events."""
        core = self._resources[("", "events")]
        other = self._resources[("events.k8s.io", "events")]
        other.collection = core.collection
        other.mixed = True

    def add(self, resource: Resource) -> None:
        self._resources[(resource.group, resource.plural)] = resource
        self.generation += 1

    def drop(self, group: str, plural: str) -> None:
        if self._resources.pop((group, plural), None) is not None:
            self.generation += 1

    def find(self, group: str, plural: str) -> Resource | None:
        return self._resources.get((group, plural))

    def by_kind(self, group: str, kind: str) -> Resource | None:
        for resource in self._resources.values():
            if resource.group == group and resource.kind == kind:
                return resource
        return None

    def all(self) -> list[Resource]:
        return list(self._resources.values())

    def groups(self) -> dict[str, list[str]]:
        """Served versions by group, best first; the core group is the empty name. The answer must not be changed.

        kubectl resolves a bare name such as `appwrapper` to the first group that has it, so legacy groups come last.
        """
        generation, known = self._groups
        if generation != self.generation:
            known = self._found_groups()
            self._groups = (self.generation, known)
        return known

    def _found_groups(self) -> dict[str, list[str]]:
        found: dict[str, set[str]] = {}
        for resource in self._resources.values():
            for version in resource.versions.values():
                if version.served:
                    found.setdefault(resource.group, set()).add(version.name)
        order = sorted(found, key=LEGACY_GROUPS.__contains__)
        return {group: sorted(found[group], key=version_rank) for group in order}


def version_rank(version: str) -> tuple[int, int, int, str]:
    """Sort key: v2 before v1 before v1beta2 before v1alpha1 before anything else, as Kubernetes orders them."""
    if version.startswith("v"):
        for rank, word in ((1, "beta"), (2, "alpha")):
            major, found, minor = version[1:].partition(word)
            if found and major.isdecimal() and minor.isdecimal():
                return (rank, -int(major), -int(minor), "")
        if version[1:].isdecimal():
            return (0, -int(version[1:]), 0, "")
    return (3, 0, 0, version)


class Line(msgspec.Struct, frozen=True):
    """One row of the table below."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: dict[str, str] = {}
    generation: bool = False
    returns_deleted: bool = False
    verbs: tuple[str, ...] = ALL_VERBS

    def resource(self, storage: Storage) -> Resource:
        kind = Kind(self.group, self.version, self.kind, self.plural, self.namespaced)
        version = ServedVersion(kind, status="status" in self.subresources)
        name = f"{self.plural}.{self.group}" if self.group else self.plural
        return Resource(
            {self.version: version},
            self.version,
            storage.collection(name),
            singular=self.singular,
            short_names=self.short,
            categories=self.categories,
            verbs=self.verbs,
            subresources=dict(self.subresources),
            generation=self.generation,
            returns_deleted=self.returns_deleted,
        )


def _line(
    group: str,
    kind: str,
    plural: str,
    *,
    cluster: bool = False,
    short: str = "",
    all: bool = False,
    sub: str = "",
    generation: bool = False,
    returns: bool = False,
    verbs: tuple[str, ...] = ALL_VERBS,
    categories: str = "",
) -> Line:
    subresources = {}
    for word in sub.split():
        name, _, speaks = word.partition(":")
        subresources[name] = speaks or kind
    return Line(
        group,
        "v1",
        kind,
        plural,
        kind.lower(),
        not cluster,
        tuple(short.split()),
        (("all",) if all else ()) + tuple(categories.split()),
        subresources,
        generation,
        returns,
        verbs,
    )


_APPS = "status scale:Scale"
_RBAC = "rbac.authorization.k8s.io"
_POD_SUB = (
    "status log binding:Binding eviction:Eviction attach:PodAttachOptions exec:PodExecOptions "
    "portforward:PodPortForwardOptions ephemeralcontainers resize"
)
_EXTENSIONS = "api-extensions"

BUILT_IN: tuple[Line, ...] = (
    _line("", "Binding", "bindings", verbs=ONLY_CREATE),
    _line("", "ComponentStatus", "componentstatuses", cluster=True, short="cs", verbs=("get", "list")),
    _line("", "ConfigMap", "configmaps", short="cm"),
    _line("", "Endpoints", "endpoints", short="ep"),
    _line("", "Event", "events", short="ev"),
    _line("", "LimitRange", "limitranges", short="limits"),
    _line(
        "",
        "Namespace",
        "namespaces",
        cluster=True,
        short="ns",
        sub="status finalize",
        returns=True,
        verbs=tuple(verb for verb in ALL_VERBS if verb != "deletecollection"),
    ),
    _line("", "Node", "nodes", cluster=True, short="no", sub="status"),
    _line("", "PersistentVolume", "persistentvolumes", cluster=True, short="pv", sub="status", returns=True),
    _line("", "PersistentVolumeClaim", "persistentvolumeclaims", short="pvc", sub="status", returns=True),
    _line("", "Pod", "pods", short="po", all=True, sub=_POD_SUB, generation=True, returns=True),
    _line("", "PodTemplate", "podtemplates", returns=True, generation=True),
    _line("", "ReplicationController", "replicationcontrollers", short="rc", all=True, sub=_APPS, generation=True),
    _line("", "ResourceQuota", "resourcequotas", short="quota", sub="status", returns=True),
    _line("", "Secret", "secrets"),
    _line("", "ServiceAccount", "serviceaccounts", short="sa", sub="token:TokenRequest", returns=True),
    _line("", "Service", "services", short="svc", all=True, sub="status", returns=True),
    _line(
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        cluster=True,
        generation=True,
        categories=_EXTENSIONS,
    ),
    _line(
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        cluster=True,
        generation=True,
        categories=_EXTENSIONS,
    ),
    _line(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        cluster=True,
        short="crd crds",
        sub="status",
        generation=True,
        categories=_EXTENSIONS,
    ),
    _line(
        "apiregistration.k8s.io",
        "APIService",
        "apiservices",
        cluster=True,
        sub="status",
        generation=True,
        categories=_EXTENSIONS,
    ),
    _line("apps", "ControllerRevision", "controllerrevisions"),
    _line("apps", "DaemonSet", "daemonsets", short="ds", all=True, sub="status", generation=True),
    _line("apps", "Deployment", "deployments", short="deploy", all=True, sub=_APPS, generation=True),
    _line("apps", "ReplicaSet", "replicasets", short="rs", all=True, sub=_APPS, generation=True),
    _line("apps", "StatefulSet", "statefulsets", short="sts", all=True, sub=_APPS, generation=True),
    _line("authentication.k8s.io", "SelfSubjectReview", "selfsubjectreviews", cluster=True, verbs=ONLY_CREATE),
    _line("authentication.k8s.io", "TokenReview", "tokenreviews", cluster=True, verbs=ONLY_CREATE),
    _line("authorization.k8s.io", "LocalSubjectAccessReview", "localsubjectaccessreviews", verbs=ONLY_CREATE),
    _line(
        "authorization.k8s.io", "SelfSubjectAccessReview", "selfsubjectaccessreviews", cluster=True, verbs=ONLY_CREATE
    ),
    _line("authorization.k8s.io", "SelfSubjectRulesReview", "selfsubjectrulesreviews", cluster=True, verbs=ONLY_CREATE),
    _line("authorization.k8s.io", "SubjectAccessReview", "subjectaccessreviews", cluster=True, verbs=ONLY_CREATE),
    _line("batch", "CronJob", "cronjobs", short="cj", all=True, sub="status", generation=True),
    _line("batch", "Job", "jobs", all=True, sub="status", generation=True),
    _line("coordination.k8s.io", "Lease", "leases"),
    _line("discovery.k8s.io", "EndpointSlice", "endpointslices", generation=True),
    _line("events.k8s.io", "Event", "events", short="ev"),
    _line("networking.k8s.io", "Ingress", "ingresses", short="ing", sub="status", generation=True),
    _line("networking.k8s.io", "IngressClass", "ingressclasses", cluster=True, generation=True),
    _line("networking.k8s.io", "NetworkPolicy", "networkpolicies", short="netpol", generation=True),
    _line("node.k8s.io", "RuntimeClass", "runtimeclasses", cluster=True),
    _line("policy", "PodDisruptionBudget", "poddisruptionbudgets", short="pdb", sub="status", generation=True),
    _line(_RBAC, "ClusterRoleBinding", "clusterrolebindings", cluster=True),
    _line(_RBAC, "ClusterRole", "clusterroles", cluster=True),
    _line(_RBAC, "RoleBinding", "rolebindings"),
    _line(_RBAC, "Role", "roles"),
    _line("scheduling.k8s.io", "PriorityClass", "priorityclasses", cluster=True, short="pc", generation=True),
    _line("storage.k8s.io", "StorageClass", "storageclasses", cluster=True, short="sc", returns=True),
)
