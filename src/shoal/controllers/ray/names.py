"""Names, labels and annotations of what belongs to a Ray cluster.

Existing dashboards, selectors and Ray's own autoscaler find objects by these, so they are KubeRay's to the letter,
clipping included. Pure; called by every builder.
"""

from __future__ import annotations

import hashlib

from shoal.api import labels

CLUSTER = labels.RAY_CLUSTER_NAME
NODE_TYPE = labels.RAY_NODE_TYPE
GROUP = "ray.io/group"
IDENTIFIER = "ray.io/identifier"
IS_RAY_NODE = "ray.io/is-ray-node"
REPLICA_INDEX = "ray.io/worker-group-replica-index"
REPLICA_NAME = "ray.io/worker-group-replica-name"
HOST_INDEX = "ray.io/replica-host-index"
SERVE = "ray.io/serve"
HEADLESS_WORKERS = "ray.io/headless-worker-svc"
APP_NAME = labels.APP_NAME
CREATED_BY = "app.kubernetes.io/created-by"
ORIGIN_NAME = "ray.io/originated-from-cr-name"
ORIGIN_KIND = "ray.io/originated-from-crd"
SUBMISSION_MODE = "ray.io/job-submission-mode"

FT_ENABLED = labels.RAY_FAULT_TOLERANT
STORAGE_NAMESPACE = "ray.io/external-storage-namespace"
FT_DELETION_TIMEOUT = "ray.io/gcs-ft-deletion-timeout"
OVERWRITE_COMMAND = "ray.io/overwrite-container-cmd"
NO_HEAD_RESTART = "ray.io/disable-provisioned-head-restart"
SERVE_SERVICE = "ray.io/enable-serve-service"
UPGRADE_HASH = "ray.io/upgrade-strategy-recreate-hash"
OPERATOR_VERSION = "ray.io/kuberay-version"
CONFIG_HASH = "ray.io/hash-without-replicas-and-workers-to-delete"
NUM_WORKER_GROUPS = "ray.io/num-worker-groups"
CRON_NAME = "ray.io/cronjob-name"
CRON_TICK = "ray.io/cronjob-scheduled-timestamp"
INITIALIZING_TIMEOUT = "ray.io/initializing-timeout"
RESIZE = "ray.io/ippr"
INGRESS_CLASS = "kubernetes.io/ingress.class"

REDIS_FINALIZER = "ray.io/gcs-ft-redis-cleanup-finalizer"
IDLE_FINALIZER = "ray.io/idle-termination-cleanup-finalizer"
JOB_FINALIZER = "ray.io/rayjob-finalizer"
SERVICE_FINALIZER = "ray.io/rayservice-finalizer"

HEAD, WORKER, REDIS_CLEANUP = "head", "worker", "redis-cleanup"
HEAD_GROUP = "headgroup"
APP = "kuberay"
OPERATOR = "kuberay-operator"

LONGEST_CLUSTER = 53
LONGEST_JOB = 47
LONGEST_SERVICE = 47
LONGEST_CRON_JOB = 36
_LONGEST_PREFIX = 50
_LONGEST_LABEL = 63
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # what Kubernetes itself uses for random suffixes


def head_pod_prefix(cluster: str) -> str:
    return f"{cluster[:_LONGEST_PREFIX].lower()}-head-"


def worker_pod_prefix(cluster: str, group: str) -> str:
    return f"{f'{cluster}-{group}'[:_LONGEST_PREFIX].lower()}-worker-"


def head_service(cluster: str) -> str:
    return f"{cluster}-head-svc"


def serve_service(cluster: str) -> str:
    return f"{cluster}-serve-svc"


def headless_service(cluster: str) -> str:
    return f"{cluster}-headless"


def route(cluster: str) -> str:
    return checked_name(f"{cluster}-head-route")


def ingress(cluster: str) -> str:
    return checked_name(f"{cluster}-head-ingress")


def identity(cluster: str) -> str:
    """ServiceAccount, Role, RoleBinding and auth Secret."""
    return checked_name(cluster)


def storage_claim(cluster: str) -> str:
    return f"{cluster}-gcs-pvc"


def redis_cleanup_job(cluster: str) -> str:
    return checked_label(f"{cluster}-redis-cleanup")


def identifier(cluster: str, node_type: str) -> str:
    return checked_label(f"{cluster}-{node_type}")


def checked_name(name: str) -> str:
    """The last 50 characters; a first character that no name may start with becomes `r`."""
    kept = name[-_LONGEST_PREFIX:]
    return kept if not kept or kept[0].isalpha() else "r" + kept[1:]


def checked_label(value: str) -> str:
    """The last 63 characters; leading punctuation becomes `r`."""
    kept = value[-_LONGEST_LABEL:]
    return kept if not kept or kept[0].isalnum() else "r" + kept[1:]


def suffix(*parts: object) -> str:
    """Five characters that look like a generated name's, fixed by what they stand for."""
    number = int.from_bytes(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:8], "big")
    letters = []
    for _ in range(5):
        number, letter = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[letter])
    return "".join(letters)


def full_head_name(service: str, namespace: str, domain: str) -> str:
    return f"{service}.{namespace}.svc.{domain}"
