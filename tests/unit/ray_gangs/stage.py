"""The Ray operator and the loop that plans, on one in-memory API server: no process runs, pods stay as made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.api.ray_gang import condition_of
from shoal.controllers.appwrapper import AppWrapperController, AppWrapperSettings
from shoal.controllers.planning import PlanningLoop
from shoal.controllers.queues import QueueController, QueueSettings
from shoal.controllers.ray import Operator, RaySettings
from shoal.controllers.ray_gangs import RayGangController
from tests.cluster import Cluster
from tests.conformance.kuberay_doubles import ScriptedDashboard
from tests.unit.ray.builders import container, group, ray_job

ON = RaySettings(gang="on", status_delay=0.0)
OFF = RaySettings(status_delay=0.0)


def operate(cluster: Cluster, settings: RaySettings = ON) -> Operator:
    operator = Operator(cluster.client, settings, dashboard=ScriptedDashboard())
    cluster.start(operator.run_until_cancelled())
    return operator


def plan(cluster: Cluster, **chosen: Any) -> PlanningLoop:
    """AppWrappers, Ray gangs and queues in one loop, as `shoal up` has them; `chosen` is about AppWrappers."""
    wrappers, queues = AppWrapperSettings(trust_unstamped=True, obtain=True, **chosen), QueueSettings()
    planned = msgspec.structs.replace(wrappers.planning, queues=queues.decisions)
    loop = PlanningLoop(cluster.client, planned)
    AppWrapperController(loop, wrappers)
    RayGangController(loop, ON.sidecars)
    QueueController(loop, queues)
    cluster.start(loop.run())
    return loop


def job(name: str = "train", cpu: str = "1", **more: Any) -> Json:
    """Head and worker of so many cores each, and a submitter of half a core."""
    made = ray_job(name, **more)
    spec = made["spec"]["rayClusterSpec"]
    spec["headGroupSpec"]["template"]["spec"]["containers"] = [container("ray-head", cpu=cpu)]
    spec["workerGroupSpecs"] = [group(replicas=1, template=template(cpu))]
    return made


def template(cpu: str) -> Json:
    return {"spec": {"containers": [container("ray-worker", cpu=cpu, memory="1Gi")]}}


def waits(obj: Json) -> bool:
    return condition_of(obj).get("status") == "False"


def starts(obj: Json) -> bool:
    return condition_of(obj).get("status") == "True"


def stage_is(stage: str) -> Callable[[Json], bool]:
    return lambda obj: (obj.get("status") or {}).get("jobDeploymentStatus") == stage


async def clusters_of(cluster: Cluster, name: str) -> list[str]:
    """Names of the RayClusters that this RayJob made."""
    found = await cluster.client.list(kinds.RAY_CLUSTER, "default")
    return [
        one["metadata"]["name"]
        for one in found
        if any(owner["name"] == name for owner in one["metadata"].get("ownerReferences") or ())
    ]


async def until_cluster_of(cluster: Cluster, name: str) -> Json:
    """The RayJob, once its cluster is there."""
    started = await cluster.until(kinds.RAY_JOB, name, starts)
    await cluster.until(kinds.RAY_CLUSTER, started["status"]["rayClusterName"], lambda obj: True)
    return started
