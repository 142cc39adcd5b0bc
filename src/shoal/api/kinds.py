"""The kinds that Shoal reads or writes, by name. Typed shapes live in the module of their group."""

from shoal.api.kind import Kind

# core
NAMESPACE = Kind("", "v1", "Namespace", "namespaces", namespaced=False)
NODE = Kind("", "v1", "Node", "nodes", namespaced=False)
POD = Kind("", "v1", "Pod", "pods")
SERVICE = Kind("", "v1", "Service", "services")
ENDPOINTS = Kind("", "v1", "Endpoints", "endpoints")
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
SECRET = Kind("", "v1", "Secret", "secrets")
SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts")
EVENT = Kind("", "v1", "Event", "events")
POD_TEMPLATE = Kind("", "v1", "PodTemplate", "podtemplates")
PERSISTENT_VOLUME_CLAIM = Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
LIMIT_RANGE = Kind("", "v1", "LimitRange", "limitranges")
RUNTIME_CLASS = Kind("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", namespaced=False)
RESOURCE_QUOTA = Kind("", "v1", "ResourceQuota", "resourcequotas")
REPLICATION_CONTROLLER = Kind("", "v1", "ReplicationController", "replicationcontrollers")
# apps, batch, discovery, networking, policy
DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
REPLICA_SET = Kind("apps", "v1", "ReplicaSet", "replicasets")
STATEFUL_SET = Kind("apps", "v1", "StatefulSet", "statefulsets")
LEADER_WORKER_SET = Kind("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets")
DAEMON_SET = Kind("apps", "v1", "DaemonSet", "daemonsets")
CONTROLLER_REVISION = Kind("apps", "v1", "ControllerRevision", "controllerrevisions")
JOB = Kind("batch", "v1", "Job", "jobs")
CRON_JOB = Kind("batch", "v1", "CronJob", "cronjobs")
JOB_SET = Kind("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
TRAIN_JOB = Kind("trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs")
TRAINING_RUNTIME = Kind("trainer.kubeflow.org", "v1alpha1", "TrainingRuntime", "trainingruntimes")
CLUSTER_TRAINING_RUNTIME = Kind(
    "trainer.kubeflow.org", "v1alpha1", "ClusterTrainingRuntime", "clustertrainingruntimes", namespaced=False
)
ENDPOINT_SLICE = Kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
INGRESS = Kind("networking.k8s.io", "v1", "Ingress", "ingresses")
NETWORK_POLICY = Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
POD_DISRUPTION_BUDGET = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
EVENTS_EVENT = Kind("events.k8s.io", "v1", "Event", "events")
# rbac, authentication, authorization, coordination, scheduling
ROLE = Kind("rbac.authorization.k8s.io", "v1", "Role", "roles")
ROLE_BINDING = Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
CLUSTER_ROLE = Kind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", namespaced=False)
CLUSTER_ROLE_BINDING = Kind(
    "rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False
)
API_SERVICE = Kind("apiregistration.k8s.io", "v1", "APIService", "apiservices", namespaced=False)
TOKEN_REVIEW = Kind("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", namespaced=False)
SUBJECT_ACCESS_REVIEW = Kind(
    "authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False
)
SELF_SUBJECT_REVIEW = Kind("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", namespaced=False)
SELF_SUBJECT_ACCESS_REVIEW = Kind(
    "authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", namespaced=False
)
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")
PRIORITY_CLASS = Kind("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False)
# extension points
CRD = Kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)
MUTATING_WEBHOOK = Kind(
    "admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", False
)
VALIDATING_WEBHOOK = Kind(
    "admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", False
)
API_SERVICE = Kind("apiregistration.k8s.io", "v1", "APIService", "apiservices", namespaced=False)
# MCAD's dialect, current and legacy groups
APP_WRAPPER = Kind("workload.codeflare.dev", "v1beta1", "AppWrapper", "appwrappers")
APP_WRAPPER_V1BETA2 = Kind("workload.codeflare.dev", "v1beta2", "AppWrapper", "appwrappers")
APP_WRAPPER_LEGACY = Kind("mcad.ibm.com", "v1beta1", "AppWrapper", "appwrappers")
SCHEDULING_SPEC = Kind("workload.codeflare.dev", "v1beta1", "SchedulingSpec", "schedulingspecs")
SCHEDULING_SPEC_LEGACY = Kind("mcad.ibm.com", "v1beta1", "SchedulingSpec", "schedulingspecs")
QUOTA_SUBTREE = Kind("quota.codeflare.dev", "v1alpha1", "QuotaSubtree", "quotasubtrees")
QUOTA_SUBTREE_LEGACY = Kind("ibm.com", "v1", "QuotaSubtree", "quotasubtrees")
LEGACY_GROUPS = frozenset({"mcad.ibm.com", "ibm.com"})
"""Groups whose kinds share their names with current ones; listed last, so that a bare name means the current one."""
# Ray
RAY_CLUSTER = Kind("ray.io", "v1", "RayCluster", "rayclusters")
RAY_CLUSTER_V1ALPHA1 = Kind("ray.io", "v1alpha1", "RayCluster", "rayclusters")
RAY_JOB = Kind("ray.io", "v1", "RayJob", "rayjobs")
RAY_JOB_V1ALPHA1 = Kind("ray.io", "v1alpha1", "RayJob", "rayjobs")
RAY_SERVICE = Kind("ray.io", "v1", "RayService", "rayservices")
RAY_CRON_JOB = Kind("ray.io", "v1", "RayCronJob", "raycronjobs")
RAY = Kind("ray.k8s.io", "v1alpha1", "Ray", "rays")
# OpenShift, where Ray dashboards are led to by Routes
ROUTE = Kind("route.openshift.io", "v1", "Route", "routes")
# Gateway API, for incremental upgrades of RayServices
GATEWAY = Kind("gateway.networking.k8s.io", "v1", "Gateway", "gateways")
HTTP_ROUTE = Kind("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes")
# Kueue's dialect
RESOURCE_FLAVOR = Kind("kueue.x-k8s.io", "v1beta2", "ResourceFlavor", "resourceflavors", namespaced=False)
CLUSTER_QUEUE = Kind("kueue.x-k8s.io", "v1beta2", "ClusterQueue", "clusterqueues", namespaced=False)
LOCAL_QUEUE = Kind("kueue.x-k8s.io", "v1beta2", "LocalQueue", "localqueues")
COHORT = Kind("kueue.x-k8s.io", "v1beta2", "Cohort", "cohorts", namespaced=False)
ADMISSION_CHECK = Kind("kueue.x-k8s.io", "v1beta2", "AdmissionCheck", "admissionchecks", namespaced=False)
PROVISIONING_REQUEST_CONFIG = Kind(
    "kueue.x-k8s.io", "v1beta2", "ProvisioningRequestConfig", "provisioningrequestconfigs", namespaced=False
)
WORKLOAD = Kind("kueue.x-k8s.io", "v1beta2", "Workload", "workloads")
WORKLOAD_PRIORITY_CLASS = Kind(
    "kueue.x-k8s.io", "v1beta2", "WorkloadPriorityClass", "workloadpriorityclasses", namespaced=False
)
TOPOLOGY = Kind("kueue.x-k8s.io", "v1beta2", "Topology", "topologies", namespaced=False)
MULTIKUEUE_CONFIG = Kind("kueue.x-k8s.io", "v1beta2", "MultiKueueConfig", "multikueueconfigs", namespaced=False)
MULTIKUEUE_CLUSTER = Kind("kueue.x-k8s.io", "v1beta2", "MultiKueueCluster", "multikueueclusters", namespaced=False)
# other groups with a say in gangs
PROVISIONING_REQUEST = Kind("autoscaling.x-k8s.io", "v1", "ProvisioningRequest", "provisioningrequests")
POD_GROUP = Kind("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups")
VOLCANO_POD_GROUP = Kind("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups")
# our own
QUESTION = Kind("shoal.dev", "v1alpha1", "Question", "questions")
