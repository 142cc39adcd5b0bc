"""What `shoal install` puts on a cluster: CRDs, a namespace, exactly the rights our controllers use, and their
Deployment.

Pure: builds the objects and nothing else, so that they can be printed, reviewed and compared with what the
controllers do. No rule here has a star; a wrapped kind that is not listed needs a rule of the administrator's own.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from shoal.api import people
from shoal.api.crds import load_crds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.cli import admission, install_scope, visibility
from shoal.cli.install_certificates import certificates, injected
from shoal.cli.install_flow import flow_control
from shoal.cli.install_values import Values, settings_of
from shoal.cli.install_workload import LABELS, NAME, labelled, workload
from shoal.controllers.planning import imports

NAMESPACE = "shoal-system"
VIEWING = "shoal-view"
EDITING = "shoal-edit"
ASKING = "shoal-ask"
"""ClusterRoles of people who read, submit and ask about gangs; bind them to users with neither edit nor admin."""
OVERSEEING = "shoal-view-queues"
"""Reads ClusterQueues and what they consist of; part of admin, as Kueue has it."""
ADMINISTERING = "shoal-queue-admin"
KUEUE_ADMINISTRATOR = "rbac.kueue.x-k8s.io/batch-admin"
"""Label of roles that a Kueue on the same cluster adds to its kueue-batch-admin-role."""
GANGS = "shoal-gangs"
"""Role of the controller in each namespace that it looks after, where those are not all."""
RBAC = "rbac.authorization.k8s.io/v1"
METRICS_READER = "shoal-metrics"
"""ClusterRole of users that read metrics."""
QUEUE_GROUP = "kueue.x-k8s.io"

_READ = ("get", "list", "watch")
_OWN = (*_READ, "create", "delete", "patch")
_RAY_KINDS = ("rayclusters", "rayjobs", "rayservices", "raycronjobs")


def objects(values: Values, *, namespace: str = NAMESPACE) -> list[Json]:
    """Everything, in the order it is applied. Without the part `queues` their kinds and webhooks are left to the Kueue
    that is there."""
    queues = "queues" in values.only
    return [
        *(one for one in load_crds(legacy=values.legacy) if queues or one["spec"]["group"] != QUEUE_GROUP),
        labelled("v1", "Namespace", namespace, None),
        *rights(values, namespace),
        *roles_for_people(),
        *(() if values.open_metrics else (metrics_role(),)),
        *(flow_control(namespace) if values.flow_control else ()),
        *(certificates(namespace, values) if values.webhooks and is_issued(values) else ()),
        *workload(namespace, values),
        *(_visibility(values, namespace) if values.visibility and values.webhooks and queues else ()),
        *(webhook_configurations(values, namespace) if values.webhooks else ()),
    ]


def rights(values: Values, namespace: str) -> list[Json]:
    """The controller's account and exactly what it may do."""
    granted = rules(
        impersonates(values),
        "clusters" in values.only,
        "ray" in values.only,
        reviews=not values.open_metrics,
        announces=not is_issued(values),
    )
    wide = install_scope.cluster_wide(granted) if values.namespaces else granted
    return [
        labelled("v1", "ServiceAccount", NAME, namespace),
        {**labelled(RBAC, "ClusterRole", NAME, None), "rules": wide},
        _binding("ClusterRoleBinding", None, namespace, "ClusterRole"),
        {**labelled(RBAC, "Role", NAME, namespace), "rules": lease_rules(announces=not is_issued(values))},
        _binding("RoleBinding", namespace, namespace, "Role"),
        *(obj for one in values.namespaces for obj in rights_within(one, granted, namespace)),
    ]


def rights_within(chosen: str, granted: list[Json], namespace: str) -> list[Json]:
    """In one of the namespaces that are looked after; our own may be among them."""
    role = {**labelled(RBAC, "Role", GANGS, chosen), "rules": install_scope.within(granted)}
    return [role, _binding("RoleBinding", chosen, namespace, "Role", GANGS)]


def _visibility(values: Values, namespace: str) -> list[Json]:
    return visibility.objects(values, namespace, urlsplit(values.webhook_url) if values.webhook_url else None)


def is_issued(values: Values) -> bool:
    """Another controller keeps the webhooks' certificate."""
    return values.certificates == "cert-manager"


def impersonates(values: Values) -> bool:
    """Wrapped objects are created as the user, which is a right of its own."""
    return settings_of(values).get("create_as_creator", "").lower() == "true"


def webhook_configurations(values: Values, namespace: str) -> list[Json]:
    unnamed = settings_of(values).get("queues.manage_jobs_without_queue_name", "").lower() == "true"
    made = admission.configurations(
        namespace,
        values.webhook_url,
        queues="queues" in values.only,
        unnamed=unnamed,
        namespaces=values.namespaces,
    )
    made = [{**one, "metadata": {**one["metadata"], "labels": LABELS}} for one in made]
    return [injected(one, namespace) for one in made] if is_issued(values) else made


