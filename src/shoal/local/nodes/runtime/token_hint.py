"""The words that a program reads which connects to a pod's `ray://` without the cluster's token.

Told to Ray's own server in the pod by its environment; `raysite/ray_hint.py` says them. Used when a container of a Ray
image is planned. Never has the token itself.
"""

from __future__ import annotations

from shoal.api import ray_token
from shoal.api.meta import Json
from shoal.local.nodes.runtime import raysite

VARIABLE = "SHOAL_TOKEN_HINT"


def add_hint(environment: dict[str, str], pod: Json, container: Json) -> None:
    """To the environment of a container of a Ray image; nothing where the cluster has no token."""
    if environment.get("RAY_AUTH_MODE") != "token":
        return
    environment[VARIABLE] = hint(pod, container)
    raysite.put_first(environment)


def hint(pod: Json, container: Json) -> str:
    metadata = pod["metadata"]
    name, key = (metadata.get("annotations") or {}).get(ray_token.ANNOTATION), ray_token.KEY
    for one in container.get("env") or ():
        reference = (one.get("valueFrom") or {}).get("secretKeyRef")
        if one.get("name") == "RAY_AUTH_TOKEN" and reference:
            name, key = reference.get("name"), reference.get("key")
    if not name:
        return "This Ray cluster asks for a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN before you connect"
    path = str(key).replace(".", r"\.")
    reading = f"kubectl get secret {name} -n {metadata.get('namespace', '')} -o jsonpath='{{.data.{path}}}' | base64 -d"
    cure = f"export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$({reading})"
    return f"This Ray cluster asks for its token. Before you connect: {cure}"
