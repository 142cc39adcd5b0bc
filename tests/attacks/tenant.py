"""A tenant with every right in one namespace, against gangs, queues and quotas that are shared with others."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from shoal.api import gang as marks
from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.cli import cluster as composition
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.queues import QueueSettings
from shoal.kube.errors import ApiError
from shoal.kube.health import HealthServer
from shoal.kube.scraping import ScrapeReview
from shoal.local.scheduler import Scheduler
from tests.attacks.attack import Room, Succeeded
from tests.cluster import Cluster, running
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, needs
from tests.unit.appwrapper.test_faults_races import labelled, plant
from tests.unit.appwrapper.test_rights import as_user, grant
from tests.unit.queues.build import cluster_queue, condition, flavor, job, local_queue, name_of, ray_job, true
from tests.unit.queues.test_leaving import priority_class

SHARED = (("quota.codeflare.dev", "quotasubtrees"), ("shoal.dev", "questions"))
OWN = (
    *(("", name) for name in ("pods", "services", "configmaps", "persistentvolumeclaims", "endpoints")),
    *(("", f"pods/{part}") for part in ("resize", "ephemeralcontainers")),
    ("batch", "jobs"),
    ("ray.io", "rayjobs"),
    ("ray.io", "rayclusters"),
    ("workload.codeflare.dev", "appwrappers"),
    *SHARED,
)


PRIZED = {"kueue.x-k8s.io/priority-class": "prized"}


class TenantWorld:
    """`red` is the tenant's own namespace, `blue` another's. Both share nodes, a queue and a quota tree."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.admin = cluster.client
        self.mallory = as_user(cluster, "mallory")

    async def refused(self, what: str, trying: Any) -> str:
        try:
            await trying
        except ApiError as error:
            if 400 <= error.code < 500:
                return str(error.code)
            raise
        raise Succeeded(what)

    async def bound(self, name: str, namespace: str) -> Json:
        return await self.cluster.until(kinds.POD, name, lambda one: bool(one["spec"].get("nodeName")), namespace)


@asynccontextmanager
async def world() -> AsyncIterator[TenantWorld]:
    async with running() as cluster:
        found = TenantWorld(cluster)
        await cluster.add_node("node-1", cpu="4", memory="64Gi")
        for name in ("red", "blue"):
            await cluster.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            queue = local_queue()
            queue["metadata"]["namespace"] = name
            await cluster.create(kinds.LOCAL_QUEUE, queue)
        for kind, obj in ((kinds.RESOURCE_FLAVOR, flavor()), (kinds.CLUSTER_QUEUE, cluster_queue(quota={"cpu": "0"}))):
            await cluster.create(kind, obj)
        await plant(cluster)
        await grant(cluster, "mallory", "red", *OWN)
        await grant(cluster, "mallory", "default", *SHARED)
        cluster.server.admission.preparers.update(composition.preparers(cluster.client))
        cluster.server.admission.judges.update(composition.judges(cluster.client))
        own = AppWrapperSettings(trust_unstamped=True)
        cluster.start(planned(cluster.client, own, queues=QueueSettings()).run())
        cluster.start(Scheduler(cluster.client).run())
        try:
            yield found
        finally:
            cluster.rules = None  # what mallory leaves is no order to be judged


ROOM = Room("gangs, queues and quotas, as a tenant with every right in one namespace", world)


def pod(name: str, cpu: str, owner: Json | None = None, **annotations: str) -> Json:
    metadata: Json = {"name": name, "annotations": annotations}
    if owner:
        metadata["ownerReferences"] = [{**owner, "controller": True}]
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}
    return {"metadata": metadata, "spec": {"containers": [container], "restartPolicy": "Never"}}


@ROOM.attack("a tenant", "holds up another's gang by pods that carry its UID, with and without an owner")
async def stolen_mark(world: TenantWorld) -> str:
    body = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "train"}}
    made = await world.admin.create(kinds.RAY_CLUSTER, {**body, "spec": ray_job("x")["spec"]["rayClusterSpec"]}, "blue")
    uid = made["metadata"]["uid"]
    gang = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "train", "uid": uid}
    stolen = {marks.GANG_UID: uid, marks.GANG_SIZE: "2"}
    await world.mallory.create(kinds.POD, pod("thief", "64", gang, **stolen), "red")
    await world.mallory.create(kinds.POD, pod("orphan", "64", None, **stolen), "red")
    for name in ("one", "two"):
        await world.admin.create(kinds.POD, pod(name, "1", gang, **stolen), "blue")
    for name in ("one", "two"):
        await world.bound(name, "blue")
    for name in ("one", "two"):
        await world.admin.delete(kinds.POD, name, "blue", grace_seconds=0)
    return "the gang started at once; the thief waits by itself"