def rules(
    impersonates: bool = False,
    clusters: bool = False,
    ray: bool = True,
    *,
    reviews: bool = True,
    announces: bool = True,
) -> list[Json]:
    """What the controllers do. `reviews`: of the tokens that readers of metrics show. `announces`: tells the API
    server whose certificates to trust."""
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
        _configuration_rule(_READ),
        # what AppWrappers wrap and Ray clusters are made of
        _rule("", ["pods", "services", "configmaps", "secrets", "serviceaccounts", "persistentvolumeclaims"], _OWN),
        _rule("", ["pods/resize"], ("patch",)),
        _rule("", ["pods/log"], ("get",)),  # kept for the time after their pods
        _rule("apps", ["deployments", "statefulsets", "replicasets", "daemonsets"], _OWN),
        _rule("batch", ["jobs", "cronjobs"], _OWN),
        *_queue_rules(),
        _rule("jobset.x-k8s.io", ["jobsets"], _OWN),
        _rule("networking.k8s.io", ["ingresses", "networkpolicies"], _OWN),
        _rule("scheduling.x-k8s.io", ["podgroups"], _OWN),
        _rule("scheduling.sigs.k8s.io", ["podgroups"], _OWN),
        _rule("scheduling.k8s.io", ["podgroups"], _OWN),  # Kubernetes' own, from 1.36 on
        _rule("scheduling.volcano.sh", ["podgroups"], _OWN),
        _rule("kubeflow.org", ["pytorchjobs"], _OWN),
        _rule("ray.io", [*_RAY_KINDS], (*_OWN, "update")),
        _rule("ray.io", [f"{name}/status" for name in _RAY_KINDS], ("patch", "update")),
        _rule("ray.io", [f"{name}/finalizers" for name in _RAY_KINDS], ("update",)),
        *(_ray_rules() if ray else ()),
        *(_impersonation_rules() if impersonates else ()),
        *(_hub_rules() if clusters else ()),
        *((_rule("authentication.k8s.io", ["tokenreviews"], ("create",)),) if reviews else ()),
        *((_configuration_rule(("patch",)),) if announces else ()),
    ]


def _configuration_rule(verbs: tuple[str, ...]) -> Json:
    """List and watch of this one name."""
    kinds = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]
    return {**_rule("admissionregistration.k8s.io", kinds, verbs), "resourceNames": [admission.CONFIGURATION]}


def roles_for_people() -> list[Json]:
    """Roles that the cluster adds to its own view, edit and admin, and one for the administrators of its queues."""
    everyone, writers = ("view", "edit", "admin"), ("edit", "admin")
    return [
        _role_for_people(VIEWING, people.viewing(), everyone),
        _role_for_people(EDITING, people.submitting(), writers),
        _role_for_people(ASKING, people.asking(), writers),
        _role_for_people(OVERSEEING, people.overseeing(), ("admin",)),
        _role_for_people(ADMINISTERING, people.administering(), (), {KUEUE_ADMINISTRATOR: "true"}),
    ]


def metrics_role() -> Json:
    """Bind it to the account of your Prometheus."""
    role = labelled(RBAC, "ClusterRole", METRICS_READER, None)
    return {**role, "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]}


def _role_for_people(name: str, rules: list[Json], added_to: tuple[str, ...], labels: Json | None = None) -> Json:
    added = {f"rbac.authorization.k8s.io/aggregate-to-{role}": "true" for role in added_to}
    role = labelled(RBAC, "ClusterRole", name, None)
    return {**role, "metadata": {**role["metadata"], "labels": {**LABELS, **added, **(labels or {})}}, "rules": rules}


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
        _rule("discovery.k8s.io", ["endpointslices"], _READ),  # how many pods answer for a RayService
        _rule(QUEUE_GROUP, ["workloads"], _READ),  # why its next cluster waits in a queue
        _rule("gateway.networking.k8s.io", ["gateways", "httproutes"], _OWN),  # of its incremental upgrades
        _rule("route.openshift.io", ["routes"], _OWN),  # to its dashboard, on OpenShift
        _rule("route.openshift.io", ["routes/custom-host"], ("create", "update")),
        _rule("rbac.authorization.k8s.io", ["roles", "rolebindings"], _OWN),  # for the autoscaler of a cluster
    ]


def _hub_rules() -> list[Json]:
    """Only for the hub of several clusters: who the others are, and how they fare."""
    return [
        _rule(QUEUE_GROUP, ["multikueueconfigs", "multikueueclusters"], (*_READ, "create", "patch")),  # --agentconfigs
        _rule(QUEUE_GROUP, ["multikueueclusters/status"], ("patch",)),
        _rule(QUEUE_GROUP, ["clusterqueues"], _READ),  # what becomes of gangs whose member is lost
    ]


