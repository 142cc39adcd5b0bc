"""The names that users, autoscalers and other controllers read: Kueue's labels, annotations and finalizers."""

from __future__ import annotations

GROUP = "kueue.x-k8s.io"
QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY_CLASS = "kueue.x-k8s.io/priority-class"
MAX_EXECUTION = "kueue.x-k8s.io/max-exec-time-seconds"
JOB_UID = "kueue.x-k8s.io/job-uid"
GATED_BY = "kueue.x-k8s.io/admission-gated-by"
MANAGED = "kueue.x-k8s.io/managed"
POD_SET = "kueue.x-k8s.io/podset"
LOCAL_QUEUE = "kueue.x-k8s.io/local-queue-name"
CLUSTER_QUEUE = "kueue.x-k8s.io/cluster-queue-name"
WORKLOAD = "kueue.x-k8s.io/workload"
STOPPING = "kueue.x-k8s.io/stopping"
ELASTIC = "kueue.x-k8s.io/elastic-job"
MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
COMPLETIONS_EQUAL_PARALLELISM = "kueue.x-k8s.io/job-completions-equal-parallelism"
PREBUILT = "kueue.x-k8s.io/prebuilt-workload-name"
"""Annotation, or label, of a job whose Workload somebody else has made."""
PROVISIONING_PREFIX = "provreq.kueue.x-k8s.io/"
"""Annotations of a job that become parameters of its ProvisioningRequests."""

IN_USE = "kueue.x-k8s.io/resource-in-use"
"""Finalizer of ClusterQueues, ResourceFlavors and Workloads."""

PROVISIONING_CHECK = "kueue.x-k8s.io/provisioning-request"
"""`controllerName` of the admission checks that we answer ourselves."""

LONGEST_CONDITION = 32768
LONGEST_EVENT = 1024


def bounded(message: str, longest: int = LONGEST_CONDITION) -> str:
    return message if len(message) <= longest else message[: longest - 3] + "..."
