"""The Job that empties a deleted cluster's part of Redis. Pure; called by the reconciler while the finalizer holds
the cluster.
"""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.pods import builder, fault_tolerance
from shoal.controllers.ray.pods.containers import same_limits
from shoal.controllers.ray.settings import RaySettings

DEADLINE = 300
AMOUNTS = {"cpu": "200m", "memory": "256Mi"}
_SCRIPT = (
    "import os; from urllib.parse import urlparse; from ray._private.gcs_utils import cleanup_redis_storage; "
    "address = os.getenv('RAY_REDIS_ADDRESS', '').split(',')[0]; "
    "address = address if '://' in address else 'redis://' + address; parsed = urlparse(address); "
    "done = cleanup_redis_storage(host=parsed.hostname, port=parsed.port or 6379, "
    "username=os.getenv('REDIS_USERNAME', parsed.username or ''), "
    "password=os.getenv('REDIS_PASSWORD', parsed.password or ''), use_ssl=parsed.scheme == 'rediss', "
    "storage_namespace=os.getenv('RAY_external_storage_namespace', '')); raise SystemExit(0 if done else 1)"
)


def cleanup_job(cluster: Json, settings: RaySettings) -> Json:
    """One container with the head's image, environment and mounts, small, once, for five minutes at most."""
    pod = builder.head_pod(cluster, settings)
    labels = {**pod["metadata"]["labels"], names.NODE_TYPE: names.REDIS_CLEANUP}
    spec = pod["spec"]
    ray = spec["containers"][0]
    ray.update(
        {
            "command": builder.shell(settings),
            "args": [f'python -c "{_SCRIPT}"'],
            "resources": same_limits(AMOUNTS),
        }
    )
    for dropped in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "ports"):
        ray.pop(dropped, None)
    _drop_shared_memory(spec, ray)
    spec.update({"containers": [ray], "restartPolicy": "Never"})
    spec.pop("initContainers", None)
    if view.autoscaling(cluster) and not view.pod_spec(view.head(cluster)).get("serviceAccountName"):
        spec.pop("serviceAccountName", None)  # the autoscaler's account goes with the cluster; this pod needs none
    annotations = {names.STORAGE_NAMESPACE: fault_tolerance.storage_namespace(cluster)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": names.redis_cleanup_job(view.name(cluster)),
            "namespace": view.namespace(cluster),
            "labels": dict(labels),
            "annotations": annotations,
            "ownerReferences": [view.owner_reference(cluster, "ray.io/v1", "RayCluster")],
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": DEADLINE,
            "template": {
                "metadata": {"labels": dict(labels), "annotations": pod["metadata"]["annotations"]},
                "spec": spec,
            },
        },
    }


def _drop_shared_memory(spec: Json, ray: Json) -> None:
    """Clean-up needs no object store."""
    ray["volumeMounts"] = [mount for mount in ray.get("volumeMounts") or [] if mount.get("mountPath") != "/dev/shm"]
    spec["volumes"] = [volume for volume in spec.get("volumes") or [] if volume.get("name") != "shared-mem"]
