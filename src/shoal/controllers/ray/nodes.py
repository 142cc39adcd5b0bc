"""Workers as Ray knows them: which are idle, and Ray's own drain call for those that are to go.

Asked by the queues through `planning.RayNodes`, by way of the dashboard with the same distrust as for jobs. The drain
call is GCS's own, as `ray drain-node` and Ray's autoscaler make it; a small job in the cluster makes it, so that
neither Ray nor its protocol has to be part of this program. Never raises: asking is a courtesy.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.cluster_token import read_token
from shoal.controllers.ray.job.dashboard import DashboardError, DashboardTarget, HttpDashboard, checked_address
from shoal.controllers.ray.pods import auth, builder
from shoal.controllers.ray.settings import RaySettings
from shoal.kube.client import Client
from shoal.kube.errors import KubeError, NotFound

log = logging.getLogger(__name__)

WHY = "another gang needs its place"
SCRIPT = """\
import sys
import ray
from ray._private import services
from ray.core.generated import autoscaler_pb2
gcs = ray._raylet.GcsClient(address=services.canonicalize_bootstrap_address_or_die(None))
reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
for node in sys.argv[3:]:
    print(node, gcs.drain_node(node, reason, sys.argv[2], int(sys.argv[1])))
"""
"""What `ray drain-node` does, for several nodes at once."""

NODES = "/nodes?view=summary&nocache=1"
"""Without the last part the dashboard answers with what it found when it was last asked, however long ago that was."""
_UNUSED = re.compile(r"0(\.0+)?[A-Za-z]*/", re.ASCII)
_NODE_ID = re.compile(r"[0-9a-f]{16,64}", re.ASCII)


class DashboardNodes:
    def __init__(self, client: Client, settings: RaySettings, dashboard: HttpDashboard) -> None:
        self._client, self._settings, self._dashboard = client, settings, dashboard

    async def idle(self, cluster: Key) -> frozenset[str]:
        found = await self._nodes(cluster)
        return frozenset(pod for pod, _, is_idle in found[1] if is_idle) if found is not None else frozenset()

    async def drain(self, cluster: Key, pods: Sequence[str], until: int) -> bool:
        found = await self._nodes(cluster)
        if found is None:
            return False
        target, known = found
        nodes = sorted(node for pod, node, _ in known if pod in pods)
        if not nodes:
            return False  # not in Ray, or not as far as the dashboard knows yet
        milliseconds = str(until // 1000)
        digest = hashlib.sha256(" ".join((milliseconds, *nodes)).encode()).hexdigest()[:16]
        command = ["python", "-c", SCRIPT, milliseconds, WHY, *nodes]
        body = {"entrypoint": shlex.join(command), "submission_id": f"shoal-drain-{digest}"}
        try:
            await self._dashboard.submit(msgspec.structs.replace(target, body=msgspec.json.encode(body)))
        except DashboardError as error:
            log.warning("RayCluster %s was not told that workers leave: %s", cluster, error)
            return False
        told = [pod for pod, _, _ in known if pod in pods]
        log.info("RayCluster %s is told that %s leave", cluster, ", ".join(sorted(told)))
        return len(told) == len(set(pods))

    async def close(self) -> None:
        await self._dashboard.close()

    async def _nodes(self, key: Key) -> tuple[DashboardTarget, list[tuple[str, str, bool]]] | None:
        """Where to ask, and of each worker that lives: its pod's name, its node's id, whether nothing runs there."""
        try:
            target = await self._target(key)
            if target is None:
                return None
            code, body = await self._dashboard.call("GET", target, NODES)
        except (DashboardError, KubeError) as error:
            log.warning("RayCluster %s does not say how its workers do: %s", key, error)
            return None
        if code != 200:
            log.warning("RayCluster %s answers %d to the question how its workers do", key, code)
            return None
        return target, list(read_nodes(body))

    async def _target(self, key: Key) -> DashboardTarget | None:
        """Made from the cluster itself, and from its head where that is called by its address."""
        try:
            cluster = await self._client.get(kinds.RAY_CLUSTER, key.name, key.namespace)
            host = builder.head_host(cluster, self._settings)
            if self._settings.dashboard_by_pod_address:
                host = await self._head_address(cluster)
        except NotFound:
            return None
        token = await read_token(self._client, cluster) if auth.uses_token(cluster, self._settings) else ""
        address = checked_address(host, view.dashboard_port(cluster))
        service = view.head_service_name(cluster)
        proxy = f"/api/v1/namespaces/{key.namespace}/services/{service}:dashboard/proxy"
        return DashboardTarget(address, "", token, proxy=proxy)

    async def _head_address(self, cluster: Json) -> str:
        named = str(((cluster.get("status") or {}).get("head") or {}).get("podName") or "")
        if not named:
            return ""
        pod = await self._client.get(kinds.POD, named, view.namespace(cluster))
        ours = any(one.get("uid") == view.uid(cluster) for one in pod["metadata"].get("ownerReferences") or ())
        is_head = view.labels(pod).get(names.NODE_TYPE) == names.HEAD
        return str((pod.get("status") or {}).get("podIP") or "") if ours and is_head else ""


def read_nodes(body: bytes) -> Iterator[tuple[str, str, bool]]:
    """Workers that live, out of the dashboard's summary of nodes; what does not look like one is left out."""
    try:
        data = _mapping(_mapping(msgspec.json.decode(body)).get("data"))
    except msgspec.MsgspecError:
        return
    used = _mapping(data.get("nodeLogicalResources"))
    listed = data.get("summary")
    for one in listed if isinstance(listed, list) else ():
        raylet = _mapping(_mapping(one).get("raylet"))
        node, pod = str(raylet.get("nodeId") or ""), str(raylet.get("instanceId") or "")
        if raylet.get("state") != "ALIVE" or raylet.get("isHeadNode") or not pod or not _NODE_ID.fullmatch(node):
            continue
        lines = [line for line in str(used.get(node) or "").splitlines() if line]
        yield pod, node, bool(lines) and all(_UNUSED.match(line) for line in lines)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
