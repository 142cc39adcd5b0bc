"""The status of a `Ray` object, in the proposal's shape. Pure: called at the end of every pass.

Counts that are zero are left out, as the proposal's types do; the launcher's own condition stands at the top and is
repeated under `launcher`.
"""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.controllers.ray import names, view
from shoal.controllers.ray.cluster import counts, status
from shoal.controllers.ray.pods import observed
from shoal.controllers.ray.ray_kind.translation import Translation

LAUNCHING, LAUNCHED, LAUNCH_FAILED = "Launching", "SuccessfulLaunch", "FailedLaunch"
READY, INVALID = "Ready", "InvalidConfiguration"
UNSUPPORTED, OVERRIDDEN, TARGET_IGNORED = (
    "UnsupportedConfiguration",
    "ConfigurationOverridden",
    "TargetUtilizationIgnored",
)
BAD = (LAUNCH_FAILED, INVALID, UNSUPPORTED)


def compute(
    ray: Json,
    translation: Translation,
    cluster: Json | None,
    pods: list[Json],
    launchers: list[Json],
    trouble: str,
    now: int,
) -> Json:
    old = ray.get("status") or {}
    heads = [pod for pod in pods if view.labels(pod).get(names.NODE_TYPE) == names.HEAD]
    workers = [pod for pod in pods if view.labels(pod).get(names.NODE_TYPE) == names.WORKER]
    suspended = cluster is not None and view.suspended(cluster)
    wanted = 0 if cluster is None or suspended else counts.desired_workers(cluster)
    head = _replicas(heads, cluster, 0 if cluster is None or suspended else 1)
    worker = _replicas(workers, cluster, wanted)
    found = [*_launch_conditions(launchers, trouble, suspended, bool(translation.problems))]
    if translation.problems:
        found.append((INVALID, "True", "InvalidConfiguration", "; ".join(translation.problems)))
    if translation.unsupported:
        found.append(
            (UNSUPPORTED, "True", "KeysIgnored", f"not supported and ignored: {', '.join(translation.unsupported)}")
        )
    if translation.overridden:
        keys = ", ".join(translation.overridden)
        found.append((OVERRIDDEN, "True", "TypedFieldsWin", f"typed fields override these keys of the text: {keys}"))
    if translation.target_ignored:
        text = "Ray's autoscaler no longer has a utilization target; the value is only recorded"
        found.append((TARGET_IGNORED, "True", "NoEquivalent", text))
    ready = bool(head.get("availableReplicas")) and worker.get("availableReplicas", 0) >= translation.minimum
    problem = (
        trouble
        or _childs_problem(cluster)
        or f"head {head.get('availableReplicas', 0)} of 1, workers {worker.get('availableReplicas', 0)}"
    )
    found.append((READY, str(ready), "PodsAvailable" if ready else "PodsMissing", "" if ready else problem))
    conditions = [_condition(one, old, now) for one in found]
    launcher = _replicas(launchers, None, 0)
    launch = [one for one in conditions if one["type"] in (LAUNCHING, LAUNCHED, LAUNCH_FAILED)]
    if launch:
        launcher["conditions"] = launch
    return {
        "launcher": launcher,
        "head": head,
        "worker": worker,
        "conditions": conditions,
        "startTime": old.get("startTime") or seconds_text(now),
        "observedGeneration": view.generation(ray),
        "lastReconcileTime": old.get("lastReconcileTime") or seconds_text(now),
    }


def _childs_problem(cluster: Json | None) -> str:
    """Why the child does not get on, in its own words."""
    for kind, bad in ((status.VALID, "False"), (status.REPLICA_FAILURE, "True"), (status.DEGRADED, "True")):
        for condition in ((cluster or {}).get("status") or {}).get("conditions") or []:
            if condition.get("type") == kind and condition.get("status") == bad:
                return str(condition.get("message") or "")
    return ""


def same(old: Json, new: Json) -> bool:
    """Equal but for the time of writing."""
    return {**old, "lastReconcileTime": None} == {**new, "lastReconcileTime": None}


def _replicas(pods: list[Json], cluster: Json | None, wanted: int) -> Json:
    """The five counts, those that are zero left out."""
    alive = [pod for pod in pods if observed.phase(pod) not in ("Succeeded", "Failed")]
    ready = sum(map(observed.is_ready, alive))
    found = {
        "replicas": len(alive),
        "updatedReplicas": sum(_is_current(pod, cluster) for pod in alive),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "unavailableReplicas": max(0, wanted - ready),
    }
    return {key: value for key, value in found.items() if value}


def _is_current(pod: Json, cluster: Json | None) -> bool:
    if cluster is None:
        return True
    group = view.labels(pod).get(names.GROUP, "")
    return group not in status.drifted_groups(cluster, [pod])


def _launch_conditions(
    launchers: list[Json], trouble: str, suspended: bool, invalid: bool
) -> list[tuple[str, str, str, str]]:
    """Exactly one of the three, once there is something to launch."""
    if trouble:
        return [(LAUNCH_FAILED, "True", "CannotCreate", trouble)]
    if not launchers:
        return [] if suspended or invalid else [(LAUNCHING, "True", "Starting", "the launcher is being created")]
    pod = launchers[0]
    if observed.phase(pod) == "Succeeded":
        return [(LAUNCHED, "True", "LauncherCompleted", "")]
    if observed.phase(pod) == "Failed":
        ended = observed.container_terminated(pod, "ray-launcher") or {}
        reason = str(ended.get("reason") or (pod.get("status") or {}).get("reason") or "Error")
        return [(LAUNCH_FAILED, "True", reason, str(ended.get("message") or f"the launcher {view.name(pod)} failed"))]
    return [(LAUNCHING, "True", "LauncherRunning", "")]


def _condition(found: tuple[str, str, str, str], old: Json, now: int) -> Json:
    kind, value, reason, message = found
    before: Json = next((one for one in old.get("conditions") or [] if one.get("type") == kind), {})
    moved = before.get("lastTransitionTime") if before.get("status") == value else None
    condition: Json = {
        "type": kind,
        "status": value,
        "lastProbeTime": None,
        "lastTransitionTime": moved or seconds_text(now),
    }
    if reason:
        condition["reason"] = reason
    if message:
        condition["message"] = message
    return condition
