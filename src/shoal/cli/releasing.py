"""What `shoal uninstall` does to finalizers: with the controller gone nothing would remove them, and deletions hang.

Only finalizers that Shoal's controllers add, and only on kinds of parts that were installed: those of a KubeRay or a
Kueue that runs beside it stay. An object that is being deleted goes with its last finalizer; all others stay.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import msgspec

from shoal.api.appwrapper import FINALIZER
from shoal.api.crds.catalogue import DEFINITIONS
from shoal.api.kind import Key, Kind
from shoal.api.labels import KUEUE_IN_USE
from shoal.controllers.queues.checks.multikueue import HELD
from shoal.controllers.ray import names
from shoal.kube.client import Client
from shoal.kube.errors import Conflict, Forbidden, NotFound

PAGE = 500
_GROUPS = {
    "appwrapper": ("workload.codeflare.dev", "mcad.ibm.com"),
    "queues": ("kueue.x-k8s.io",),
    "ray": ("ray.io", "ray.k8s.io"),
    "clusters": ("kueue.x-k8s.io",),
}
_OURS = {
    "appwrapper": {FINALIZER},
    "queues": {KUEUE_IN_USE},
    "ray": {names.REDIS_FINALIZER, names.IDLE_FINALIZER, names.JOB_FINALIZER, names.SERVICE_FINALIZER},
    "clusters": {HELD},
}


class _FinalizedMetadata(msgspec.Struct):
    name: str
    namespace: str = ""
    finalizers: tuple[str, ...] = ()


class _FinalizedObject(msgspec.Struct):
    metadata: _FinalizedMetadata


async def release(client: Client, parts: Iterable[str]) -> int:
    """Take the finalizers of these parts off; returns from how many objects."""
    chosen = [part for part in parts if part in _OURS]
    ours = frozenset(name for part in chosen for name in _OURS[part])
    groups = {group for part in chosen for group in _GROUPS[part]}
    released = 0
    for definition in DEFINITIONS:
        if definition.group not in groups:
            continue
        version = next(one.name for one in definition.versions if one.storage)
        kind = Kind(definition.group, version, definition.kind, definition.plural, definition.namespaced)
        async for key in _held(client, kind, ours):
            released += await _let_go(client, kind, key, ours)
    return released


async def _held(client: Client, kind: Kind, ours: frozenset[str]) -> AsyncIterator[Key]:
    continue_ = ""
    while True:
        try:
            page = await client.list_raw(kind, limit=PAGE, continue_=continue_, metadata_only=True)
        except (NotFound, Forbidden):
            return
        for raw in page.items or ():
            found = msgspec.json.decode(raw, type=_FinalizedObject).metadata
            if ours.intersection(found.finalizers):
                yield Key(found.namespace, found.name)
        continue_ = page.metadata.continue_
        if not continue_:
            return


async def _let_go(client: Client, kind: Kind, key: Key, ours: frozenset[str]) -> int:
    while True:
        try:
            obj = await client.get(kind, key.name, key.namespace or None)
            kept = [one for one in obj["metadata"].get("finalizers") or () if one not in ours]
            metadata = {"finalizers": kept or None, "resourceVersion": obj["metadata"]["resourceVersion"]}
            await client.patch(kind, key.name, key.namespace or None, {"metadata": metadata})
        except Conflict:
            continue
        except NotFound:
            return 0
        return 1
