"""Who may do what: RBAC, as Kubernetes decides it.

Members of system:masters may do everything. All others need a rule of a Role or ClusterRole bound to them. Read from
the stored objects, decoded once per change; the same code answers access reviews and guards role escalation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from shoal.api import people
from shoal.api.meta import Json
from shoal.local.apiserver.kinds.resources import Registry
from shoal.local.apiserver.requests.route import RequestUser
from shoal.local.apiserver.storage.collection import Collection

MASTERS = "system:masters"
_RBAC = "rbac.authorization.k8s.io"
_EVERY_NAME = "\0"  # of a rule that names no objects: no rule that names some covers it


class Action(msgspec.Struct, frozen=True):
    """What is to be done. `path` is set instead of the rest for requests that are not about resources."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def full_resource(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class AccessRule(msgspec.Struct, frozen=True, rename="camel"):
    verbs: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = msgspec.field(name="nonResourceURLs", default=())

    def allows(self, action: Action) -> bool:
        if "*" not in self.verbs and action.verb not in self.verbs:
            return False
        if action.path:
            return any(
                url == "*" or url == action.path or (url.endswith("*") and action.path.startswith(url[:-1]))
                for url in self.non_resource_urls
            )
        if "*" not in self.api_groups and action.group not in self.api_groups:
            return False
        if not self._names_resource(action):
            return False
        return not self.resource_names or action.name in self.resource_names

    def _names_resource(self, action: Action) -> bool:
        wanted = action.full_resource
        for one in self.resources:
            if one == "*" or one == wanted:
                return True
            if action.subresource and one == f"*/{action.subresource}":
                return True
        return False


