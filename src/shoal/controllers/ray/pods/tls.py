"""Mutual TLS between the nodes of a cluster with `tlsOptions`: what its pods mount and wait for.

Head and workers each have a Secret with their certificate, which lists the addresses of the pods. An address is known
only when its pod is placed, so every pod first waits until the mounted certificate names its own. Pure; called by the
pod builder, by validation and by the part that makes the certificates.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.api.meta import Json
from shoal.controllers.ray import view
from shoal.controllers.ray.pods import autoscaler
from shoal.controllers.ray.pods.containers import add_volume, field, keep_env, mount, same_limits
from shoal.controllers.ray.settings import MUTUAL_TLS, RaySettings

VOLUME, FOLDER = "ray-tls", "/etc/ray/tls"
WAIT_CONTAINER = "wait-for-tls-ip-san"
WAIT_AMOUNTS = {"cpu": "50m", "memory": "64Mi"}
VARIABLES = {
    "RAY_USE_TLS": "1",
    "RAY_TLS_SERVER_CERT": f"{FOLDER}/tls.crt",
    "RAY_TLS_SERVER_KEY": f"{FOLDER}/tls.key",
    "RAY_TLS_CA_CERT": f"{FOLDER}/ca.crt",
}
_SCRIPT = (
    'command -v openssl > /dev/null || { echo "openssl is missing in this image; tlsOptions needs it" >&2; exit 1; }; '
    f"until openssl x509 -in {FOLDER}/tls.crt -noout -checkip \"$POD_IP\" 2>&1 | grep -q 'does match'; do "
    'echo "waiting for a certificate that names ${POD_IP}"; sleep 2; done'
)


def asked_for(spec: Json) -> bool:
    """By a RayClusterSpec."""
    options = spec.get("tlsOptions")
    return isinstance(options, dict) and options.get("enabled") is True


def enabled(cluster: Json, settings: RaySettings) -> bool:
    return settings.gate(MUTUAL_TLS) and asked_for(view.spec(cluster))


def secret_name(cluster: Json, *, is_head: bool) -> str:
    return f"ray-{'head' if is_head else 'worker'}-secret-{view.name(cluster)}"


def authority_name(cluster: Json) -> str:
    return f"ray-ca-secret-{view.name(cluster)}"


def prepare(pod: Json, cluster: Json, settings: RaySettings, *, waits: tuple[str, ...], is_head: bool) -> None:
    """`waits`: init containers that speak to other nodes. The wait for the certificate comes before all of them."""
    if not enabled(cluster, settings):
        return
    spec = pod["spec"]
    ray = spec["containers"][0]
    add_volume(spec, {"name": VOLUME, "secret": {"secretName": secret_name(cluster, is_head=is_head)}})
    beside = [one for one in spec["containers"][1:] if one.get("name") == autoscaler.CONTAINER]
    steps = [one for one in spec.get("initContainers") or [] if one.get("name") in waits]
    for container in (ray, *beside, *steps):
        for variable, value in VARIABLES.items():
            keep_env(container, variable, value)
        mount(container, VOLUME, FOLDER, readOnly=True)
    spec["initContainers"] = [_wait(ray), *(spec.get("initContainers") or [])]


def _wait(ray: Json) -> Json:
    container: Json = {
        "name": WAIT_CONTAINER,
        "image": ray.get("image"),
        "command": ["sh", "-c"],
        "args": [_SCRIPT],
        "env": [{"name": "POD_IP", "valueFrom": field("status.podIP")}],
        "resources": same_limits(WAIT_AMOUNTS),
        "volumeMounts": [{"name": VOLUME, "mountPath": FOLDER, "readOnly": True}],
    }
    for copied in ("imagePullPolicy", "securityContext"):
        if ray.get(copied):
            container[copied] = view.clone(ray[copied])
    return container


def problems_of_tls(cluster: Json) -> Iterator[str]:
    """What of the user's own would stand in the way of ours."""
    if not asked_for(view.spec(cluster)):
        return
    places = [("spec.headGroupSpec", view.ray_container(view.head(cluster)))]
    places += [(f"worker group {view.group_name(one)!r}", view.ray_container(one)) for one in view.groups(cluster)]
    places.append(("spec.autoscalerOptions", view.autoscaler_options(cluster)))
    for where, container in places:
        for entry in container.get("env") or []:
            if entry.get("name") in VARIABLES:
                yield f"{where} sets {entry['name']}, which spec.tlsOptions sets; remove one of the two"
        for mounted in container.get("volumeMounts") or []:
            path = str(mounted.get("mountPath") or "").rstrip("/")
            if mounted.get("name") == VOLUME or path == FOLDER:
                yield f"{where} mounts {mounted.get('name')!r} at {path}, where spec.tlsOptions mounts its certificates"
