"""The status of a RayCluster, from what is observed. Pure: called once at the end of every pass.

`state` keeps the three values that existing clients know and, once ready, stays so until a suspension. What is true
right now stands in the conditions; a condition's transition time changes only with its status.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from shoal.api.labels import KUEUE_ELASTIC_JOB
from shoal.api.meta import Json
from shoal.api.ray_gang import ADMITTED
from shoal.api.times import seconds_text
from shoal.controllers.ray import names, services, view
from shoal.controllers.ray.cluster import counts, upgrade
from shoal.controllers.ray.pods import fault_tolerance, observed

HEAD_READY = "HeadPodReady"
PROVISIONED = "RayClusterProvisioned"
REPLICA_FAILURE = "ReplicaFailure"
SUSPENDING = "RayClusterSuspending"
SUSPENDED = "RayClusterSuspended"
VALID = "Valid"
DRIFT = "SpecDrift"
DEGRADED = "Degraded"

TEMPLATE_HASH = "shoal.dev/template-hash"
"""On every Ray pod: the hash of the group it was built from. Shows drift; never causes anything by itself."""


BELONGINGS = "FailedCreateBelongings"


class Failure(msgspec.Struct, frozen=True):
    """Why the last pass could not do its work: a reason for the condition and the server's words."""

    reason: str
    message: str

    @property
    def about_pods(self) -> bool:
        """Only these make a `ReplicaFailure`, as in KubeRay; what lacks besides pods is told as `Degraded`."""
        return self.reason != BELONGINGS


def condition_status(thing: Json, kind: str) -> str:
    """`True`, `False`, `Unknown`, or empty when the condition is absent."""
    for condition in (thing.get("status") or {}).get("conditions") or []:
        if condition.get("type") == kind:
            return str(condition.get("status") or "")
    return ""


def compute(
    cluster: Json, pods: list[Json], head_service: Json | None, failure: Failure | None, degraded: str, now: int
) -> Json:
    """The whole new status. `degraded` is the sentence for that condition, empty when all is well."""
    old = cluster.get("status") or {}
    heads = [pod for pod in pods if view.labels(pod).get(names.NODE_TYPE) == names.HEAD]
    workers = [pod for pod in pods if view.labels(pod).get(names.NODE_TYPE) == names.WORKER]
    amounts = counts.desired_resources(cluster)
    wanted = counts.desired_workers(cluster)
    whole = failure is None and len(heads) == 1 and len(workers) == wanted
    complete = whole and _all_ready(_awaited(cluster, pods))
    status: Json = {
        **old,
        "desiredWorkerReplicas": wanted,
        "minWorkerReplicas": counts.min_workers(cluster),
        "maxWorkerReplicas": counts.max_workers(cluster),
        "readyWorkerReplicas": sum(map(observed.is_ready, workers)),
        "availableWorkerReplicas": sum(map(observed.is_running, workers)),
        "desiredCPU": counts.total_of(amounts, "cpu"),
        "desiredMemory": counts.total_of(amounts, "memory"),
        "desiredGPU": counts.total_of(amounts, "gpu"),
        "desiredTPU": counts.total_of(amounts, "tpu"),
        "head": _head_info(cluster, heads, head_service),
        "endpoints": services.endpoints(head_service) if head_service else {},
        "workerGroups": [_group_counts(group, workers) for group in view.groups(cluster)],
        "observedGeneration": view.generation(cluster),
        "reason": failure.message if failure else "",
    }
    provisioned = condition_status(cluster, PROVISIONED) == "True" or complete
    conditions = _Conditions(old.get("conditions") or [], view.generation(cluster), now)
    conditions.put(HEAD_READY, *_head_ready(heads))
    _suspension(conditions, cluster, pods)
    if conditions.status(SUSPENDED) == "True":
        provisioned = False
        conditions.drop(ADMITTED)  # once it is resumed it asks for room again
    if provisioned:
        conditions.put(PROVISIONED, "True", "AllPodRunningAndReadyFirstTime", "all Ray pods are running and ready")
    else:
        told = failure.message if failure and not failure.about_pods else _progress(workers, wanted, heads)
        conditions.put(PROVISIONED, "False", "RayClusterPodsProvisioning", told)
    refused = failure if failure and failure.about_pods else None
    conditions.put_or_drop(REPLICA_FAILURE, refused.reason if refused else "", refused.message if refused else "")
    drifted = drifted_groups(cluster, pods)
    told = f"running pods differ from the spec in: {', '.join(drifted)}; {_cure(cluster, drifted)}"
    conditions.put_or_drop(DRIFT, "PodsDifferFromSpec" if drifted else "", told)
    if failure and not failure.about_pods:
        conditions.put(DEGRADED, "True", failure.reason, failure.message)
    else:
        conditions.put_or_drop(DEGRADED, "PodsMissing" if degraded else "", degraded)
    if conditions.status(VALID):
        conditions.put(VALID, "True", "Valid", "the spec is valid")
    status["conditions"] = conditions.all()
    _set_state(status, old, _state(cluster, old, pods, complete, conditions), now)
    return status


