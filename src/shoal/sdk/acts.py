"""What a user does to a gang that is there: stop it, hold it, let it go, run it again.

Each is one write with the user's own rights, to a field that Kubernetes, Kueue and KubeRay users know.
"""

from __future__ import annotations

import copy
import json

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.labels import KUEUE_QUEUE, LAST_APPLIED
from shoal.api.meta import Json
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden
from shoal.sdk import gangs, queued, shapes, submitting
from shoal.sdk.following import look

_OURS = ("shoal", "kueue", "kuberay-operator", "ray-operator")
"""How managers begin that change a stored object: what they own, no user wrote."""


async def stop(client: Client, kind: Kind, obj: Json) -> None:
    """End it: the object is deleted, and all that it made with it."""
    metadata = obj["metadata"]
    await client.delete(kind, metadata["name"], metadata["namespace"], uid=metadata["uid"], propagation="Background")


async def hold(client: Client, kind: Kind, obj: Json, *, on: bool) -> str:
    """Stop its pods and keep it out of the queue, or let it in again; returns what was changed."""
    metadata, view = obj["metadata"], await look(client, kind, obj)
    if view.outcome.has_ended:
        raise ShoalError(f"{kind.kind} {metadata['name']} has ended; `shoal rerun` runs it again")
    if queued.queue_of(obj):
        workload = view.workload
        if workload is None:
            raise ShoalError(f"{kind.kind} {metadata['name']} has no Workload yet; try again in a moment")
        name = workload["metadata"]["name"]
        try:
            await client.patch(kinds.WORKLOAD, name, metadata["namespace"], {"spec": {"active": not on}})
        except Forbidden as error:
            raise ShoalError(f"{error}; a queued gang is held by spec.active of its Workload") from error
        return f"workload {name} spec.active={str(not on).lower()}"
    if (gangs.is_wrapper(kind) and (obj.get("spec") or {}).get("resources")) or kind == kinds.RAY:
        raise ShoalError(f"this {kind.kind} cannot be held: only those that name a queue or have spec.suspend can")
    await client.patch(_suspendable(kind), metadata["name"], metadata["namespace"], {"spec": {"suspend": on}})
    return f"spec.suspend={str(on).lower()}"


def _suspendable(kind: Kind) -> Kind:
    return kinds.APP_WRAPPER_V1BETA2 if kind == kinds.APP_WRAPPER else kind


async def rerun(client: Client, kind: Kind, obj: Json, *, name: str = "") -> Json:
    """The same once more, as the user wrote it, under a new name."""
    manifest = written(obj)
    metadata = manifest["metadata"]
    metadata["name"] = name or shapes.renamed(metadata.get("name") or metadata.get("generateName", "job").rstrip("-"))
    metadata.pop("generateName", None)
    metadata["namespace"] = obj["metadata"]["namespace"]
    (manifest.get("spec") or {}).pop("jobId", None)
    if kind == kinds.RAY_JOB:
        code = await submitting.code_of(client, obj)
        if code:
            return await submitting.create_with_code(client, manifest, code)
    return await submitting.create(client, kind, manifest, metadata["namespace"])


def written(obj: Json) -> Json:
    """The manifest without what admission and controllers put into it."""
    kept = (obj["metadata"].get("annotations") or {}).get(LAST_APPLIED)
    if kept:
        found: Json = json.loads(kept)
        return found
    spec = copy.deepcopy(obj.get("spec") or {})
    for entry in obj["metadata"].get("managedFields") or ():
        if str(entry.get("manager", "")).startswith(_OURS) and not entry.get("subresource"):
            _without(spec, (entry.get("fieldsV1") or {}).get("f:spec") or {})
    labels = dict(obj["metadata"].get("labels") or {})
    if KUEUE_QUEUE in labels:
        spec.pop("suspend", None)
    annotations = {
        key: value
        for key, value in (obj["metadata"].get("annotations") or {}).items()
        if not key.startswith(("shoal.dev/", "kueue.x-k8s.io/", "kubectl.kubernetes.io/"))
    }
    metadata = {"name": obj["metadata"]["name"], "labels": labels, "annotations": annotations}
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "metadata": {key: value for key, value in metadata.items() if value},
        "spec": spec,
    }


def _without(value: Json, fields: Json) -> None:
    """Drop what these fields name, where they name whole values of mappings."""
    for field, below in fields.items():
        if not field.startswith("f:"):
            continue
        name = field[2:]
        if not below:
            value.pop(name, None)
        elif isinstance(value.get(name), dict):
            _without(value[name], below)
