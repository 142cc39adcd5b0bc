"""Ray clusters and Ray jobs that no queue holds, as `shoal get` sees them: which of their pods do not run, and why.

Reads the pods' own statuses with the asker's rights, in one request for all; without that right nothing is said.
"""

from __future__ import annotations

from shoal.api import kinds, pod_told
from shoal.api.kind import Kind
from shoal.api.labels import RAY_CLUSTER_NAME
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden, NotFound
from shoal.sdk.listed import Listed

KINDS = (kinds.RAY_JOB, kinds.RAY_CLUSTER)


async def pods(client: Client, namespace: str | None, cluster: str = "") -> dict[tuple[str, str], list[Json]]:
    """By namespace and RayCluster name: what controls them tells whose they are, never their labels. `cluster`: its
    alone; the label narrows the search."""
    found: dict[tuple[str, str], list[Json]] = {}
    try:
        listed = await client.list(
            kinds.POD, namespace, label_selector=f"{RAY_CLUSTER_NAME}={cluster}" if cluster else "", type=Listed
        )
    except (Forbidden, NotFound):
        return {}
    for pod in listed:
        for owner in pod["metadata"].get("ownerReferences") or ():
            if owner.get("controller") and owner.get("kind") == kinds.RAY_CLUSTER.kind:
                found.setdefault((pod["metadata"]["namespace"], owner["name"]), []).append(pod)
    return found


def below(kind: Kind, obj: Json, found: dict[tuple[str, str], list[Json]]) -> list[Json]:
    """The pods of this Ray cluster, or of the one that this Ray job made."""
    if kind not in KINDS:
        return []
    return found.get((obj["metadata"].get("namespace", ""), cluster_of(kind, obj)), [])


def cluster_of(kind: Kind, obj: Json) -> str:
    """Name of its RayCluster; empty for a Ray job that has none yet."""
    if kind == kinds.RAY_JOB:
        return str((obj.get("status") or {}).get("rayClusterName") or "")
    return str(obj["metadata"]["name"])


def why_pending(pods: list[Json]) -> str:
    """How many of them do not run, and what the first of these says."""
    reasons = sorted(
        (pod["metadata"]["name"], pod_told.why_pending(pod.get("status") or {}, pod.get("spec") or {})) for pod in pods
    )
    pending = [(name, reason) for name, reason in reasons if reason]
    if not pending:
        return ""
    return f"{len(pending)} of {len(pods)} pods pending: {pending[0][0]}: {pending[0][1]}"
