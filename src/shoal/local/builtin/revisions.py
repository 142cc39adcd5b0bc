"""ControllerRevisions: the templates that a StatefulSet or DaemonSet has had, for `kubectl rollout history` and `undo`.

One per template, named by its hash. A template that comes back gets the next number, as in Kubernetes.
"""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.kube.errors import AlreadyExists, NotFound
from shoal.local.builtin.workbench import Workbench, number, reference_to

HASH = "controller-revision-hash"


async def keep(bench: Workbench, kind: Kind, owner: Json, digest: str) -> str:
    """Store the present template; the name of its revision."""
    metadata, template = owner["metadata"], owner["spec"].get("template") or {}
    name = f"{metadata['name']}-{digest}"
    labels = {**((template.get("metadata") or {}).get("labels") or {}), HASH: digest}
    revision = number(metadata.get("generation"), 1)
    body = {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": labels,
            "ownerReferences": [reference_to(kind, owner)],
        },
        "revision": revision,
        "data": {"spec": {"template": {**template, "$patch": "replace"}}},
    }
    try:
        await bench.client.create(kinds.CONTROLLER_REVISION, body, metadata["namespace"])
    except AlreadyExists:
        try:
            await bench.client.patch(kinds.CONTROLLER_REVISION, name, metadata["namespace"], {"revision": revision})
        except NotFound:
            return name
    return name


async def template_of(bench: Workbench, name: str, namespace: str) -> Json | None:
    """The template that a revision holds."""
    try:
        kept = await bench.client.get(kinds.CONTROLLER_REVISION, name, namespace)
    except NotFound:
        return None
    found: Json | None = ((kept.get("data") or {}).get("spec") or {}).get("template")
    return {word: value for word, value in found.items() if word != "$patch"} if found is not None else None
