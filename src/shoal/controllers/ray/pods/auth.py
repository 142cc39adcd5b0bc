"""The cluster's token: who may use its dashboard and GCS.

An open dashboard runs anyone's code, so `authOptions` without a mode means token, and an operator may make it the
default for clusters that say nothing: by variables in the pod, or, where a node agent of ours starts the processes, by
naming the Secret to it and leaving the pod's spec as published. Only the operator, the processes and the command line
read the Secret. Pure but for the random token itself.
"""

from __future__ import annotations

import base64
import secrets

from shoal.api import ray_token
from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.pods.containers import add_volume, keep_env, mount, secret
from shoal.controllers.ray.settings import RaySettings

TOKEN_KEY = ray_token.KEY
TOKEN_SINCE = (2, 52, 0)
_MOUNT = "/var/run/secrets/ray.io/serviceaccount"
_VOLUME = "ray-token"


def uses_token(cluster: Json, settings: RaySettings) -> bool:
    options = view.spec(cluster).get("authOptions")
    if isinstance(options, dict):
        return (options.get("mode") or "token") == "token"
    if settings.token_by_agent:
        return not _set_by_hand(cluster)
    version = view.ray_version(cluster)
    return settings.default_auth_token and version is not None and version >= TOKEN_SINCE


def given_by_agent(cluster: Json, settings: RaySettings) -> bool:
    """True where the node agent hands over the token; a cluster with options of its own has it in its pods."""
    own = isinstance(view.spec(cluster).get("authOptions"), dict) and not is_default(cluster)
    return settings.token_by_agent and not own and not _set_by_hand(cluster)


def is_default(cluster: Json) -> bool:
    """True when admission wrote the options, and the user changed nothing about them since."""
    marked = view.annotations_of(cluster).get(ray_token.BY_AGENT) == "true"
    return marked and view.spec(cluster).get("authOptions") == {"mode": "token"}


def _set_by_hand(cluster: Json) -> bool:
    """Manifests from before `authOptions` set Ray's variables themselves, and bring the Secret."""
    ray = view.ray_container(view.head(cluster))
    return any(view.env_value(ray, variable) is not None for variable in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"))


def uses_kubernetes_token(cluster: Json) -> bool:
    return (view.spec(cluster).get("authOptions") or {}).get("enableK8sTokenAuth") is True


def secret_name(cluster: Json) -> str:
    given = (view.spec(cluster).get("authOptions") or {}).get("secretName")
    return str(given or names.identity(view.name(cluster)))


def needs_secret(cluster: Json, settings: RaySettings) -> bool:
    """True when the operator has to make the Secret itself."""
    given = (view.spec(cluster).get("authOptions") or {}).get("secretName")
    return uses_token(cluster, settings) and not uses_kubernetes_token(cluster) and not given


def token_secret(cluster: Json) -> Json:
    token = base64.b64encode(secrets.token_bytes(32))
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": secret_name(cluster),
            "namespace": view.namespace(cluster),
            "labels": {names.CLUSTER: view.name(cluster), names.CREATED_BY: names.OPERATOR, names.APP_NAME: names.APP},
            "ownerReferences": [view.owner_reference(cluster, "ray.io/v1", "RayCluster")],
        },
        "type": "Opaque",
        "data": {TOKEN_KEY: base64.b64encode(token).decode()},
    }


def prepare(container: Json, cluster: Json, settings: RaySettings) -> None:
    """Give one container of the cluster what it needs to pass."""
    if not uses_token(cluster, settings) or given_by_agent(cluster, settings):
        return
    keep_env(container, "RAY_AUTH_MODE", "token")
    if uses_kubernetes_token(cluster):
        keep_env(container, "RAY_ENABLE_K8S_TOKEN_AUTH", "true")
        mount(container, _VOLUME, _MOUNT, readOnly=True)
    else:
        keep_env(container, "RAY_AUTH_TOKEN", secret(secret_name(cluster), TOKEN_KEY))


def name_secret(metadata: Json, cluster: Json, settings: RaySettings) -> None:
    """Tell the node agent whose token the processes of this pod get."""
    if given_by_agent(cluster, settings):
        metadata["annotations"] = {
            **(metadata.get("annotations") or {}),
            ray_token.ANNOTATION: secret_name(cluster),
        }


def prepare_pod(pod_spec: Json, cluster: Json, settings: RaySettings) -> None:
    if uses_token(cluster, settings) and uses_kubernetes_token(cluster):
        source = {"serviceAccountToken": {"path": "token"}}
        add_volume(pod_spec, {"name": _VOLUME, "projected": {"sources": [source]}})
