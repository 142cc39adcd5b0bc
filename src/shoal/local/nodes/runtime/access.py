"""A pod's access to the API server: token, CA and namespace in the files where every in-cluster client looks.

Kubernetes' admission writes this volume into the pod; here the pod stays as it was stored, and its volumes are made as
if it were there. Called by `Volumes` alone.
"""

from __future__ import annotations

import os

from shoal.api.meta import Json
from shoal.local.nodes.runtime.sources import Sources

PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
ROOT_CA = "kube-root-ca.crt"
_NAME = "kube-api-access"
_TOKEN_SECONDS = 3607  # what Kubernetes asks for
_SOURCES: list[Json] = [
    {"serviceAccountToken": {"path": "token", "expirationSeconds": _TOKEN_SECONDS}},
    {"configMap": {"name": ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
]


def volume(pod: Json) -> Json:
    """The volume, under a name that none of the pod's own has."""
    taken = {one["name"] for one in pod["spec"].get("volumes") or ()}
    name = _NAME if _NAME not in taken else f"{_NAME}-"  # no volume of a user can be called that
    return {"name": name, "projected": {"sources": _SOURCES}}


def lacks(container: Json) -> bool:
    """Whether a container has nothing of its own where the files would be."""
    return all(os.path.normpath(mount["mountPath"]) != PATH for mount in container.get("volumeMounts") or ())


async def is_due(pod: Json, sources: Sources) -> bool:
    """Whether a pod is to have it: as it says itself, else as its service account does, else yes.

    An account that is not there says nothing: the request for its token is what waits for it. A pod that names none
    comes from a server whose admission is told to leave accounts alone.
    """
    spec = pod["spec"]
    name = spec.get("serviceAccountName")
    everyone = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    if not name or not any(lacks(container) for container in everyone):
        return False
    said = spec.get("automountServiceAccountToken")
    if said is None:
        account = await sources.account(pod["metadata"].get("namespace", ""), name)
        said = (account or {}).get("automountServiceAccountToken")
    return said is not False