def member_rules(*, sessions: bool = False) -> list[Json]:
    """What a hub does in a cluster that takes gangs from it, and no more. `sessions`: forwarding ports of pods, too."""
    verbs = (*_READ, "create", "delete")
    return [
        _rule("", ["namespaces"], ("get",)),  # who it is, and which namespace takes whose gangs
        _rule("", ["nodes", "pods"], _READ),  # how much room there is; may be left out: then its queue alone judges
        _rule("", ["pods/log"], ("get",)),  # told and kept at the hub; may be left out
        _rule("", ["events", "services"], ("get", "list")),
        *(_session_rules() if sessions else ()),
        _rule("mcad.ibm.com", ["appwrappers"], (*verbs, "patch")),
        _rule("workload.codeflare.dev", ["appwrappers"], ("patch",)),  # to release what was sent gated
        _rule(QUEUE_GROUP, ["workloads"], verbs),
        _rule(QUEUE_GROUP, ["localqueues", "clusterqueues"], _READ),  # how much quota is left; may be left out, too
        *(_rule(one.group, [one.plural], verbs) for one in _job_kinds()),
    ]


def _session_rules() -> list[Json]:
    """The dashboard and the client port of a Ray cluster there, and the token that lets into it."""
    return [_rule("", ["pods/portforward"], ("get", "create")), _rule("", ["secrets"], ("get",))]


def member_lease_rules() -> list[Json]:
    """In the namespace of a member's Shoal: the hub's own lease there, for gangs that move from a lost member."""
    return [_rule("coordination.k8s.io", ["leases"], (*_READ, "create", "patch"))]


def _job_kinds() -> list[Kind]:
    """Every kind of job that a queue may hold, those of other packages included; pods are in the rules of all."""
    from shoal.controllers.queues.jobs import sendable

    return [one.kind for one in sendable()]


def _blueprints() -> list[Kind]:
    """Kinds that describe the pods of such jobs."""
    from shoal.controllers.queues.jobs import ALL
    from shoal.controllers.queues.jobs.blueprint import has_blueprint

    return [kind for one in ALL if has_blueprint(one) for kind in one.blueprint_kinds]


_WITH_STATUS = ("clusterqueues", "cohorts", "localqueues", "admissionchecks")


def _queue_rules() -> list[Json]:
    """Queues: what they hold back and start, and what they ask a node autoscaler for."""
    group = QUEUE_GROUP
    read = ["cohorts", "provisioningrequestconfigs", "workloadpriorityclasses"]
    kept = ["clusterqueues", "resourceflavors", "admissionchecks", "topologies"]
    return [
        _rule(group, read, _READ),
        _rule(group, kept, (*_READ, "patch")),  # a finalizer while they are in use
        _rule(group, ["localqueues"], (*_READ, "patch")),  # what their users had lately
        _rule(group, [f"{name}/status" for name in _WITH_STATUS], ("patch",)),
        _rule(group, ["workloads"], _OWN),
        _rule(group, ["workloads/status"], ("patch",)),
        _rule(group, ["workloads/finalizers"], ("update",)),
        *(_rule(one.group, [one.plural], (*_READ, "patch")) for one in _job_kinds()),
        # a stopped Job forgets when it was started; a job that runs in another cluster shows its status here
        *(_rule(one.group, [f"{one.plural}/status"], ("patch",)) for one in _job_kinds()),
        *(_rule(one.group, [f"{one.plural}/finalizers"], ("update",)) for one in _job_kinds()),
        *(_rule(one.group, [one.plural], _READ) for one in _blueprints()),
        _rule("autoscaling.x-k8s.io", ["provisioningrequests"], _OWN),
        _rule("autoscaling.x-k8s.io", ["provisioningrequests/finalizers"], ("update",)),
        _rule("", ["podtemplates"], ("get", "create", "patch", "delete")),
        _rule("", ["pods"], ("patch", "delete")),  # sent to their place in a topology; elastic clusters shrink
        _rule("", ["pods/status"], ("patch",)),  # why they are stopped
        _rule("", ["limitranges"], _READ),
        _rule("scheduling.k8s.io", ["priorityclasses"], _READ),
    ]


def lease_rules(*, announces: bool = True) -> list[Json]:
    """In the controller's own namespace: its lease, its import record and the webhooks' certificate."""
    kept = {**_rule("", ["secrets"], (*_READ, "update")), "resourceNames": [admission.SECRET]}
    issued = {**_rule("", ["secrets"], _READ), "resourceNames": [admission.ISSUED_SECRET]}
    return [
        _rule("coordination.k8s.io", ["leases"], (*_READ, "create", "update", "patch")),  # its own, and hubs'
        {**_rule("", ["configmaps"], _READ), "resourceNames": [imports.RECORD]},
        # one that is never stored, to see whether the API server reaches the webhook
        _rule("workload.codeflare.dev", ["appwrappers"], ("create",)),
        *((kept, _rule("", ["secrets"], ("create",))) if announces else (issued,)),
    ]


def _binding(kind: str, namespace: str | None, account_namespace: str, role: str, name: str = NAME) -> Json:
    return {
        **labelled(RBAC, kind, name, namespace),
        "roleRef": {"apiGroup": RBAC.partition("/")[0], "kind": role, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": account_namespace}],
    }


def _rule(group: str, resources: list[str], verbs: tuple[str, ...]) -> Json:
    return {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}
