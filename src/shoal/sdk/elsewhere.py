"""A gang that runs in another cluster, read through this one: its pods, its logs and what was told about them.

The API server of a hub that `shoal up` serves answers below `/clusters/NAME` for its members, under the caller's rights
at the hub; any other API server below an aggregated API of Shoal's, where that is installed. Else the caller is told
how to read there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from shoal.api import kinds, members_api
from shoal.api.appwrapper_rules import wrapped_templates
from shoal.api.kind import Kind
from shoal.api.labels import KUEUE_MULTIKUEUE
from shoal.api.meta import Json
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden, NotFound
from shoal.kube.transport import Request, Response, Stream, Transport
from shoal.sdk import gangs, queued


def own_path(cluster: str) -> str:
    """Below it a hub of `shoal up` answers for this cluster."""
    return f"/clusters/{cluster}"


def aggregated_path(cluster: str) -> str:
    """Below it any other hub does."""
    return f"/apis/{members_api.GROUP}/{members_api.VERSION}/{members_api.PLURAL}/{cluster}/{members_api.PROXY}"


class ClusterTransport:
    """Requests about one other cluster, below a path of this one's."""

    def __init__(self, inner: Transport, cluster: str, prefix: str = "") -> None:
        self._inner, self._prefix = inner, prefix or own_path(cluster)

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        return await self._inner.send(self._there(request), timeout=timeout)

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        async with self._inner.stream(self._there(request), idle_timeout=idle_timeout) as stream:
            yield stream

    async def close(self) -> None:
        return None

    def _there(self, request: Request) -> Request:
        return msgspec.structs.replace(request, path=self._prefix + request.path)


async def cluster_of(client: Client, kind: Kind, obj: Json) -> str:
    """The other cluster that this gang was given to; empty for one that waits, or runs here."""
    if gangs.is_wrapper(kind) and (found := queued.given_cluster(obj)):
        return found
    if (obj.get("spec") or {}).get("managedBy") != KUEUE_MULTIKUEUE:
        return ""
    try:
        known = queued.by_owner(await queued.workloads(client, obj["metadata"]["namespace"]))
    except (NotFound, Forbidden):
        return ""
    return queued.cluster_of(known.get(obj["metadata"]["uid"]))


class GangReading(msgspec.Struct, frozen=True):
    """Through which client a gang's pods are read, and as which object: its copy, where another cluster runs it."""

    client: Client
    kind: Kind
    obj: Json
    cluster: str = ""
    path: str = ""
    """Below which this cluster's API server answers for that one."""


async def reading(client: Client, kind: Kind, obj: Json) -> GangReading:
    """Where its cluster has no copy any more, as it is here. Raises ShoalError where this cluster cannot read there."""
    cluster = await cluster_of(client, kind, obj)
    if not cluster:
        return GangReading(client, kind, obj)
    path = await _path(client, cluster)
    if not path:
        raise ShoalError(
            f"{kind.kind} {obj['metadata']['name']} runs in cluster {cluster}, and this API server cannot read there: "
            "a hub of `shoal up` can, and one of `shoal install --visibility`; ask that cluster itself, with its own "
            "kubeconfig"
        )
    there = Client(ClusterTransport(client.transport, cluster, path), manager=client.manager, timeout=client.timeout)
    candidates = [(kind, str(obj["metadata"]["name"])), *(_wrapped(obj) if gangs.is_wrapper(kind) else ())]
    for one, name in candidates:
        try:
            found: Json = await there.get(one, name, obj["metadata"]["namespace"])
        except NotFound:
            continue
        return GangReading(there, one, found, cluster, path)
    return GangReading(client, kind, obj)


async def _path(client: Client, cluster: str) -> str:
    """Below which this API server answers for that cluster; empty where it does not, or not for this user."""
    for path in (own_path(cluster), aggregated_path(cluster)):
        answer = await client.transport.send(Request(method="GET", path=f"{path}/api"), timeout=client.timeout)
        if answer.status not in (403, 404):
            return path
    return ""


def _wrapped(wrapper: Json) -> list[tuple[Kind, str]]:
    """What a cluster without Shoal was given instead of the AppWrapper."""
    made = []
    for _, template in wrapped_templates(wrapper):
        for kind in (kinds.RAY_JOB, kinds.RAY_CLUSTER, kinds.JOB, kinds.POD):
            if template.get("kind") == kind.kind and template.get("apiVersion") == kind.api_version:
                made.append((kind, str((template.get("metadata") or {}).get("name") or "")))
    return made
