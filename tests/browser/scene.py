"""A cluster to look at: 200 nodes, 500 gangs, queues in a tree of cohorts, stored as their controllers would have.

Everything is put into an in-memory server in one go, with times before `now`, so that a picture tells a day's story.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.labels import RAY_CLUSTER_NAME, RAY_NODE_TYPE
from shoal.api.meta import Json
from shoal.api.times import micro_text
from shoal.kube.client import Client
from shoal.local.apiserver import Server

NAMESPACES = ("vision", "language", "recsys", "robotics")
JOBS = ("train", "tune", "eval", "embed", "finetune", "sweep", "distill", "ingest")
NODES, GANGS, GPUS_OF_ONE = 200, 500, 8
QUOTA = {"vision": 560, "language": 480, "recsys": 240, "robotics": 160}
USED = {"vision": 620, "language": 300, "recsys": 240, "robotics": 90}


class Scene:
    def __init__(self, server: Server, nodes: int = NODES, gangs: int = GANGS, seed: int = 7) -> None:
        self.server = server
        self.random = Random(seed)
        self.now = datetime.now(UTC)
        self.nodes = nodes
        self.gangs = gangs

    async def put(self, kind: Kind, name: str, namespace: str = "", created: str = "", **parts: Any) -> str:
        """One object as it is; returns its UID."""
        storage = self.server.storage
        collection, revision = storage.collection(kind.resource), storage.next_revision()
        uid, metadata = f"{kind.plural}-{namespace}-{name}", parts.pop("metadata", {})
        written = {"name": name, "uid": uid, "resourceVersion": str(revision), "generation": 1, **metadata}
        written |= {"creationTimestamp": created or self.ago(1000)} | ({"namespace": namespace} if namespace else {})
        whole = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": written, **parts}
        await storage.put(collection, namespace, name, revision, msgspec.json.encode(whole))
        return uid

    def ago(self, minutes: float) -> str:
        return (self.now - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")

    async def build(self) -> Scene:
        for name in NAMESPACES:
            await self.put(kinds.NAMESPACE, name, spec={"finalizers": []}, status={"phase": "Active"})
        await self._nodes()
        await self._queues()
        for index in range(self.gangs):
            await self._gang(index)
        return self

    async def answer(self, client: Client) -> None:
        """Questions about what waits, as a controller that knows nothing but ages would answer them."""
        async for event in client.watch(kinds.QUESTION, send_initial_events=True):
            asked = msgspec.json.decode(event.object)
            if event.type != "ADDED" or asked["spec"].get("question") != "Why":
                continue
            namespace, name = asked["metadata"]["namespace"], asked["spec"]["target"]["name"]
            waiting = [one for one in await client.list(kinds.RAY_JOB, namespace) if one["spec"].get("suspend")]
            line = sorted(waiting, key=lambda one: one["metadata"]["creationTimestamp"])
            position = 1 + [one["metadata"]["name"] for one in line].index(name)
            status = {
                "answeredAt": micro_text(int(self.now.timestamp() * 1e6)), "reason": "Quota", "clusterQueue": namespace,
                "position": position, "queueLength": len(line),
                "localPosition": position, "localQueueLength": len(line),
                "message": f"{4 + position % 3 * 4} more nvidia.com/gpu needed of flavor h100",
            }  # fmt: skip
            where = asked["metadata"]["name"]
            await client.patch(kinds.QUESTION, where, namespace, {"status": status}, subresource="status")

    # --- nodes and queues

    async def _nodes(self) -> None:
        for index in range(self.nodes):
            gpu = index % 5 != 4
            pool = "h100" if gpu else "cpu"
            amounts = {"cpu": "96", "memory": "768Gi", "pods": "110"} | ({"nvidia.com/gpu": "8"} if gpu else {})
            ready = [{"type": "Ready", "status": "False" if index == 41 else "True"}]
            await self.put(
                kinds.NODE, f"{pool}-{index:03}", metadata={"labels": {"shoal.dev/pool": pool}}, spec={},
                status={"allocatable": amounts, "capacity": amounts, "conditions": ready},
            )  # fmt: skip

    async def _queues(self) -> None:
        await self.put(kinds.COHORT, "research", spec={"parentName": "company"})
        await self.put(kinds.COHORT, "company", spec={})
        for name in NAMESPACES:
            quotas = {
                "nvidia.com/gpu": str(QUOTA[name]),
                "cpu": str(QUOTA[name] * 10),
                "memory": f"{QUOTA[name] * 64}Gi",
            }
            used = {"nvidia.com/gpu": USED[name], "cpu": USED[name] * 9, "memory": f"{USED[name] * 52}Gi"}
            over = {"nvidia.com/gpu": max(0, USED[name] - QUOTA[name])}
            nominal = [{"name": key, "nominalQuota": value} for key, value in quotas.items()]
            group = {"coveredResources": list(quotas), "flavors": [{"name": "h100", "resources": nominal}]}
            counts = {"pendingWorkloads": 21, "admittedWorkloads": 60}
            active = {"conditions": [{"type": "Active", "status": "True", "reason": "Ready"}]}
            reserved = [
                {"name": key, "total": str(value), "borrowed": str(over.get(key, 0))} for key, value in used.items()
            ]
            cohort = "research" if name in ("vision", "language") else "company"
            await self.put(
                kinds.CLUSTER_QUEUE, name, spec={"cohortName": cohort, "resourceGroups": [group]},
                status={"flavorsReservation": [{"name": "h100", "resources": reserved}], **counts, **active},
            )  # fmt: skip
            await self.put(kinds.LOCAL_QUEUE, "main", name, spec={"clusterQueue": name}, status={**counts, **active})

    # --- gangs

    async def _gang(self, index: int) -> None:
        namespace = NAMESPACES[index % len(NAMESPACES)]
        name = f"{JOBS[(index // 4) % len(JOBS)]}-{index:03}"
        share = self.random.random()
        stage = "Running" if share < 0.45 else "Queued" if share < 0.62 else "Failed" if share < 0.68 else "Complete"
        age = self.random.uniform(20, 1300) if stage != "Queued" else self.random.uniform(1, 240)
        waited = min(age * 0.9, self.random.expovariate(1 / 25))
        started = age - waited
        ended = started * self.random.uniform(0.05, 0.8)
        uid = await self._job(namespace, name, stage, age, started, ended)
        await self._workload(namespace, name, uid, stage, age, started)
        if stage == "Running":
            await self._pods(namespace, name, uid, index, started)

    async def _job(self, namespace: str, name: str, stage: str, age: float, started: float, ended: float) -> str:
        status: Json = {"jobDeploymentStatus": "Suspended"}
        if stage != "Queued":
            status = {"rayClusterName": name, "startTime": self.ago(started)}
            status |= {"Running": {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}}.get(stage, {})
        if stage == "Complete":
            status |= {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED", "endTime": self.ago(ended)}
        if stage == "Failed":
            words = "Job entrypoint command failed with exit code 1"
            status |= {
                "jobDeploymentStatus": "Failed",
                "jobStatus": "FAILED",
                "endTime": self.ago(ended),
                "message": words,
            }
        labels = {"kueue.x-k8s.io/queue-name": "main"}
        spec = {
            "entrypoint": f"python {name.partition('-')[0]}.py",
            "suspend": stage == "Queued",
            "rayClusterSpec": {"rayVersion": "2.60.0"},
        }
        return await self.put(
            kinds.RAY_JOB, name, namespace, self.ago(age), metadata={"labels": labels}, spec=spec, status=status
        )

    async def _workload(self, namespace: str, name: str, uid: str, stage: str, age: float, started: float) -> None:
        owner = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": name, "uid": uid, "controller": True}
        said = (
            "couldn't assign flavors to pod set workers: insufficient unused quota for nvidia.com/gpu in flavor h100, "
            f"{2 + len(name) % 4 * 4} more needed"
        )
        refused = {"status": "False", "reason": "Pending", "message": said, "lastTransitionTime": self.ago(age)}
        conditions: list[Json] = [{"type": "QuotaReserved", **refused}]
        if stage != "Queued":
            held = {
                "status": "True",
                "reason": "Admitted",
                "message": "admitted",
                "lastTransitionTime": self.ago(started),
            }
            conditions = [{"type": "QuotaReserved", **held}, {"type": "Admitted", **held}]
        await self.put(
            kinds.WORKLOAD, f"rayjob-{name}", namespace, self.ago(age), metadata={"ownerReferences": [owner]},
            spec={"queueName": "main", "active": True, "podSets": []}, status={"conditions": conditions},
        )  # fmt: skip

    async def _pods(self, namespace: str, name: str, job: str, index: int, started: float) -> None:
        owner = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": name, "uid": job, "controller": True}
        cluster = await self.put(
            kinds.RAY_CLUSTER, name, namespace, self.ago(started), metadata={"ownerReferences": [owner]}, spec={},
            status={"state": "ready", "head": {"podIP": "10.0.0.1"}},
        )  # fmt: skip
        for role, node, amounts in self._placed(index):
            pod = f"{name}-{role}-{self.random.randrange(16**5):05x}"
            owned = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": name, "uid": cluster, "controller": True}
            labels = {RAY_CLUSTER_NAME: name, RAY_NODE_TYPE: role}
            container = {"name": f"ray-{role}", "image": "rayproject/ray", "resources": {"requests": amounts}}
            state = {
                "name": f"ray-{role}",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": self.ago(started)}},
            }
            await self.put(
                kinds.POD, pod, namespace, self.ago(started), metadata={"labels": labels, "ownerReferences": [owned]},
                spec={"nodeName": node, "containers": [container]},
                status={"phase": "Running", "containerStatuses": [state]},
            )  # fmt: skip

    def _placed(self, index: int) -> Iterator[tuple[str, str, dict[str, str]]]:
        """The head on a node without GPUs, workers on those that have them."""
        yield "head", f"cpu-{(index * 5 + 4) % self.nodes // 5 * 5 + 4:03}", {"cpu": "4", "memory": "16Gi"}
        for worker in range(1 + index % 2):
            at = (index * 3 + worker * 7) % self.nodes
            at -= at % 5 == 4
            yield "worker", f"h100-{at:03}", {"cpu": "24", "memory": "180Gi", "nvidia.com/gpu": str((2, 4)[index % 2])}