def invalid(cluster: Json, reason: str, problems: list[str], now: int) -> Json:
    """The status of a cluster that cannot be built: nothing but why."""
    old = cluster.get("status") or {}
    conditions = _Conditions(old.get("conditions") or [], view.generation(cluster), now)
    conditions.put(VALID, "False", reason, "; ".join(problems)[:32000])
    return {
        **old,
        "conditions": conditions.all(),
        "reason": "; ".join(problems)[:1024],
        "observedGeneration": view.generation(cluster),
    }


def starts_suspending(cluster: Json) -> bool:
    """Suspension was asked for and has not begun."""
    return view.suspended(cluster) and not any(
        condition_status(cluster, kind) == "True" for kind in (SUSPENDING, SUSPENDED)
    )


def drifted_groups(cluster: Json, pods: list[Json]) -> list[str]:
    expected = {view.group_name(group): group_hash(group) for group in view.groups(cluster)}
    expected[names.HEAD_GROUP] = group_hash(view.head(cluster))
    found = set()
    for pod in pods:
        group = view.labels(pod).get(names.GROUP, "")
        recorded = view.annotations_of(pod).get(TEMPLATE_HASH)
        if recorded and recorded != expected.get(group) and not view.deleting(pod):
            found.add(group)
    return sorted(found)


def _cure(cluster: Json, drifted: list[str]) -> str:
    if (view.spec(cluster).get("upgradeStrategy") or {}).get("type") != "Rolling":
        return "delete them, or use upgradeStrategy Recreate or Rolling"
    if drifted == [names.HEAD_GROUP] and not fault_tolerance.enabled(cluster):
        return "the head is kept, for its state would go with it; delete it, or use gcsFaultToleranceOptions"
    return "they are replaced one after the other"


def group_hash(group: Json) -> str:
    """What a running pod of the group depends on."""
    return _group_hash(msgspec.json.encode(group))


@lru_cache(1024)
def _group_hash(group: bytes) -> str:
    """Asked for in every pass, and many clusters have groups alike."""
    return upgrade.spec_hash({"spec": {"headGroupSpec": msgspec.json.decode(group)}})[:16]


def significant(old: Json, new: Json) -> bool:
    """True for a change that a user may be waiting for; counts on the way up may wait a moment and be merged."""
    if not was_told(old):
        return _is_more_than_a_start(new)
    watched = (PROVISIONED, SUSPENDING, SUSPENDED, REPLICA_FAILURE, DEGRADED, VALID)
    before = {one["type"]: one["status"] for one in old.get("conditions") or [] if one.get("type") in watched}
    after = {one["type"]: one["status"] for one in new.get("conditions") or [] if one.get("type") in watched}
    return (
        before != after
        or (old.get("state") or "") != (new.get("state") or "")
        or old.get("desiredWorkerReplicas") != new.get("desiredWorkerReplicas")
    )


def was_told(status: Json) -> bool:
    """Has the operator written a status? The condition that lets a cluster start is not its own."""
    return any(one.get("type") != ADMITTED for one in status.get("conditions") or ())


def _is_more_than_a_start(first: Json) -> bool:
    """Of a first status: pods that were asked for and are not up yet can be told in a moment, often with their end."""
    expected = {PROVISIONED: "False", SUSPENDING: "False", SUSPENDED: "False"}
    told = {one["type"]: one["status"] for one in first["conditions"] if one["type"] not in (HEAD_READY, ADMITTED)}
    return told != expected or bool(first.get("state"))


def same(old: Json, new: Json) -> bool:
    """Equal but for the time of writing, and for texts that are empty and so not stored."""
    return view.stored_part({**old, "lastUpdateTime": ""}) == view.stored_part({**new, "lastUpdateTime": ""})


class _Conditions:
    """Conditions by type; those of other writers stay as they are."""

    def __init__(self, held: list[Json], generation: int, now: int) -> None:
        self._held = {str(condition.get("type")): dict(condition) for condition in held}
        self._generation = generation
        self._now = seconds_text(now)

    def status(self, kind: str) -> str:
        return str((self._held.get(kind) or {}).get("status") or "")

    def put(self, kind: str, status: str, reason: str, message: str = "") -> None:
        old = self._held.get(kind) or {}
        moved = old.get("lastTransitionTime") if old.get("status") == status else None
        self._held[kind] = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": moved or self._now,
        }

    def put_or_drop(self, kind: str, reason: str, message: str) -> None:
        """A condition that is only there while it is true."""
        if reason:
            self.put(kind, "True", reason, message)
        else:
            self.drop(kind)

    def drop(self, kind: str) -> None:
        self._held.pop(kind, None)

    def all(self) -> list[Json]:
        return list(self._held.values())


def _awaited(cluster: Json, pods: list[Json]) -> list[Json]:
    """Pods without which the cluster is not up. Workers that a queue has not granted to an elastic cluster are more
    than that, as long as it has its least."""
    held = [pod for pod in pods if _waits_for_a_grant(pod)]
    if not held or not view.autoscaling(cluster) or len(pods) - len(held) < 1 + counts.min_workers(cluster):
        return pods
    return [pod for pod in pods if pod not in held]


