"""ControllerRevisions: the templates that a StatefulSet or DaemonSet has had, for `kubectl rollout history` and `undo`.

One per template, named by its hash. A template that comes back gets the next number, as in Kubernetes.
"""

from __future__ import annotations

import contextlib
from typing import Any

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.kube.errors import AlreadyExists, NotFound
from shoal.local.builtin.context import WorkloadContext, controller_of, number, reference_to

HASH = "controller-revision-hash"


async def keep(context: WorkloadContext, kind: Kind, owner: Json, digest: str) -> str:
    """Store the present template, as the newest; the name of its revision."""
    metadata, template = owner["metadata"], owner["spec"].get("template") or {}
    name, namespace = f"{metadata['name']}-{digest}", metadata["namespace"]
    found = [one for one in await context.client.list(kinds.CONTROLLER_REVISION, namespace)
             if (controller_of(one) or {}).get("uid") == metadata["uid"]]  # fmt: skip
    others = max((number(one.get("revision")) for one in found if one["metadata"]["name"] != name), default=0)
    known = next((one for one in found if one["metadata"]["name"] == name), None)
    if known is not None:
        if number(known.get("revision")) <= others:
            await context.client.patch(kinds.CONTROLLER_REVISION, name, namespace, {"revision": others + 1})
        return name
    labels = {**((template.get("metadata") or {}).get("labels") or {}), HASH: digest}
    body = {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "ownerReferences": [reference_to(kind, owner)],
        },
        "revision": others + 1,
        "data": _in_order({"spec": {"template": {**template, "$patch": "replace"}}}),
    }
    with contextlib.suppress(
        AlreadyExists
    ):  # a stranger has the name: nothing is kept, and nothing of theirs is changed
        await context.client.create(kinds.CONTROLLER_REVISION, body, namespace)
    return name


def _in_order(value: Any) -> Any:
    """With keys by name, as Kubernetes writes it: there revisions are compared byte by byte."""
    if isinstance(value, dict):
        return {name: _in_order(value[name]) for name in sorted(value)}
    return [_in_order(item) for item in value] if isinstance(value, list) else value


async def template_of(context: WorkloadContext, name: str, namespace: str) -> Json | None:
    """The template that a revision holds."""
    try:
        kept = await context.client.get(kinds.CONTROLLER_REVISION, name, namespace)
    except NotFound:
        return None
    found: Json | None = ((kept.get("data") or {}).get("spec") or {}).get("template")
    return {word: value for word, value in found.items() if word != "$patch"} if found is not None else None
