"""The nodes that an agent stands for: what they offer, their Node objects, their heartbeat.

Sizes are declared, not measured: a node is bookkeeping for the scheduler. Called by the agent at its start and by
`shoal node add|remove`; never deletes a node that it did not register.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import uuid
from collections.abc import Iterable

from shoal.api.kinds import LEASE, NODE
from shoal.api.labels import HOSTNAME, NODE_POOL, OPERATING_SYSTEM
from shoal.api.meta import Json
from shoal.api.times import micro_text, seconds_text
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.errors import AlreadyExists, KubeError, NotFound
from shoal.kube.writes import would_change
from shoal.local.nodes.agent import declared
from shoal.local.nodes.runtime.identity import boot_id
from shoal.local.shapes import NodeShape

log = logging.getLogger(__name__)

MANAGED = "shoal.dev/agent"
"""Label of the nodes that an embedded agent serves; its value is the agent's name."""
RUNTIME = "shoal.dev/runtime"
POOL = NODE_POOL
LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40
HEARTBEAT = 10.0
_WRITES_PER_SECOND = 20.0
_LONGEST_ROUND = 25.0
"""With the pause after it well below the lease: a controller that judges nodes by their leases never finds one
overdue."""
_MACHINES = uuid.UUID("5a0a1000-0000-4000-8000-000000000000")
"""Nodes of one machine look like machines of their own; the same name always like the same one."""


def node_object(shape: NodeShape, agent: str, address: str, clock: Clock, port: int = 0) -> Json:
    """The Node as a kubelet would register it; with a port, that of the agent that a real API server asks."""
    machine = platform.machine()
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    labels = {
        HOSTNAME: shape.name,
        OPERATING_SYSTEM: "linux",
        "kubernetes.io/arch": architecture,
        MANAGED: agent,
        RUNTIME: shape.runtime,
        **shape.labels,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": shape.name, "labels": labels},
        "spec": {"taints": [dict(taint) for taint in shape.taints]} if shape.taints else {},
        "status": node_status(shape, address, clock, architecture, port),
    }


def node_status(shape: NodeShape, address: str, clock: Clock, architecture: str, port: int = 0) -> Json:
    capacity = shape.offers
    addresses = [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": shape.name}]
    return {
        "capacity": capacity,
        "allocatable": dict(capacity),
        "conditions": node_conditions(clock),
        # an API server that asks at the port would try the host name first, which no name server knows
        "addresses": addresses[:1] if port else addresses,
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "nodeInfo": {
            "machineID": uuid.uuid5(_MACHINES, shape.name).hex,
            "systemUUID": str(uuid.uuid5(_MACHINES, shape.name)),
            "bootID": boot_id(),
            "kernelVersion": os.uname().release,
            "osImage": "this machine",
            "containerRuntimeVersion": f"{shape.runtime}://1",
            "kubeletVersion": "v1.36.0",
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": architecture,
        },
    }


def node_conditions(clock: Clock, stopped: str = "") -> list[Json]:
    """What a kubelet says of its node; `stopped` says why it takes no pods any more."""
    now = seconds_text(clock.now())
    ready = (
        ("Ready", "False", "KubeletNotReady", stopped)
        if stopped
        else ("Ready", "True", "KubeletReady", "the node agent is posting ready status")
    )
    said = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ready,
    ]
    return [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        for kind, status, reason, message in said
    ]