class _Subject(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""
    namespace: str = ""


class _RoleRef(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""


class _Role(msgspec.Struct, frozen=True, rename="camel"):
    rules: tuple[AccessRule, ...] | None = None


class _Binding(msgspec.Struct, frozen=True, rename="camel"):
    subjects: tuple[_Subject, ...] | None = None
    role_ref: _RoleRef = _RoleRef()


class Authorizer:
    def __init__(self, registry: Registry) -> None:
        self._roles = self._of(registry, "roles")
        self._bindings = self._of(registry, "rolebindings")
        self._cluster_roles = self._of(registry, "clusterroles")
        self._cluster_bindings = self._of(registry, "clusterrolebindings")
        self._cached: dict[tuple[str, str, str], tuple[int, Any]] = {}

    def _of(self, registry: Registry, plural: str) -> Collection:
        resource = registry.find(_RBAC, plural)
        assert resource is not None
        return resource.collection

    def allowed(self, user: RequestUser, action: Action) -> bool:
        if MASTERS in user.groups:
            return True
        return any(rule.allows(action) for rule in self.rules(user, action.namespace))

    def rules(self, user: RequestUser, namespace: str) -> Iterable[AccessRule]:
        """Every rule that holds for a user, cluster-wide and in one namespace."""
        for record in self._cluster_bindings.records():
            binding = self._decoded(self._cluster_bindings, "", record.name, _Binding)
            if _binds(binding, user, ""):
                yield from self._rules(self._cluster_roles, "", binding.role_ref.name) or ()
        if not namespace:
            return
        for record in self._bindings.records(namespace):
            binding = self._decoded(self._bindings, namespace, record.name, _Binding)
            if _binds(binding, user, namespace):
                yield from self.rules_of(namespace, binding.role_ref.kind, binding.role_ref.name) or ()

    def rules_of(self, namespace: str, kind: str, name: str) -> tuple[AccessRule, ...] | None:
        """What a role grants; None where there is no such role."""
        if kind == "ClusterRole":
            return self._rules(self._cluster_roles, "", name)
        return self._rules(self._roles, namespace, name)

    def _rules(self, collection: Collection, namespace: str, name: str) -> tuple[AccessRule, ...] | None:
        role = self._decoded(collection, namespace, name, _Role)
        return role.rules or () if role is not None else None

    def _decoded(self, collection: Collection, namespace: str, name: str, shape: Any) -> Any:
        record = collection.get(namespace, name)
        if record is None:
            return None
        key = (collection.name, namespace, name)
        known = self._cached.get(key)
        if known is None or known[0] != record.revision:
            try:
                known = (record.revision, msgspec.json.decode(record.raw, type=shape))
            except msgspec.MsgspecError:  # what cannot be read grants nothing
                known = (record.revision, shape())
            self._cached[key] = known
        return known[1]

    def escalates(self, user: RequestUser, rules: Iterable[AccessRule], namespace: str) -> list[AccessRule]:
        """Of the rules to be granted, those that the user does not hold."""
        if MASTERS in user.groups:
            return []
        own = list(self.rules(user, namespace))
        return [
            rule
            for rule in rules
            if not all(any(held.allows(action) for held in own) for action in _actions(rule, namespace))
        ]


def _binds(binding: _Binding, user: RequestUser, namespace: str) -> bool:
    for subject in binding.subjects or ():
        match subject.kind:
            case "User":
                if subject.name == user.name:
                    return True
            case "Group":
                if subject.name in user.groups:
                    return True
            case "ServiceAccount":
                if user.name == f"system:serviceaccount:{subject.namespace or namespace}:{subject.name}":
                    return True
    return False


def _actions(rule: AccessRule, namespace: str) -> Iterable[Action]:
    """A rule taken apart into what it allows, wildcards standing for themselves."""
    for verb in rule.verbs:
        for url in rule.non_resource_urls:
            yield Action(verb, path=url)
        for group in rule.api_groups:
            for resource in rule.resources:
                plural, _, subresource = resource.partition("/")
                for name in rule.resource_names or (_EVERY_NAME,):
                    yield Action(verb, group, plural, subresource, namespace, name)


def parse_rules(rules: Any) -> tuple[AccessRule, ...]:
    """From an object's `rules`; raises ValidationError for what is no rule."""
    return msgspec.convert(rules or (), tuple[AccessRule, ...])


def denied(user: RequestUser, action: Action) -> str:
    """The sentence of the refusal."""
    if action.path:
        return f'User "{user.name}" cannot {action.verb} path "{action.path}"'
    where = f' in the namespace "{action.namespace}"' if action.namespace else " at the cluster scope"
    what = f'resource "{action.full_resource}" in API group "{action.group}"'
    return f'User "{user.name}" cannot {action.verb} {what}{where}'


def bootstrap() -> list[Json]:
    """The roles and bindings that a cluster comes with, as far as people rely on them by name."""
    read = ["get", "list", "watch"]
    write = ["create", "delete", "deletecollection", "patch", "update"]
    viewable = [
        (
            "",
            [
                "bindings",
                "configmaps",
                "endpoints",
                "events",
                "limitranges",
                "namespaces",
                "persistentvolumeclaims",
                "pods",
                "pods/log",
                "pods/status",
                "replicationcontrollers",
                "replicationcontrollers/scale",
                "resourcequotas",
                "serviceaccounts",
                "services",
                "services/status",
            ],
        ),
        (
            "apps",
            [
                "controllerrevisions",
                "daemonsets",
                "deployments",
                "deployments/scale",
                "replicasets",
                "replicasets/scale",
                "statefulsets",
                "statefulsets/scale",
            ],
        ),
        ("batch", ["cronjobs", "jobs", "jobs/status"]),
        ("discovery.k8s.io", ["endpointslices"]),
        ("networking.k8s.io", ["ingresses", "networkpolicies"]),
        ("policy", ["poddisruptionbudgets"]),
    ]
    editable = [
        (
            "",
            [
                "configmaps",
                "endpoints",
                "events",
                "persistentvolumeclaims",
                "pods",
                "pods/attach",
                "pods/exec",
                "pods/eviction",
                "pods/portforward",
                "replicationcontrollers",
                "replicationcontrollers/scale",
                "secrets",
                "serviceaccounts",
                "services",
            ],
        ),
        (
            "apps",
            [
                "daemonsets",
                "deployments",
                "deployments/scale",
                "replicasets",
                "replicasets/scale",
                "statefulsets",
                "statefulsets/scale",
            ],
        ),
        ("batch", ["cronjobs", "jobs"]),
        ("networking.k8s.io", ["ingresses", "networkpolicies"]),
        ("policy", ["poddisruptionbudgets"]),
        ("coordination.k8s.io", ["leases"]),
    ]
    view = [*(_grant(read, group, resources) for group, resources in viewable), *people.viewing()]
    edit = [
        *view,
        *(_grant([*read, *write], group, resources) for group, resources in editable),
        *people.submitting(),
        *people.asking(),
    ]
    admin = [
        *edit,
        *people.overseeing(),
        _grant([*read, *write], _RBAC, ["roles", "rolebindings"]),
        _grant(["create"], "authorization.k8s.io", ["localsubjectaccessreviews"]),
        _grant(["create"], "", ["serviceaccounts/token"]),
    ]
    discovery = [
        {
            "verbs": ["get"],
            "nonResourceURLs": [
                "/api",
                "/api/*",
                "/apis",
                "/apis/*",
                "/healthz",
                "/livez",
                "/openapi",
                "/openapi/*",
                "/readyz",
                "/version",
                "/version/",
            ],
        }
    ]
    basic = [
        _grant(["create"], "authorization.k8s.io", ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]),
        _grant(["create"], "authentication.k8s.io", ["selfsubjectreviews"]),
    ]
    everything = [_grant(["*"], "*", ["*"]), {"verbs": ["*"], "nonResourceURLs": ["*"]}]
    return [
        _role("cluster-admin", everything),
        _role("admin", admin),
        _role("edit", edit),
        _role("view", view),
        _role("system:discovery", discovery),
        _role("system:basic-user", basic),
        _role(
            "system:public-info-viewer",
            [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/livez", "/readyz", "/version", "/version/"]}],
        ),
        _bind("cluster-admin", "cluster-admin", MASTERS),
        _bind("system:discovery", "system:discovery", "system:authenticated"),
        _bind("system:basic-user", "system:basic-user", "system:authenticated"),
        _bind(
            "system:public-info-viewer", "system:public-info-viewer", "system:authenticated", "system:unauthenticated"
        ),
    ]


def _grant(verbs: list[str], group: str, resources: list[str]) -> Json:
    return {"verbs": verbs, "apiGroups": [group], "resources": resources}


def _role(name: str, rules: list[Json]) -> Json:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRole",
        "rules": rules,
        "metadata": {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
    }


def _bind(name: str, role: str, *groups: str) -> Json:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": _RBAC, "kind": "Group", "name": group} for group in groups],
    }
