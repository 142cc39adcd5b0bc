"""The names that users, autoscalers and other controllers read: Kueue's labels, annotations and finalizers."""

from __future__ import annotations

from shoal.api.labels import (
    KUEUE_ELASTIC_JOB,
    KUEUE_GATED_BY,
    KUEUE_GROUP_WORKLOAD,
    KUEUE_IN_USE,
    KUEUE_JOB_UID,
    KUEUE_PRIORITY_CLASS,
    KUEUE_PROVISIONING,
    KUEUE_QUEUE,
    KUEUE_WORKLOAD,
)

GROUP = "kueue.x-k8s.io"
QUEUE = KUEUE_QUEUE
PRIORITY_CLASS = KUEUE_PRIORITY_CLASS
MAX_EXECUTION = "kueue.x-k8s.io/max-exec-time-seconds"
JOB_UID = KUEUE_JOB_UID
GATED_BY = KUEUE_GATED_BY
MANAGED = "kueue.x-k8s.io/managed"
POD_SET = "kueue.x-k8s.io/podset"
LOCAL_QUEUE = "kueue.x-k8s.io/local-queue-name"
CLUSTER_QUEUE = "kueue.x-k8s.io/cluster-queue-name"
WORKLOAD = KUEUE_WORKLOAD
STOPPING = "kueue.x-k8s.io/stopping"
ELASTIC = KUEUE_ELASTIC_JOB
MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
COMPLETIONS_EQUAL_PARALLELISM = "kueue.x-k8s.io/job-completions-equal-parallelism"
PREBUILT = "kueue.x-k8s.io/prebuilt-workload-name"
"""Annotation, or label, of a job whose Workload another client has made."""
POD_GROUP = "kueue.x-k8s.io/pod-group-name"
"""Annotation, or label, of pods that are one gang; also the name of their Workload."""
POD_GROUP_TOTAL = "kueue.x-k8s.io/pod-group-total-count"
POD_GROUP_FAST = "kueue.x-k8s.io/pod-group-fast-admission"
POD_GROUP_SERVING = "kueue.x-k8s.io/pod-group-serving"
POD_INDEX = "kueue.x-k8s.io/pod-group-pod-index"
POD_INDEX_LABEL = "kueue.x-k8s.io/pod-group-pod-index-label"
"""Annotation of a pod: which of its labels has its place in the group."""
ROLE_HASH = "kueue.x-k8s.io/role-hash"
RETRIABLE = "kueue.x-k8s.io/retriable-in-group"
IS_GROUP = KUEUE_GROUP_WORKLOAD
"""Annotation of a Workload that was made for a group of pods."""
SUSPENDED_BY = "kueue.x-k8s.io/pod-suspending-parent"
"""Annotation of pods whose maker has their Workload made."""
PROVISIONING_PREFIX = "provreq.kueue.x-k8s.io/"
"""Annotations of a job that become parameters of its ProvisioningRequests."""

IN_USE = KUEUE_IN_USE
"""Finalizer of ClusterQueues, ResourceFlavors and Workloads."""

PROVISIONING_CHECK = KUEUE_PROVISIONING
"""`controllerName` of the admission checks that we answer ourselves."""

LONGEST_CONDITION = 32768
LONGEST_EVENT = 1024


def bounded(message: str, longest: int = LONGEST_CONDITION) -> str:
    return message if len(message) <= longest else message[: longest - 3] + "..."