def _waits_for_a_grant(pod: Json) -> bool:
    return any(one.get("name") == KUEUE_ELASTIC_JOB for one in (pod.get("spec") or {}).get("schedulingGates") or ())


def _all_ready(pods: list[Json]) -> bool:
    """Running, and none of them says that it is not ready."""
    return all(
        observed.is_running(pod)
        and (observed.is_ready(pod) or observed.condition(pod, "Ready") is None)
        and not view.deleting(pod)
        for pod in pods
    )


def _head_ready(heads: list[Json]) -> tuple[str, str, str]:
    if not heads:
        return "False", "HeadPodNotFound", "there is no head pod"
    head = heads[0]
    ready = observed.condition(head, "Ready")
    if ready is None:
        trouble = observed.trouble(head)
        return "False", "Unknown", trouble[1] if trouble else "the head pod has no Ready condition yet"
    if observed.is_ready(head):
        return "True", "HeadPodRunningAndReady", "the head pod is running and ready"
    reason = str(ready.get("reason") or "")
    detail = observed.why_not_ready(head) if reason == "ContainersNotReady" else None
    if detail is not None:
        return "False", detail[0], detail[1]
    return "False", reason or "Unknown", str(ready.get("message") or "")


def _suspension(conditions: _Conditions, cluster: Json, pods: list[Json]) -> None:
    """The two conditions of the machine: a suspension that has begun always finishes."""
    suspending, suspended = conditions.status(SUSPENDING) == "True", conditions.status(SUSPENDED) == "True"
    if suspending or view.suspended(cluster):
        suspending, suspended = bool(pods), not pods
    else:
        suspended = False
    conditions.put(SUSPENDING, str(suspending), SUSPENDING)
    conditions.put(SUSPENDED, str(suspended), SUSPENDED)


def _state(cluster: Json, old: Json, pods: list[Json], complete: bool, conditions: _Conditions) -> str:
    before = str(old.get("state") or "")
    if conditions.status(SUSPENDED) == "True" and not pods:
        return "suspended"
    if complete and conditions.status(SUSPENDING) != "True":
        return "ready"
    return "" if before == "suspended" else before


def _set_state(status: Json, old: Json, state: str, now: int) -> None:
    status["state"] = state
    times = dict(old.get("stateTransitionTimes") or {})
    if state and state != (old.get("state") or ""):
        times[state] = seconds_text(now)
    if times:
        status["stateTransitionTimes"] = times


def _progress(workers: list[Json], wanted: int, heads: list[Json]) -> str:
    ready = sum(map(observed.is_ready, workers))
    why = why_waiting([*heads, *workers])
    return f"{ready} of {wanted} workers are ready{f'; {why}' if why else ''}"


def why_waiting(pods: list[Json]) -> str:
    """What holds up the first pod that does not get on, as gate, kubelet or scheduler says it; empty when none is."""
    for pod in pods:
        gates = [str(gate.get("name")) for gate in (pod.get("spec") or {}).get("schedulingGates") or []]
        if gates:
            return f"pod {view.name(pod)} waits for admission: scheduling gate {', '.join(gates)}"
        trouble = observed.trouble(pod)
        if trouble is not None:
            return f"pod {view.name(pod)}: {trouble[0]} ({trouble[1]})"
        scheduled = observed.condition(pod, "PodScheduled")
        if scheduled is not None and scheduled.get("status") == "False" and scheduled.get("message"):
            return f"pod {view.name(pod)} waits: {scheduled['message']}"
    return ""


def why_not_ready(cluster: Json) -> str:
    """Why the cluster is not ready yet, in its own words."""
    for kind in (VALID, REPLICA_FAILURE, PROVISIONED):
        for condition in (cluster.get("status") or {}).get("conditions") or []:
            wrong = "False" if kind != REPLICA_FAILURE else "True"
            if condition.get("type") == kind and condition.get("status") == wrong and condition.get("message"):
                return f"the RayCluster is not ready: {condition['message']}"
    return "the RayCluster is not ready yet"


def _head_info(cluster: Json, heads: list[Json], service: Json | None) -> Json:
    info: Json = {}
    if heads:
        info["podName"] = view.name(heads[0])
        address = (heads[0].get("status") or {}).get("podIP")
        if address:
            info["podIP"] = address
    if service:
        info["serviceName"] = view.name(service)
        cluster_ip = (service.get("spec") or {}).get("clusterIP")
        if cluster_ip and cluster_ip != "None":
            info["serviceIP"] = cluster_ip
        elif info.get("podIP"):
            info["serviceIP"] = info["podIP"]  # a headless Service leads straight to the pod
    return info


def _group_counts(group: Json, workers: list[Json]) -> Json:
    members = [pod for pod in workers if view.labels(pod).get(names.GROUP) == view.group_name(group)]
    return {
        "name": view.group_name(group),
        "desired": counts.wanted_pods(group),
        "running": sum(map(observed.is_running, members)),
        "ready": sum(map(observed.is_ready, members)),
        "pending": sum(observed.phase(pod) in ("", "Pending") for pod in members),
        "failed": sum(observed.phase(pod) == "Failed" for pod in members),
    }