@ROOM.attack("a tenant", "runs a labelled job past its queue by an owner that is not there, or in no queue")
async def forged_owner(world: TenantWorld) -> str:
    queued = ray_job("queued")
    queued["metadata"]["namespace"] = "blue"
    theirs = await world.admin.create(kinds.RAY_JOB, queued, "blue")
    owners = [
        {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "queued", "uid": theirs["metadata"]["uid"]},
        {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "gone", "uid": "00000000-0000-0000-0000-000000000000"},
        {"apiVersion": "workload.codeflare.dev/v1beta1", "kind": "AppWrapper", "name": "gone", "uid": "x"},
    ]
    for number, owner in enumerate(owners):
        made = job(f"sneaks-{number}")
        made["metadata"] |= {"namespace": "red", "ownerReferences": [{**owner, "controller": True}]}
        made["spec"]["suspend"] = False
        stored = await world.mallory.create(kinds.JOB, made, "red")
        if not stored["spec"]["suspend"]:
            raise Succeeded(f"it runs, as the child of {owner}")
    return f"suspended: {len(owners)} jobs"


@ROOM.attack("a tenant", "learns the names of others' gangs from a shared quota tree, and by asking")
async def names(world: TenantWorld) -> str:
    for name, namespace in (("confidential", "blue"), ("mine", "red")):
        made = labelled(app_wrapper(name, config_map(name), needs=[needs(1, cpu="500m")]), team="green")
        made["metadata"]["namespace"] = namespace
        await world.admin.create(kinds.APP_WRAPPER, made, namespace)
        await world.cluster.until(kinds.APP_WRAPPER, name, dispatched, namespace)
    await world.cluster.until(
        kinds.QUOTA_SUBTREE, "team-root", lambda one: "'consumerCount': 2" in str(one.get("status"))
    )
    seen = json.dumps(await world.mallory.get(kinds.QUOTA_SUBTREE, "team-root", "default"))
    target = {"kind": "QuotaSubtree", "name": "team-root"}
    body = {"apiVersion": "shoal.dev/v1alpha1", "kind": "Question", "metadata": {"name": "asks"}}
    body["spec"] = {"question": "Consumers", "target": target}
    await world.mallory.create(kinds.QUESTION, body, "default")
    answer = await world.cluster.until(
        kinds.QUESTION, "asks", lambda one: bool((one.get("status") or {}).get("answeredAt"))
    )
    seen += json.dumps(answer["status"])
    if "confidential" in seen:
        raise Succeeded("the name is told")
    return "told: a number, and its own gang"


@ROOM.attack("a tenant", "takes more than its ResourceQuota by growing: pods, Services, claims")
async def growing(world: TenantWorld) -> str:
    for one in await world.admin.list(kinds.POD, "red"):
        await world.admin.delete(kinds.POD, one["metadata"]["name"], "red", grace_seconds=0)
    hard = {"requests.cpu": "1", "services.nodeports": "0", "requests.storage": "1Gi"}
    await world.admin.create(kinds.RESOURCE_QUOTA, {"metadata": {"name": "q"}, "spec": {"hard": hard}}, "red")
    try:
        await world.mallory.create(kinds.POD, pod("grows", "500m"), "red")
        service = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}}
        await world.mallory.create(kinds.SERVICE, service, "red")
        larger = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "64"}}}]}}
        tries = [
            world.mallory.patch(kinds.POD, "grows", "red", larger, patch_type="strategic", subresource="resize"),
            world.mallory.patch(kinds.SERVICE, "s", "red", {"spec": {"type": "NodePort"}}),
            world.mallory.create(kinds.POD, pod("second", "600m"), "red"),
        ]
        return "refused: " + ", ".join([await world.refused("it grew", one) for one in tries])
    finally:
        await world.admin.delete(kinds.RESOURCE_QUOTA, "q", "red")


@ROOM.attack("a tenant", "takes a port of the machine, or another tenant's node port")
async def ports(world: TenantWorld) -> str:
    def service(name: str, number: int) -> Json:
        return {"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": number}]}}

    await world.admin.create(kinds.SERVICE, service("theirs", 30080), "blue")
    tries = [world.mallory.create(kinds.SERVICE, service("mine", number), "red") for number in (22, 6443, 30080)]
    return "refused: " + ", ".join([await world.refused("it has the port", one) for one in tries])


