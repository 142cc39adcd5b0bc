"""What `shoal uninstall` does to finalizers: with the controller gone nothing would remove them, and deletions hang.

Only finalizers that Shoal's controllers add, and only on kinds of parts that were installed: those of a KubeRay or a
Kueue that runs beside it stay. An object that is being deleted goes with its last finalizer; all others stay.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress

import msgspec

from shoal.api.appwrapper import FINALIZER
from shoal.api.crds.catalogue import DEFINITIONS
from shoal.api.kind import Key, Kind
from shoal.api.kinds import DEPLOYMENT, LEASE, POD
from shoal.api.kinds import SECRET as SECRET_KIND
from shoal.api.labels import HELD_ELSEWHERE, KUEUE_IN_USE
from shoal.api.meta import Json
from shoal.cli.admission import SECRET
from shoal.cli.install_workload import LABELS, NAME
from shoal.controllers.ray import names
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.errors import Conflict, Forbidden, NotFound
from shoal.kube.lease import Leadership

PAGE = 500
RELEASE = "shoal-release"
"""The Job of the chart that does this before Helm deletes the release."""
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
    "clusters": {HELD_ELSEWHERE},
}


class _FinalizedMetadata(msgspec.Struct):
    name: str
    namespace: str = ""
    finalizers: tuple[str, ...] = ()


class _FinalizedObject(msgspec.Struct):
    metadata: _FinalizedMetadata


async def release(client: Client, parts: Iterable[str], namespaces: tuple[str, ...] = ()) -> int:
    """Take the finalizers of these parts off; returns from how many objects. `namespaces`: of these alone."""
    chosen = [part for part in parts if part in _OURS]
    ours = frozenset(name for part in chosen for name in _OURS[part])
    groups = {group for part in chosen for group in _GROUPS[part]}
    released = 0
    for definition in DEFINITIONS:
        if definition.group not in groups:
            continue
        version = next(one.name for one in definition.versions if one.storage)
        kind = Kind(definition.group, version, definition.kind, definition.plural, definition.namespaced)
        for where in namespaces if namespaces and kind.namespaced else (None,):
            async for key in _held(client, kind, where, ours):
                released += await _let_go(client, kind, key, ours)
    return released


def release_rules() -> list[Json]:
    """What that needs in the controller's own namespace, beyond the controller's rights."""
    return [
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"], "resourceNames": [NAME]},
        {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["patch"], "resourceNames": [NAME]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["delete"], "resourceNames": [NAME]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["delete"], "resourceNames": [SECRET]},
    ]


async def stop(client: Client, namespace: str, parts: Iterable[str], namespaces: tuple[str, ...]) -> int:
    """Before the installation is deleted: end every replica, wait until none can write, and release what they held.

    The lease is taken meanwhile, so that no controller, wherever it runs, adds a finalizer again.
    """
    with suppress(NotFound):
        await client.patch(DEPLOYMENT, NAME, namespace, {"spec": {"replicas": 0}}, subresource="scale")
    await _until_no_pod(client, namespace)
    leadership = Leadership(client, NAME, namespace, f"release_{os.getpid()}")
    async with leadership.held():
        released = await release(client, parts, namespaces)
    await clear(client, namespace)
    return released


async def clear(client: Client, namespace: str) -> None:
    """What replicas have made for themselves."""
    for kind, name in ((SECRET_KIND, SECRET), (LEASE, NAME)):
        with suppress(NotFound):
            await client.delete(kind, name, namespace)


async def _until_no_pod(client: Client, namespace: str) -> None:
    labels = ",".join(f"{name}={value}" for name, value in LABELS.items())
    pods: Cache[Json] = Cache(client, POD, namespace=namespace, label_selector=labels)
    changed = asyncio.Event()
    pods.subscribe(lambda change: changed.set())
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(pods.run())
        await pods.synced.wait()
        while any(_is_alive(pod) for pod in pods.list()):
            changed.clear()
            await changed.wait()
        reading.cancel()


def _is_alive(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


async def _held(client: Client, kind: Kind, namespace: str | None, ours: frozenset[str]) -> AsyncIterator[Key]:
    continue_ = ""
    while True:
        try:
            page = await client.list_raw(kind, namespace, limit=PAGE, continue_=continue_, metadata_only=True)
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
