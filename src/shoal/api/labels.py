"""Labels, annotations, taints and finalizers that more than one module reads or writes: each is spelled here alone.

Names that one module uses stand in that module; the marks of a gang are in `gang`.
"""

# Kubernetes
HOSTNAME = "kubernetes.io/hostname"
NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""On every namespace."""
OPERATING_SYSTEM = "kubernetes.io/os"
SERVICE_NAME = "kubernetes.io/service-name"
APP_NAME = "app.kubernetes.io/name"
APP_PART_OF = "app.kubernetes.io/part-of"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
BATCH_JOB_NAME = "batch.kubernetes.io/job-name"
BATCH_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
JOB_SET_JOB_INDEX = "jobset.sigs.k8s.io/job-index"
BATCH_CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
NODE_NOT_READY = "node.kubernetes.io/not-ready"
NODE_UNREACHABLE = "node.kubernetes.io/unreachable"
NODE_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
NODE_DISK_PRESSURE = "node.kubernetes.io/disk-pressure"
NODE_MEMORY_PRESSURE = "node.kubernetes.io/memory-pressure"
NODE_PID_PRESSURE = "node.kubernetes.io/pid-pressure"
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""On the bookmark that ends the first list of a watch."""

# Kubernetes' scheduler-plugins
POD_GROUP = "scheduling.x-k8s.io/pod-group"

TLS_SECRET = "kubernetes.io/tls"
"""Type of a Secret that holds a certificate and its key."""

# Kueue
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE_PRIORITY_CLASS = "kueue.x-k8s.io/priority-class"
KUEUE_PRIORITY_BOOST = "kueue.x-k8s.io/priority-boost"
KUEUE_JOB_UID = "kueue.x-k8s.io/job-uid"
KUEUE_GATED_BY = "kueue.x-k8s.io/admission-gated-by"
KUEUE_GROUP_WORKLOAD = "kueue.x-k8s.io/is-group-workload"
KUEUE_WORKLOAD = "kueue.x-k8s.io/workload"
KUEUE_ELASTIC_JOB = "kueue.x-k8s.io/elastic-job"
KUEUE_SLICE_NAME = "kueue.x-k8s.io/workload-slice-name"
KUEUE_SLICE_REPLACES = "kueue.x-k8s.io/workload-slice-replacement-for"
KUEUE_REQUIRED_TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
KUEUE_PREFERRED_TOPOLOGY = "kueue.x-k8s.io/podset-preferred-topology"
KUEUE_UNCONSTRAINED_TOPOLOGY = "kueue.x-k8s.io/podset-unconstrained-topology"
KUEUE_SLICE_TOPOLOGY = "kueue.x-k8s.io/podset-slice-required-topology"
KUEUE_SLICE_TOPOLOGIES = "kueue.x-k8s.io/podset-slice-required-topology-constraints"
KUEUE_SLICE_SIZE = "kueue.x-k8s.io/podset-slice-size"
KUEUE_POD_SET_GROUP = "kueue.x-k8s.io/podset-group-name"
KUEUE_TOPOLOGY_ANNOTATIONS = frozenset(
    (
        KUEUE_REQUIRED_TOPOLOGY,
        KUEUE_PREFERRED_TOPOLOGY,
        KUEUE_UNCONSTRAINED_TOPOLOGY,
        KUEUE_SLICE_TOPOLOGY,
        KUEUE_SLICE_TOPOLOGIES,
    )
)
"""Annotations of pods for which a topology finds the place."""
KUEUE_TOPOLOGY_GATE = "kueue.x-k8s.io/topology"
KUEUE_IN_USE = "kueue.x-k8s.io/resource-in-use"
"""Finalizer of queues, flavors and checks."""
KUEUE_PROVISIONING = "kueue.x-k8s.io/provisioning-request"
"""Controller name of the admission check that requests nodes."""
KUEUE_MULTIKUEUE = "kueue.x-k8s.io/multikueue"
"""Controller name of the admission check that sends a gang to another cluster, and `managedBy` of such jobs."""
KUEUE_MULTIKUEUE_ORIGIN = "kueue.x-k8s.io/multikueue-origin"
KUEUE_WORKLOAD_PRIORITY = "kueue.x-k8s.io/workloadpriorityclass"
"""`priorityClassSource` of v1beta1."""
POD_PRIORITY = "scheduling.k8s.io/priorityclass"
"""The same of a PriorityClass for pods."""

# KubeRay
RAY_CLUSTER_NAME = "ray.io/cluster"
RAY_NODE_TYPE = "ray.io/node-type"
RAY_SUBMITTER = "ray-job-submitter"
"""Name of the container that submits a RayJob."""
RAY_FAULT_TOLERANT = "ray.io/ft-enabled"
RAY_OPERATOR = "ray.io/kuberay-operator"
"""`managedBy` of what the operator itself looks after."""
IMAGE_ENVIRONMENT = "image.shoal.dev/environment"
"""Annotation of a pod, a RayCluster or a RayJob: the environment of its containers on one machine."""
NODE_POOL = "shoal.dev/pool"
"""On nodes that a pool of one machine made."""
HELD_ELSEWHERE = "shoal.dev/elsewhere"
"""Finalizer of a Workload or an AppWrapper of which another cluster may hold a copy."""
CLUSTER_LOSS = "shoal.dev/cluster-loss"
"""Annotation of a job, an AppWrapper or a ClusterQueue: what becomes of a gang whose other cluster is lost."""
GATED = "shoal.dev/gated"
"""Annotation of the copy of an AppWrapper, and scheduling gate of a pod, that its hub has not released yet."""
FENCED = "fenced"
"""Value of that annotation where the copy was stopped because its hub was not heard for too long."""
