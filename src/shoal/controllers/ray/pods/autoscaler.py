"""Ray's own autoscaler beside the head, and the identity it works under.

The operator never decides sizes: it starts `ray kuberay-autoscaler` as a container of the head pod and obeys what
that writes into the RayCluster. Pure; called by the pod builder and the reconciler.
"""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.pods import auth
from shoal.controllers.ray.pods.containers import add_volume, field, mount, mounted_at, put_env, same_limits
from shoal.controllers.ray.settings import RaySettings

CONTAINER = "autoscaler"
AMOUNTS = {"cpu": "500m", "memory": "512Mi"}
START = "ray kuberay-autoscaler --cluster-name $(RAY_CLUSTER_NAME) --cluster-namespace $(RAY_CLUSTER_NAMESPACE)"
START_VARIABLE = "KUBERAY_GEN_AUTOSCALER_START_CMD"
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_VOLUME = "autoscaler-api-access"
LOGS = "/tmp/ray"
LOGS_VOLUME = "ray-logs"


def add_autoscaler(pod: Json, cluster: Json, settings: RaySettings, shell: list[str]) -> None:
    """Append the container: never first, because Ray reads the first container's state as the node's."""
    spec = pod["spec"]
    ray = spec["containers"][0]
    logs = mounted_at(ray, LOGS) or LOGS_VOLUME
    add_volume(spec, {"name": logs, "emptyDir": {}})
    mount(ray, logs, LOGS)
    container = _container(cluster, settings, shell, str(ray.get("image") or ""))
    mount(container, logs, LOGS)
    spec["containers"].append(container)
    if not spec.get("serviceAccountName"):
        spec["serviceAccountName"] = names.identity(view.name(cluster))
    version = view.autoscaler_options(cluster).get("version")
    if version == "v2":
        put_env(ray, "RAY_enable_autoscaler_v2", "true")
        spec["restartPolicy"] = "Never"
    elif version == "v1":
        put_env(ray, "RAY_enable_autoscaler_v2", "false")


def mount_token(pod: Json) -> None:
    """The API token, CA and namespace for the autoscaler alone, as Kubernetes' own admission would mount them."""
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    for container in pod["spec"]["containers"]:
        if container.get("name") == CONTAINER:
            add_volume(pod["spec"], {"name": TOKEN_VOLUME, "projected": {"sources": sources}})
            mount(container, TOKEN_VOLUME, TOKEN_PATH, readOnly=True)


def _container(cluster: Json, settings: RaySettings, shell: list[str], image: str) -> Json:
    options = view.autoscaler_options(cluster)
    container: Json = {
        "name": CONTAINER,
        "image": options.get("image") or image,
        "imagePullPolicy": options.get("imagePullPolicy") or "IfNotPresent",
        "command": list(options.get("command") or shell),
        "args": list(options.get("args") or [START]),
        "resources": resources(options),
    }
    put_env(container, "RAY_CLUSTER_NAME", field(f"metadata.labels['{names.CLUSTER}']"))
    put_env(container, "RAY_CLUSTER_NAMESPACE", field("metadata.namespace"))
    put_env(container, "RAY_HEAD_POD_NAME", field("metadata.name"))
    put_env(container, "KUBERAY_CRD_VER", "v1")
    put_env(container, START_VARIABLE, START)
    auth.prepare(container, cluster, settings)
    for entry in options.get("env") or []:
        container["env"] = [kept for kept in container["env"] if kept["name"] != entry.get("name")] + [
            view.clone(entry)
        ]
    if options.get("envFrom"):
        container["envFrom"] = view.clone(options["envFrom"])
    if options.get("volumeMounts"):
        container["volumeMounts"] = [*(container.get("volumeMounts") or []), *view.clone(options["volumeMounts"])]
    if options.get("securityContext"):
        container["securityContext"] = view.clone(options["securityContext"])
    return container


def resources(options: Json) -> Json:
    """What the container asks for: as `autoscalerOptions` say, which may be nothing at all, else KubeRay's amounts."""
    given = options.get("resources")
    return same_limits(AMOUNTS) if given is None else view.clone(given)


def service_account_name(cluster: Json) -> str:
    return str(view.pod_spec(view.head(cluster)).get("serviceAccountName") or names.identity(view.name(cluster)))


def brings_own_account(cluster: Json) -> bool:
    """A user-named account is the user's to make."""
    named = view.pod_spec(view.head(cluster)).get("serviceAccountName")
    return bool(named) and named != names.identity(view.name(cluster))


def service_account(cluster: Json) -> Json:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(cluster, service_account_name(cluster))}


def role(cluster: Json) -> Json:
    """What the autoscaler may do. Deleting its own cluster only where idle clusters are to be deleted."""
    idle = view.spec(cluster).get("idleTerminationOptions") or {}
    cluster_verbs = ["get", "patch"] + (["delete"] if idle.get("timeoutSeconds") is not None else [])
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": _metadata(cluster, names.identity(view.name(cluster))),
        "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},
            {"apiGroups": [""], "resources": ["pods/resize"], "verbs": ["patch"]},
            {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "verbs": cluster_verbs},
        ],
    }


def role_binding(cluster: Json) -> Json:
    name = names.identity(view.name(cluster))
    subject = {
        "kind": "ServiceAccount",
        "name": service_account_name(cluster),
        "namespace": view.namespace(cluster),
    }
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(cluster, name),
        "subjects": [subject],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
    }


def _metadata(cluster: Json, name: str) -> Json:
    return {
        "name": name,
        "namespace": view.namespace(cluster),
        "labels": {names.CLUSTER: view.name(cluster), names.APP_NAME: names.APP, names.CREATED_BY: names.OPERATOR},
        "ownerReferences": [view.owner_reference(cluster, "ray.io/v1", "RayCluster")],
    }