def is_given_up(node: Json) -> bool:
    """Whether the cluster has lost sight of a node: only the controller that judges leases says Unknown."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "Unknown" for one in conditions)


def _keep_transitions(found: Json, body: Json) -> None:
    """A condition that holds as it did before our restart has not changed now."""
    before = {one["type"]: one for one in (found.get("status") or {}).get("conditions") or ()}
    for condition in body["status"]["conditions"]:
        old = before.get(condition["type"])
        if old is not None and old.get("status") == condition["status"] and old.get("lastTransitionTime"):
            condition["lastTransitionTime"] = old["lastTransitionTime"]


class NodeKeeper:
    """Registers nodes and renews their leases."""

    def __init__(self, client: Client, agent: str, address: str, clock: Clock, port: int = 0) -> None:
        self._client = client
        self.port = port
        self.agent = agent
        self.address = address
        self._clock = clock
        self.shapes: dict[str, NodeShape] = {}
        self._stating = asyncio.Lock()

    async def register(self, shapes: Iterable[NodeShape], annotations: dict[str, str] | None = None) -> None:
        """Create the Node objects, or bring those of an earlier start to what is declared now.

        What users changed by hand stays: a cordon, labels and taints that the declaration does not speak of.
        """
        wanted = list(shapes)
        limit = asyncio.Semaphore(32)

        async def one(shape: NodeShape) -> None:
            async with limit:
                await self._register(shape, annotations or {})

        await asyncio.gather(*(one(shape) for shape in wanted))

    async def _register(self, shape: NodeShape, annotations: dict[str, str]) -> None:
        body = node_object(shape, self.agent, self.address, self._clock, self.port)
        body["metadata"]["annotations"] = {**annotations, declared.ANNOTATION: declared.note(shape)}
        status: Json = {"status": body["status"]}
        try:
            found = await self._client.create(NODE, body)
        except AlreadyExists:
            found = await self._client.get(NODE, shape.name)
            change = declared.change(found, body, shape)
            gone = declared.gone_resources(found, shape)
            if would_change(found, change):
                await self._client.patch(NODE, shape.name, None, change)
            _keep_transitions(found, body)
            for part in ("capacity", "allocatable"):
                status["status"][part] |= gone
        if would_change(found, status):
            await self._client.patch(NODE, shape.name, None, status, subresource="status", patch_type="strategic")
        self.shapes[shape.name] = shape

    def adopt(self, shape: NodeShape) -> None:
        """A node that another program created for this agent (an autoscaler, `shoal node add`)."""
        self.shapes[shape.name] = shape

    def forget(self, name: str) -> None:
        self.shapes.pop(name, None)

    async def remove(self, name: str) -> None:
        self.shapes.pop(name, None)
        for kind, namespace in ((NODE, None), (LEASE, LEASE_NAMESPACE)):
            try:
                await self._client.delete(kind, name, namespace)
            except NotFound:
                pass

    async def restate(self, name: str, stopped: str = "") -> None:
        """Say again how a node is: to a cluster that has given it up while this machine slept, or before we go."""
        async with self._stating:  # of two tasks that were told the same, the second finds nothing to say
            try:
                found = await self._client.get(NODE, name)
                if stopped or is_given_up(found):
                    body: Json = {"status": {"conditions": node_conditions(self._clock, stopped)}}
                    _keep_transitions(found, body)
                    await self._client.patch(NODE, name, None, body, subresource="status", patch_type="strategic")
            except KubeError as error:
                log.warning("node %s could not be described: %s", name, error)

    async def beat(self) -> None:
        """Renew every lease, for ever; spread out when the nodes are many."""
        while True:
            names = list(self.shapes)
            for name in names:
                try:
                    await self.renew(name)
                except KubeError as error:
                    log.debug("the lease of node %s was not renewed: %s", name, error)
                if len(names) > 100:
                    await self._clock.sleep(min(1.0 / _WRITES_PER_SECOND, _LONGEST_ROUND / len(names)))
            await self._clock.sleep(HEARTBEAT)

    async def renew(self, name: str) -> None:
        """Say that a node lives."""
        now = micro_text(self._clock.now())
        try:
            await self._client.patch(LEASE, name, LEASE_NAMESPACE, {"spec": {"renewTime": now}})
        except NotFound:
            spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "acquireTime": now, "renewTime": now}
            body = {
                "apiVersion": LEASE.api_version,
                "kind": "Lease",
                "metadata": {"name": name, "namespace": LEASE_NAMESPACE},
                "spec": spec,
            }
            await self._client.create(LEASE, body, LEASE_NAMESPACE)
