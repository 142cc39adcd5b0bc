"""What `shoal install` puts on a cluster: CRDs, a namespace, exactly the rights our controllers use, and their
Deployment.

Pure: builds the objects and nothing else, so that they can be printed, reviewed and compared with what the
controllers do. No rule here has a star; a wrapped kind that is not listed needs a rule of the administrator's own.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.api.crds import load_crds
from shoal.api.kind import Kind
from shoal.api.labels import APP_NAME
from shoal.api.meta import Json
from shoal.cli import admission

NAME = admission.ACCOUNT
NAMESPACE = "shoal-system"
ASKING = "shoal-ask"
"""ClusterRole of users that may ask about gangs; bind it to users with neither edit nor admin."""
HEALTH_PORT = 8081
QUEUE_GROUP = "kueue.x-k8s.io"
LABELS = {APP_NAME: "shoal", "app.kubernetes.io/part-of": "shoal"}

_READ = ("get", "list", "watch")
_OWN = (*_READ, "create", "delete", "patch")


def objects(
    *,
    namespace: str = NAMESPACE,
    image: str,
    legacy: bool = False,
    replicas: int = 2,
    arguments: Iterable[str] = (),
    webhook_url: str = "",
    queues: bool = True,
    impersonates: bool = False,
    clusters: bool = False,
    ray: bool = True,
) -> list[Json]:
    """Everything, in the order it is applied. `impersonates`: wrapped objects are created as the user. Without `queues`
    their kinds and webhooks are left to the Kueue that is there. `clusters`: the hub of several. `ray`: we run Ray
    clusters, each of which gets a role."""
    return [
        *(one for one in load_crds(legacy=legacy) if queues or one["spec"]["group"] != QUEUE_GROUP),
        _object("v1", "Namespace", namespace, None),
        _object("v1", "ServiceAccount", NAME, namespace),
        {
            **_object("rbac.authorization.k8s.io/v1", "ClusterRole", NAME, None),
            "rules": rules(impersonates, clusters, ray),
        },
        _binding("ClusterRoleBinding", None, namespace, "ClusterRole"),
        asking_role(),
        {**_object("rbac.authorization.k8s.io/v1", "Role", NAME, namespace), "rules": lease_rules()},
        _binding("RoleBinding", namespace, namespace, "Role"),
        _service(namespace),
        _deployment(namespace, image, replicas, list(arguments)),
        *(
            {**one, "metadata": {**one["metadata"], "labels": LABELS}}
            for one in admission.configurations(namespace, webhook_url, queues=queues)
        ),
    ]


def rules(impersonates: bool = False, clusters: bool = False, ray: bool = True) -> list[Json]:
    """What the controllers do, cluster-wide."""
    return [
        *(rule for group in ("workload.codeflare.dev", "mcad.ibm.com") for rule in _wrapper_rules(group)),
        # quota trees have no status subresource: what is used is written on the object itself
        _rule("quota.codeflare.dev", ["quotasubtrees"], (*_READ, "patch")),
        _rule("ibm.com", ["quotasubtrees"], (*_READ, "patch")),
        _rule("", ["nodes", "namespaces"], _READ),
        _rule("node.k8s.io", ["runtimeclasses"], _READ),
        _rule("", ["events"], ("create", "patch")),
        _rule("authorization.k8s.io", ["subjectaccessreviews"], ("create",)),
        _rule("shoal.dev", ["questions"], (*_READ, "delete")),  # answered in the status, then removed
        _rule("shoal.dev", ["questions/status"], ("patch",)),
        {
            **_rule(
                "admissionregistration.k8s.io",
                ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
                ("get", "list", "watch", "patch"),  # list and watch of this one name
            ),
            "resourceNames": [admission.CONFIGURATION],
        },
        # what AppWrappers wrap and Ray clusters are made of
        _rule("", ["pods", "services", "configmaps", "secrets", "serviceaccounts", "persistentvolumeclaims"], _OWN),
        _rule("", ["pods/resize"], ("patch",)),
        _rule("apps", ["deployments", "statefulsets", "replicasets", "daemonsets"], _OWN),
        _rule("batch", ["jobs", "cronjobs"], _OWN),
        *_queue_rules(),
        _rule("jobset.x-k8s.io", ["jobsets"], _OWN),
        _rule("networking.k8s.io", ["ingresses", "networkpolicies"], _OWN),
        _rule("scheduling.x-k8s.io", ["podgroups"], _OWN),
        _rule("scheduling.sigs.k8s.io", ["podgroups"], _OWN),
        _rule("kubeflow.org", ["pytorchjobs"], _OWN),
        _rule("ray.io", ["rayclusters", "rayjobs", "rayservices"], (*_OWN, "update")),
        _rule("ray.io", ["rayclusters/status", "rayjobs/status"], ("patch", "update")),
        _rule("ray.io", ["rayclusters/finalizers", "rayjobs/finalizers"], ("update",)),
        *(_ray_rules() if ray else ()),
        *(_impersonation_rules() if impersonates else ()),
        *(_hub_rules() if clusters else ()),
    ]


def asking_role() -> Json:
    """Editors of a namespace may ask about its gangs: the cluster adds this to its own roles edit and admin."""
    labels = {f"rbac.authorization.k8s.io/aggregate-to-{role}": "true" for role in ("edit", "admin")}
    role = _object("rbac.authorization.k8s.io/v1", "ClusterRole", ASKING, None)
    return {
        **role,
        "metadata": {**role["metadata"], "labels": {**LABELS, **labels}},
        "rules": [_rule("shoal.dev", ["questions"], (*_READ, "create"))],
    }


def _wrapper_rules(group: str) -> list[Json]:
    return [
        _rule(group, ["appwrappers"], (*_READ, "patch")),
        _rule(group, ["appwrappers/status"], ("patch", "update")),
        _rule(group, ["appwrappers/finalizers"], ("update",)),
    ]


def _impersonation_rules() -> list[Json]:
    """Only where wrapped objects are created as their creators: an account with it may act as any user."""
    return [
        _rule("", ["users", "groups", "serviceaccounts"], ("impersonate",)),
        _rule("authentication.k8s.io", ["uids"], ("impersonate",)),
    ]


def _ray_rules() -> list[Json]:
    """Only where Ray clusters are run by us: who may write roles and bindings is to be watched."""
    return [
        _rule("ray.k8s.io", ["rays"], _READ),
        _rule("ray.k8s.io", ["rays/status"], ("patch", "update")),
        _rule("ray.k8s.io", ["rays/finalizers"], ("update",)),
        _rule("rbac.authorization.k8s.io", ["roles", "rolebindings"], _OWN),  # for the autoscaler of a cluster
    ]


def _hub_rules() -> list[Json]:
    """Only for the hub of several clusters: who the others are, and how they fare."""
    return [
        _rule(QUEUE_GROUP, ["multikueueconfigs"], _READ),
        _rule(QUEUE_GROUP, ["multikueueclusters"], (*_READ, "patch")),
        _rule(QUEUE_GROUP, ["multikueueclusters/status"], ("patch",)),
    ]


def member_rules() -> list[Json]:
    """What a hub does in a cluster that takes gangs from it, and no more."""
    verbs = (*_READ, "create", "delete")
    return [
        _rule("", ["namespaces"], ("get",)),  # who it is, and which namespace takes whose gangs
        _rule(QUEUE_GROUP, ["workloads"], verbs),
        *(_rule(one.group, [one.plural], verbs) for one in _job_kinds()),
    ]


def _job_kinds() -> list[Kind]:
    """Every kind of job that a queue may hold, those of other packages included."""
    from shoal.controllers.queues.jobs import ALL

    return [one.kind for one in ALL]


def _queue_rules() -> list[Json]:
    """Queues: what they hold back and start, and what they ask a node autoscaler for."""
    group = QUEUE_GROUP
    read = ["cohorts", "localqueues", "provisioningrequestconfigs", "workloadpriorityclasses"]
    kept = ["clusterqueues", "resourceflavors", "admissionchecks"]
    return [
        _rule(group, read, _READ),
        _rule(group, kept, (*_READ, "patch")),  # a finalizer while they are in use
        _rule(group, ["clusterqueues/status", "localqueues/status", "admissionchecks/status"], ("patch",)),
        _rule(group, ["workloads"], _OWN),
        _rule(group, ["workloads/status"], ("patch",)),
        _rule(group, ["workloads/finalizers"], ("update",)),
        *(_rule(one.group, [one.plural], (*_READ, "patch")) for one in _job_kinds()),
        # a stopped Job forgets when it was started; a job that runs in another cluster shows its status here
        *(_rule(one.group, [f"{one.plural}/status"], ("patch",)) for one in _job_kinds()),
        *(_rule(one.group, [f"{one.plural}/finalizers"], ("update",)) for one in _job_kinds()),
        _rule("autoscaling.x-k8s.io", ["provisioningrequests"], _OWN),
        _rule("autoscaling.x-k8s.io", ["provisioningrequests/finalizers"], ("update",)),
        _rule("", ["podtemplates"], ("get", "create", "patch", "delete")),
        _rule("", ["limitranges"], _READ),
        _rule("scheduling.k8s.io", ["priorityclasses"], _READ),
    ]


def lease_rules() -> list[Json]:
    return [
        _rule("coordination.k8s.io", ["leases"], ("get", "create", "update", "patch")),
        {**_rule("", ["secrets"], ("update",)), "resourceNames": [admission.SECRET]},
        # one that is never stored, to see whether the API server reaches the webhook
        _rule("workload.codeflare.dev", ["appwrappers"], ("create",)),
    ]


def _service(namespace: str) -> Json:
    port = {"name": "webhook", "port": 443, "targetPort": admission.PORT}
    return {
        **_object("v1", "Service", admission.SERVICE, namespace),
        # a replica is ready once it was called, so it must be called before it is ready
        "spec": {"selector": LABELS, "ports": [port], "publishNotReadyAddresses": True},
    }


def _deployment(namespace: str, image: str, replicas: int, arguments: list[str]) -> Json:
    container = {
        "name": "controller",
        "image": image,
        "command": [
            "shoal",
            "controller",
            "--webhooks",
            f"--health-port={HEALTH_PORT}",
            f"--namespace={namespace}",
            *arguments,
        ],
        "ports": [
            {"name": "webhook", "containerPort": admission.PORT},
            {"name": "health", "containerPort": HEALTH_PORT},
        ],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": "health"}, "periodSeconds": 10},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "health"}, "periodSeconds": 5},
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod = {
        "serviceAccountName": NAME,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": 20,
        "containers": [container],
    }
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": LABELS},
        "template": {"metadata": {"labels": LABELS}, "spec": pod},
    }
    return {**_object("apps/v1", "Deployment", NAME, namespace), "spec": spec}


def _binding(kind: str, namespace: str | None, account_namespace: str, role: str) -> Json:
    return {
        **_object("rbac.authorization.k8s.io/v1", kind, NAME, namespace),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": NAME},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": account_namespace}],
    }


def _object(api_version: str, kind: str, name: str, namespace: str | None) -> Json:
    metadata: Json = {"name": name, "labels": LABELS}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def _rule(group: str, resources: list[str], verbs: tuple[str, ...]) -> Json:
    return {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}