@ROOM.attack("a tenant", "reads the metrics of the controllers, which name every queue")
async def metrics(world: TenantWorld) -> str:
    health = HealthServer()
    health.review = ScrapeReview(world.admin)
    port = await health.start(port=0)
    token = await world.admin.request(
        "POST", "/api/v1/namespaces/red/serviceaccounts/default/token", body=b'{"spec":{}}'
    )
    shown = json.loads(token.body)["status"]["token"]
    try:
        codes = []
        async with aiohttp.ClientSession() as session:
            for authorization in ("", "Bearer x", f"Bearer {shown}", f"bearer  {shown}", f"Basic {shown}"):
                headers = {"Authorization": authorization} if authorization else {}
                async with session.get(f"http://127.0.0.1:{port}/metrics", headers=headers) as answer:
                    codes.append(answer.status)
        if any(code < 400 for code in codes):
            raise Succeeded(f"answered with {codes}")
        return f"refused: {', '.join(map(str, codes))}"
    finally:
        await health.stop()


@ROOM.attack(
    "a tenant", "reaches pods of others, and its own without the right, by every way of streaming and proxying"
)
async def streams(world: TenantWorld) -> str:
    await world.admin.create(kinds.POD, pod("theirs", "1m"), "blue")
    tries = []
    for namespace, name in (("blue", "theirs"), ("red", "grows")):
        base = f"/api/v1/namespaces/{namespace}/pods/{name}"
        for part in ("exec", "attach", "portforward", "log", "proxy", "proxy/x", "binding", "eviction", "status"):
            for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
                tries.append((method, f"{base}/{part}"))
    for method, path in tries:
        await world.refused(
            f"{method} {path}", world.mallory.request(method, path, body=b"{}" if method != "GET" else b"")
        )
    return f"refused: {len(tries)} requests"


@ROOM.attack("a tenant", "writes the stamps, statuses and Workloads that only controllers and admission write")
async def stamps(world: TenantWorld) -> str:
    forged = app_wrapper("forged", config_map("forged"), needs=[needs(1, cpu="1")])
    stamp = '{"user":"admin","groups":["system:masters"]}'
    forged["metadata"] |= {"namespace": "red", "annotations": {marks.CREATED_BY: stamp}}
    stored = await world.mallory.create(kinds.APP_WRAPPER, forged, "red")
    if "masters" in stored["metadata"]["annotations"][marks.CREATED_BY]:
        raise Succeeded("the stamp stands")
    tries: list[tuple[Kind, str]] = [
        (kinds.WORKLOAD, "any"), (kinds.CLUSTER_QUEUE, ""), (kinds.RESOURCE_FLAVOR, ""), (kinds.NODE, "")
    ]  # fmt: skip
    for kind, name in tries:
        namespace = "red" if kind.namespaced else None
        await world.refused(
            f"wrote a {kind.kind}", world.mallory.create(kind, {"metadata": {"name": name or "x"}}, namespace)
        )
    change = {"status": {"state": "Running", "canrun": True}}
    await world.refused(
        "wrote the status",
        world.mallory.patch(kinds.APP_WRAPPER, "forged", "red", change, subresource="status"),
    )
    return "the stamp is the server's; the rest is refused"


@ROOM.attack("a tenant", "learns the UID of another's gang by being preempted for it")
async def preemptor(world: TenantWorld) -> str:
    rule = {"withinClusterQueue": "LowerPriority"}
    await world.admin.create(kinds.CLUSTER_QUEUE, cluster_queue("prized", quota={"cpu": "100m"}, preemption=rule))
    await world.admin.create(kinds.WORKLOAD_PRIORITY_CLASS, priority_class("prized", 100))
    made = []
    for namespace, who, labels in (("red", world.mallory, {}), ("blue", world.admin, PRIZED)):
        queue, gang = local_queue("prized", "prized"), job("preempted", cpu="100m", queue="prized", labels=labels)
        for obj in (queue, gang):
            obj["metadata"]["namespace"] = namespace
        await world.admin.create(kinds.LOCAL_QUEUE, queue, namespace)
        made.append(await who.create(kinds.JOB, gang, namespace))
        seen = "Admitted" if namespace == "red" else "Preempted"
        mine = await world.cluster.until(kinds.WORKLOAD, name_of(made[0]), true(seen), "red")
    theirs = await world.admin.get(kinds.WORKLOAD, name_of(made[1]), "blue")
    shown = json.dumps([mine, *await world.admin.list(kinds.EVENT, "red")])
    for obj in (theirs, made[1]):
        if obj["metadata"]["uid"] in shown:
            raise Succeeded(f"it is shown the UID of {obj['kind']} {obj['metadata']['name']}")
    return condition(mine, "Preempted")["message"]
