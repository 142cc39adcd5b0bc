"""Judge `ray-reconcile` cases: what one look at a RayCluster and its Workload makes of both.

The record adopts a Workload that has no owner yet; here every Workload is its job's from the first moment on, so that
is how the stage begins. What the job's own controller says of it is the same as there.
"""

from __future__ import annotations

import asyncio
from typing import Any

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.controllers.queues import QueueSettings
from shoal.controllers.queues.caches import workload_key
from shoal.controllers.queues.jobs.ray import RayClusters
from shoal.controllers.queues.workloads import owner_reference
from tests.conformance.kueue_api import filled
from tests.conformance.kueue_given import Case, compared
from tests.conformance.kueue_stage import Stage
from tests.conformance.kueue_workload import TOLD

OTHERS = {"ResourceFlavor": kinds.RESOURCE_FLAVOR}


def reconcile_differences(given: Case, expect: Case) -> list[str]:
    return asyncio.run(_differences(given, expect))


async def _differences(given: Case, expect: Case) -> list[str]:
    stage = Stage(given["now"], QueueSettings(supply="off"))
    stage.queues.reconciler._pods_left = lambda uid: 0
    for obj in given["objects"]:
        stage.give(OTHERS[obj["_kind"]], obj)
    for obj in given["priorityClasses"]:
        stage.give(kinds.PRIORITY_CLASS, obj)
    kind, cluster = RayClusters(), given["rayCluster"]
    stored = stage.give(kinds.RAY_CLUSTER, cluster)
    key = workload_key(kind, stored)
    called = {one["metadata"]["name"] for one in given["workloads"]}
    for obj in given["workloads"]:
        metadata = {**obj["metadata"], "name": key.name, "ownerReferences": [owner_reference(kind, stored)]}
        spec = {"queueName": cluster["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "priority": 0, **obj["spec"]}
        stage.give(kinds.WORKLOAD, {**obj, "metadata": metadata, "spec": spec})
    stage.begin()
    await _until_still(stage, key)
    found = compared("events", stage.told.events, expect["events"])
    ours = stage.store.all(kinds.RAY_CLUSTER)[0]
    wanted = filled(expect["rayCluster"]["spec"])
    for name in called:
        found += compared("cluster", _renamed(filled(ours["spec"]), key.name, name), wanted)
    made = [_conditions(one) for one in stage.store.all(kinds.WORKLOAD)]
    return found + compared("conditions", made, [_conditions(one) for one in expect["workloads"]])


async def _until_still(stage: Stage, key: Key) -> None:
    """The record stops the job and gives its quota back in one pass; here the second look follows the first write."""
    for _ in range(2):
        for kind in (kinds.RAY_CLUSTER, kinds.WORKLOAD):
            for obj in stage.store.all(kind):
                stage.see(kind, obj)
        await stage.look(key)


def _renamed(value: Any, name: str, wanted: str) -> Any:
    """The Workload under the name that it has in the record."""
    if isinstance(value, dict):
        return {key: _renamed(part, name, wanted) for key, part in value.items()}
    if isinstance(value, list):
        return [_renamed(part, name, wanted) for part in value]
    return wanted if value == name else value


def _conditions(workload: Json) -> list[Any]:
    told = (workload.get("status") or {}).get("conditions") or ()
    return sorted([one.get(name) or "" for name in TOLD] for one in told)
