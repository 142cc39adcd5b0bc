"""GCS fault tolerance: what the head and the workers need so that a new head finds the old cluster's state.

Redis by options or by the legacy annotation, or an embedded store on a volume claim. The storage namespace is the
cluster's UID unless the user names one, so a new cluster of the same name never revives an old one's state. Pure;
called by the pod builder and by the clean-up.
"""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.pods.containers import add_volume, keep_env, mount, put_env

STORAGE_PATH = "/data/gcs"
STORAGE_VOLUME = "gcs-storage"


def options(cluster: Json) -> Json | None:
    found = view.spec(cluster).get("gcsFaultToleranceOptions")
    return found if isinstance(found, dict) else None


def enabled(cluster: Json) -> bool:
    return options(cluster) is not None or view.annotations_of(cluster).get(names.FT_ENABLED, "").lower() == "true"


def embedded(cluster: Json) -> bool:
    return (options(cluster) or {}).get("backend") == "rocksdb"


def uses_redis(cluster: Json) -> bool:
    return enabled(cluster) and not embedded(cluster)


def storage_namespace(cluster: Json) -> str:
    chosen = (options(cluster) or {}).get("externalStorageNamespace")
    return str(chosen or view.annotations_of(cluster).get(names.STORAGE_NAMESPACE) or view.uid(cluster))


def shares_storage(cluster: Json) -> bool:
    """May another cluster keep its state in the same place? The user chose it; it is not named after the cluster."""
    return uses_redis(cluster) and storage_namespace(cluster) != view.uid(cluster)


def claim_name(cluster: Json) -> str:
    given = ((options(cluster) or {}).get("storage") or {}).get("claimName")
    return str(given or names.storage_claim(view.name(cluster)))


def prepare_head(pod: Json, cluster: Json, params: dict[str, str]) -> None:
    """Annotations, variables and the volume of the head pod."""
    annotations = pod["metadata"]["annotations"]
    container = pod["spec"]["containers"][0]
    annotations[names.FT_ENABLED] = "true" if enabled(cluster) else "false"
    if not enabled(cluster):
        return
    if embedded(cluster):
        put_env(container, "RAY_gcs_storage", "rocksdb")
        put_env(container, "RAY_gcs_storage_path", STORAGE_PATH)
        sub_path = ((options(cluster) or {}).get("storage") or {}).get("subPath")
        mount(container, STORAGE_VOLUME, STORAGE_PATH, **({"subPath": sub_path} if sub_path else {}))
        add_volume(pod["spec"], {"name": STORAGE_VOLUME, "persistentVolumeClaim": {"claimName": claim_name(cluster)}})
        return
    annotations[names.STORAGE_NAMESPACE] = storage_namespace(cluster)
    keep_env(container, "RAY_external_storage_namespace", storage_namespace(cluster))
    chosen = options(cluster)
    if chosen is None:
        if params.get("redis-password"):
            keep_env(container, "REDIS_PASSWORD", params["redis-password"])
        return
    put_env(container, "RAY_REDIS_ADDRESS", str(chosen.get("redisAddress") or ""))
    for field, variable in (("redisUsername", "REDIS_USERNAME"), ("redisPassword", "REDIS_PASSWORD")):
        credential = chosen.get(field) or {}
        if credential.get("valueFrom"):
            put_env(container, variable, credential["valueFrom"])
        elif credential:
            put_env(container, variable, str(credential.get("value") or ""))


def prepare_worker(container: Json, cluster: Json) -> None:
    """Workers wait ten minutes for a head that restarts, instead of one."""
    if enabled(cluster):
        keep_env(container, "RAY_gcs_rpc_server_reconnect_timeout_s", "600")


def volume_claim(cluster: Json) -> Json | None:
    """The claim that the operator makes for the embedded store; None when the user brings one or there is no need."""
    if not embedded(cluster):
        return None
    storage = (options(cluster) or {}).get("storage") or {}
    if storage.get("claimName"):
        return None
    claim: Json = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": claim_name(cluster),
            "namespace": view.namespace(cluster),
            "labels": {
                names.CLUSTER: view.name(cluster),
                names.APP_NAME: names.APP,
                names.CREATED_BY: names.OPERATOR,
            },
        },
        "spec": {
            "accessModes": storage.get("accessModes") or ["ReadWriteOnce"],
            "resources": {"requests": {"storage": str(storage.get("size") or "1Gi")}},
        },
    }
    if storage.get("storageClassName"):
        claim["spec"]["storageClassName"] = storage["storageClassName"]
    if storage.get("deletionPolicy") != "Retain":
        claim["metadata"]["ownerReferences"] = [view.owner_reference(cluster, "ray.io/v1", "RayCluster")]
    return claim
