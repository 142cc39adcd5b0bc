"""Short lives of AppWrappers, driven by a user who does not know whether the controller is alive.

Each walk ends when the cluster has reached its end state; `end_state` is what is compared with an undisturbed walk.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers import ray
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.kube.client import Client
from tests.cluster import Cluster
from tests.unit.appwrapper.build import (
    app_wrapper,
    config_map,
    dispatched,
    has_state,
    needs,
    pod,
    quota,
    set_pod,
    waits,
)

Walk = Callable[[Cluster], Awaitable[None]]

PREEMPTING = AppWrapperSettings(preemption=True, trust_unstamped=True)
PLAIN = AppWrapperSettings(trust_unstamped=True)


def brief_pod(name: str, **requests: str) -> Json:
    """Ends at once when it is deleted."""
    made = pod(name, **requests)
    made["spec"]["terminationGracePeriodSeconds"] = 0
    return made


async def dispatch(cluster: Cluster) -> None:
    gang = app_wrapper("gang", brief_pod("a", cpu="1"), brief_pod("b", cpu="1"), config_map("settings", rate="1"))
    await cluster.create(kinds.APP_WRAPPER, gang)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("late", brief_pod("c", cpu="3")))
    await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    await cluster.until(kinds.APP_WRAPPER, "late", waits)


async def requeue(cluster: Cluster) -> None:
    """Pods that never run: one requeue, then the budget is used up."""
    again = {"timeInSeconds": 0, "maxNumRequeuings": 1}
    gang = app_wrapper(
        "gang", brief_pod("a", cpu="1"), config_map("b"), schedulingSpec={"minAvailable": 1, "requeuing": again}
    )
    await cluster.create(kinds.APP_WRAPPER, gang)
    await cluster.until(kinds.APP_WRAPPER, "gang", has_state("Deleted"))
    await cluster.until_gone(kinds.POD, "a")
    await cluster.until_gone(kinds.CONFIG_MAP, "b")


async def preempt(cluster: Cluster) -> None:
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("low", brief_pod("low", cpu="3"), config_map("of-low")))
    await cluster.until(kinds.APP_WRAPPER, "low", dispatched)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("high", brief_pod("high", cpu="3"), priority=5))
    await cluster.until(kinds.APP_WRAPPER, "high", dispatched)
    await cluster.until(kinds.APP_WRAPPER, "low", lambda one: waits(one) and has_state("Pending")(one))


async def delete(cluster: Cluster) -> None:
    first = app_wrapper("first", config_map("of-first"), brief_pod("first", cpu="3"))
    await cluster.create(kinds.APP_WRAPPER, first)
    await cluster.until(kinds.APP_WRAPPER, "first", dispatched)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("second", brief_pod("second", cpu="3")))
    await cluster.until(kinds.APP_WRAPPER, "second", waits)
    await cluster.client.delete(kinds.APP_WRAPPER, "first", "default")
    await cluster.until(kinds.APP_WRAPPER, "second", dispatched)
    await cluster.until_gone(kinds.POD, "first")
    await cluster.until_gone(kinds.CONFIG_MAP, "of-first")


async def refuse(cluster: Cluster) -> None:
    """One of three objects is invalid: the others go, and it stays Failed."""
    bad = brief_pod("bad", cpu="1")
    bad["spec"]["restartPolicy"] = "Sometimes"
    gang = app_wrapper("gang", config_map("a"), bad, config_map("b"), needs=[needs(1, cpu="1")])
    await cluster.create(kinds.APP_WRAPPER, gang)
    await cluster.until(kinds.APP_WRAPPER, "gang", has_state("Failed"))
    await cluster.until_gone(kinds.CONFIG_MAP, "a")
    await cluster.until_gone(kinds.CONFIG_MAP, "b")


async def borrow(cluster: Cluster) -> None:
    """A gang that runs on borrowed quota makes way for one within its own, and comes back when that is gone."""
    await cluster.create(kinds.QUOTA_SUBTREE, quota("team", "", ("root", {"cpu": "3", "memory": "1Gi"}, False)))
    blue, green = ("blue", {"cpu": "2", "memory": "1Gi"}, False), ("green", {"cpu": "2", "memory": "1Gi"}, True)
    await cluster.create(kinds.QUOTA_SUBTREE, quota("team", "root", blue, green, ("default", {}, False)))
    for name, cpu, team in (("borrower", "3", "blue"), ("owner", "2", "green")):
        gang = app_wrapper(name, brief_pod(name, cpu=cpu), config_map(f"of-{name}"))
        gang["metadata"]["labels"] = {"team": team}
        await cluster.create(kinds.APP_WRAPPER, gang)
        await cluster.until(kinds.APP_WRAPPER, name, dispatched)
    await cluster.until(kinds.APP_WRAPPER, "borrower", lambda one: waits(one) and has_state("Pending")(one))
    await cluster.until(kinds.QUOTA_SUBTREE, "team-root", lambda one: _consumers(one) == 1 and not _borrows(one))
    await cluster.client.delete(kinds.APP_WRAPPER, "owner", "default")
    await cluster.until(kinds.APP_WRAPPER, "borrower", dispatched)
    await cluster.until_gone(kinds.POD, "owner")
    await cluster.until(kinds.QUOTA_SUBTREE, "team-root", lambda one: _consumers(one) == 1 and _borrows(one))
    await cluster.until(kinds.QUOTA_SUBTREE, "team-top", lambda one: "'cpu': '3'" in str(one.get("status")))


def _consumers(tree: Json) -> int:
    """How many use it as it was told last: that follows the start and the end of gangs at a distance."""
    return sum(child.get("consumerCount", 0) for child in (tree.get("status") or {}).get("children") or ())


def _borrows(tree: Json) -> bool:
    return any(child.get("borrowed") for child in (tree.get("status") or {}).get("children") or ())


async def expire(cluster: Cluster) -> None:
    """Its run time is used up: Failed, and nothing of it stays; the next one starts."""
    limited = {"dispatchDuration": {"limit": 1}}
    gang = app_wrapper("gang", brief_pod("a", cpu="3"), config_map("b"), schedulingSpec=limited)
    await cluster.create(kinds.APP_WRAPPER, gang)
    await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("next", brief_pod("next", cpu="3")))
    await cluster.until(kinds.APP_WRAPPER, "gang", has_state("Failed"))
    await cluster.until_gone(kinds.CONFIG_MAP, "b")
    await cluster.until(kinds.APP_WRAPPER, "next", dispatched)


async def complete(cluster: Cluster) -> None:
    """Its pod succeeds: Completed, its objects stay to be read, its room is free."""
    gang = app_wrapper("gang", brief_pod("a", cpu="3"), config_map("b"))
    gang["spec"]["resources"]["GenericItems"][0]["completionstatus"] = "Complete"
    await cluster.create(kinds.APP_WRAPPER, gang)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("next", brief_pod("next", cpu="3")))
    await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    await cluster.until(kinds.APP_WRAPPER, "next", waits)
    await set_pod(cluster, "a", "Running")
    await set_pod(cluster, "a", "Succeeded")
    await cluster.until(kinds.APP_WRAPPER, "gang", has_state("Completed"))
    await cluster.until(kinds.APP_WRAPPER, "next", dispatched)


async def suspend(cluster: Cluster) -> None:
    """The other dialect: started, suspended, resumed, deleted."""
    kind = kinds.APP_WRAPPER_V1BETA2
    components = [{"template": brief_pod("a", cpu="1")}, {"template": config_map("b")}]
    metadata = {"name": "gang", "namespace": "default"}
    made = {"apiVersion": kind.api_version, "kind": "AppWrapper", "metadata": metadata}
    await cluster.create(kind, {**made, "spec": {"components": components}})
    await cluster.until(kind, "gang", has_phase("Running"))
    await cluster.client.patch(kind, "gang", "default", {"spec": {"suspend": True}})
    await cluster.until(kind, "gang", has_phase("Suspended"))
    assert "b" not in await cluster.names(kinds.CONFIG_MAP)
    await cluster.client.patch(kind, "gang", "default", {"spec": {"suspend": False}})
    await cluster.until(kind, "gang", has_phase("Running"))
    await cluster.client.delete(kind, "gang", "default")
    await cluster.until_gone(kind, "gang")
    await cluster.until_gone(kinds.CONFIG_MAP, "b")


async def group(cluster: Cluster) -> None:
    """A wrapped PodGroup and its pods: dispatched, preempted, requeued, dispatched again, deleted."""
    wrapped = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "both"}}
    pods = [brief_pod(name, cpu="1500m") for name in ("a", "b")]
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("low", {**wrapped, "spec": {"minMember": 2}}, *pods))
    await cluster.until(kinds.APP_WRAPPER, "low", dispatched)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("high", brief_pod("high", cpu="3"), priority=5))
    await cluster.until(kinds.APP_WRAPPER, "high", dispatched)
    assert await cluster.names(POD_GROUP) == []
    await cluster.client.delete(kinds.APP_WRAPPER, "high", "default")
    await cluster.until(kinds.APP_WRAPPER, "low", dispatched)
    assert await cluster.names(POD_GROUP) == ["both"]
    await cluster.client.delete(kinds.APP_WRAPPER, "low", "default")
    await cluster.until_gone(POD_GROUP, "both")


POD_GROUP = Kind("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups")


async def ray_clusters(cluster: Cluster) -> None:
    """RayClusters with their operator beside: dispatched, preempted, requeued, dispatched again, deleted."""
    cluster.start(ray.run(Client(cluster.server.transport(), manager="operator")))

    def around(name: str, **spec: int) -> Json:
        template = {"spec": brief_pod("x", cpu="3")["spec"]}
        head = {"rayStartParams": {}, "template": template}
        made = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name}}
        return app_wrapper(name, {**made, "spec": {"headGroupSpec": head}}, **spec)

    async def heads(of: str) -> None:
        chosen = f"ray.io/cluster={of}"
        async for event in cluster.client.watch(kinds.POD, "default", label_selector=chosen, send_initial_events=True):
            if event.type == "ADDED":
                return

    await cluster.create(kinds.APP_WRAPPER, around("low"))
    await cluster.until(kinds.APP_WRAPPER, "low", dispatched)
    await heads("low")
    await cluster.create(kinds.APP_WRAPPER, around("high", priority=5))
    await cluster.until(kinds.APP_WRAPPER, "high", dispatched)
    await heads("high")
    assert await cluster.names(kinds.RAY_CLUSTER) == ["high"]
    await cluster.client.delete(kinds.APP_WRAPPER, "high", "default")
    await cluster.until(kinds.APP_WRAPPER, "low", dispatched)
    await cluster.until_gone(kinds.RAY_CLUSTER, "high")
    await heads("low")


def has_phase(phase: str) -> Callable[[Json], bool]:
    return lambda wrapper: bool(wrapper.get("status", {}).get("phase") == phase)


WALKS: dict[str, tuple[Walk, AppWrapperSettings]] = {
    "dispatch": (dispatch, PLAIN),
    "requeue": (requeue, PLAIN),
    "preempt": (preempt, PREEMPTING),
    "delete": (delete, PLAIN),
    "refuse": (refuse, PLAIN),
    "borrow": (borrow, PREEMPTING),
    "expire": (expire, PLAIN),
    "complete": (complete, PLAIN),
    "suspend": (suspend, PLAIN),
    "group": (group, PREEMPTING),
    "ray": (ray_clusters, PREEMPTING),
}


async def end_state(cluster: Cluster) -> Json:
    """Everything that users see, without times and UIDs."""
    found: Json = {}
    for kind in (kinds.APP_WRAPPER, kinds.POD, kinds.CONFIG_MAP, kinds.QUOTA_SUBTREE, kinds.RAY_CLUSTER):
        for obj in await cluster.client.list(kind, "default"):
            if obj["metadata"]["name"] != "kube-root-ca.crt":
                found[f"{kind.kind}/{_called(obj)}"] = _seen(kind.kind, obj)
    return found


def _called(obj: Json) -> str:
    """Its name; what an operator made is called by its owner, because such names end in letters of a UID."""
    owners = obj["metadata"].get("ownerReferences") or ()
    made_by = [one for one in owners if one["kind"] == "RayCluster"]
    return f"of {made_by[0]['name']}" if made_by else str(obj["metadata"]["name"])


def _seen(kind: str, obj: Json) -> Json:
    metadata, status = obj["metadata"], obj.get("status") or {}
    owners = [one["name"] for one in metadata.get("ownerReferences") or ()]
    if kind == "QuotaSubtree":
        return status
    if kind != "AppWrapper":
        return {"labels": metadata.get("labels"), "owners": owners, "deleted": "deletionTimestamp" in metadata}
    admission = msgspec.json.decode(status.get("admission") or "{}")
    kept = ("state", "queuejobstate", "canrun", "sender", "numberOfRequeueings", "requeueingTimeInSeconds", "message")
    return {
        **{name: status.get(name) for name in kept},
        "epoch": admission.get("epoch"),
        "conditions": [
            (one["type"], one["status"], one.get("reason"), one.get("message"))
            for one in status.get("conditions") or ()
        ],
    }
